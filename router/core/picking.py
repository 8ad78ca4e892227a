"""Which endpoint gets a request: the pick of the default policy, and the steps that other policies are made of.

The routable endpoints of a model stand in a list that is rebuilt only when one becomes routable or stops being it
(seldom), or while one ramps up; never per request. `edges` are their running sums of weight (capacity x ramp): one
random number x in [0, total) falls into one span, and where it falls inside the span is as good as a second random
number, so a pick costs one `random()` and two bisections, whatever the number of endpoints.

Two choices: the first is drawn in proportion to weight, and the second, drawn likewise from the others, gets the
request instead when the first is busier by more than 0.6 of a request: first / weight > (second + 0.6) / weight. With no
such margin an idle small endpoint takes what a large one with a single request should get (1.8 of its share); with a
symmetric half an idle large one always beats a small one. With it shares of 1:7 stay within 8 % of proportional from 5
to 90 % use and at idle, and within 12 % between (simulated).
Source: M. Mitzenmacher, The power of two choices in randomized load balancing (2001).

Policies are lists of steps (`Step`). A step proposes few endpoints, filters them, and takes the one with the lowest
score; when nobody is left, the next step is asked. `POLICIES` is the registry; a new policy is one row.

| policy      | first                                                      | then                             |
|-------------|------------------------------------------------------------|----------------------------------|
| least-load  | two choices by weight                                      | the lowest load of all           |
| prefix      | the ring's owners of the prompt's beginning, below a bound | as least-load                    |
| session     | the ring's owners of the session, while they have room     | as least-load                    |
| round-robin | whose turn it is; turns are in proportion to weight        | as least-load                    |

Whatever the policy: only routable endpoints with room, none that failed this request before, and none that takes only
shorter prompts, unless none takes one so long, for then the largest may say so itself.

In-flight work counts as equal whatever its length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil
from typing import Final, Protocol

from router.core.affinity import Ring, hash_of
from router.core.endpoints import Endpoint
from router.core.requests import Request

MARGIN: Final = 0.6
BOUND: Final = 1.25
"""A prefix's home may hold this many times its fair part of what is in flight."""


class Held(Protocol):
    """Who counts what is in flight: the model."""

    in_flight: int


class Candidates:
    """The endpoints of one model, ready to be picked from. `endpoints`: the routable ones; `sized`: the longest prompt
    that any takes, None when all take any; `session`: the header that names a session.
    """

    __slots__ = (
        "_held",
        "_placed",
        "_random",
        "_ring",
        "_round",
        "_turns",
        "edges",
        "endpoints",
        "last",
        "session",
        "sized",
        "total",
    )

    def __init__(self, random: Callable[[], float], held: Held) -> None:
        self._random = random
        self._held = held
        self.endpoints: list[Endpoint] = []
        self.edges: list[float] = []
        self.total = 0.0
        self.last = -1
        self.sized: int | None = None
        self.session = ""
        self._placed: list[tuple[Endpoint, float]] = []
        self._ring: Ring | None = None
        self._turns: list[tuple[float, int, Endpoint]] | None = None
        self._round = 0.0

    def rebuild(self, endpoints: Iterable[Endpoint]) -> None:
        """Take the routable ones of `endpoints`."""
        everyone = tuple(endpoint for endpoint in endpoints if endpoint.exists)
        placed = [(endpoint, endpoint.capacity) for endpoint in everyone]
        if placed != self._placed:
            self._placed = placed
            self._ring = None
        sizes = {endpoint.max_input_tokens for endpoint in everyone}
        self.sized = None
        if sizes - {None}:
            self.sized = 1 << 62 if None in sizes else max(size for size in sizes if size is not None)
        self.endpoints = [endpoint for endpoint in everyone if endpoint.routable]
        self._turns = None
        self.weigh()

    def weigh(self) -> None:
        """The same endpoints, other weights."""
        self.edges = []
        self.total = 0.0
        for endpoint in self.endpoints:
            self.total += endpoint.weight
            self.edges.append(self.total)
        self.last = len(self.endpoints) - 1

    @property
    def in_flight(self) -> int:
        """Slots held on all endpoints of the model."""
        return self._held.in_flight

    # ---- the default

    def two(self, request: Request) -> Endpoint | None:
        """The better of two choices, the least loaded when that one is full, None when all are. 0.4 us; it asks nothing of the request."""
        last = self.last
        if last < 1:
            if last < 0:
                return None
            first = self.endpoints[0]
            return first if first.in_flight < first.limit else None
        edges = self.edges
        x = self._random() * self.total
        at = bisect_right(edges, x, 0, last)  # `hi` keeps a rounded-up x in range
        first = self.endpoints[at]
        weight = first.weight
        before = edges[at] - weight
        y = (x - before) / weight * (self.total - weight)  # uniform over all spans but the first one's
        second = self.endpoints[bisect_right(edges, y if y < before else y + weight, 0, last)]
        if first.in_flight * second.weight > (second.in_flight + MARGIN) * weight:
            first = second
        if first.in_flight < first.limit:
            return first
        return self.least()

    def least(self, fits: Callable[[Endpoint], bool] | None = None) -> Endpoint | None:
        """The one with the lowest load that has room and fits. O(n): for full pools and retries."""
        best: Endpoint | None = None
        lowest = 0.0
        for endpoint in self.endpoints:
            if endpoint.in_flight < endpoint.limit and (fits is None or fits(endpoint)):
                load = load_of(endpoint)
                if best is None or load < lowest:
                    best, lowest = endpoint, load
        return best

    # ---- what the steps of a policy are made of

    def fits(self, request: Request) -> Callable[[Endpoint], bool]:
        """May an endpoint have this request, room and earlier attempts apart."""
        if self.sized is None:
            return lambda endpoint: True
        needed = min(request.tokens_in, self.sized)
        return lambda endpoint: endpoint.max_input_tokens is None or endpoint.max_input_tokens >= needed

    def by(self, request: Request, steps: tuple[Step, ...]) -> Endpoint | None:
        """What the first step that finds one says."""
        fits, tried = self.fits(request), request.tried
        for step in steps:
            best: Endpoint | None = None
            lowest = 0.0
            for endpoint in step.propose(self, request):
                if (
                    endpoint.in_flight < endpoint.limit
                    and fits(endpoint)
                    and endpoint not in tried
                    and all(allows(self, endpoint) for allows in step.filters)
                ):
                    score = step.score(endpoint)
                    if best is None or score < lowest:
                        best, lowest = endpoint, score
                        if step.first_wins:
                            break
            if best is not None:
                return best
        return None

    def again(self, request: Request) -> Endpoint | None:
        """For a request that failed before: an untried one with room; a tried one only when no other routable one that
        fits exists.
        """
        fits, tried = self.fits(request), request.tried
        found = self.least(lambda endpoint: endpoint not in tried and fits(endpoint))
        if found is None and all(endpoint in tried for endpoint in self.endpoints if fits(endpoint)):
            return self.least(fits)
        return found

    def owners(self, key: int | None) -> Iterable[Endpoint]:
        """Routable endpoints in the order in which a key prefers them; none without a key."""
        if key is None:
            return ()
        if self._ring is None:
            self._ring = Ring(endpoint for endpoint, _ in self._placed)
        return (endpoint for endpoint in self._ring.walk(key) if endpoint.routable)

    def next_turn(self) -> tuple[Endpoint, ...]:
        """Whose turn it is among those with room; the turn counts as taken. Who is full, or comes later, loses the turns
        of that time.
        """
        if self._turns is None:
            numbers = count()
            self._turns = [(max(each.turn, self._round), next(numbers), each) for each in self.endpoints]
            heapify(self._turns)
        passed = []
        found: tuple[Endpoint, ...] = ()
        while self._turns and not found:
            turn, number, endpoint = heappop(self._turns)
            if endpoint.in_flight < endpoint.limit:
                self._round = turn
                endpoint.turn = turn + 1 / endpoint.weight
                heappush(self._turns, (endpoint.turn, number, endpoint))
                found = (endpoint,)
            else:
                passed.append((number, endpoint))
        for number, endpoint in passed:
            heappush(self._turns, (max(endpoint.turn, self._round), number, endpoint))
        return found


def load_of(endpoint: Endpoint) -> float:
    """Work in flight per weight; the half makes an idle large endpoint better than an idle small one."""
    return (endpoint.in_flight + 0.5) / endpoint.weight


def below_bound(candidates: Candidates, endpoint: Endpoint) -> bool:
    """Does an endpoint hold less than its bounded part of what is in flight, or less than half of its limit: below that
    sharing the batch costs less than a prompt that is not in the cache.
    """
    part = ceil(BOUND * (candidates.in_flight + 1) * endpoint.weight / candidates.total)
    return endpoint.in_flight < max(part, endpoint.limit // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`propose` names few endpoints, `filters` must all allow one, the lowest `score` is taken; `first_wins`: the first
    that is allowed is.
    """

    propose: Callable[[Candidates, Request], Iterable[Endpoint]]
    filters: tuple[Callable[[Candidates, Endpoint], bool], ...] = ()
    score: Callable[[Endpoint], float] = load_of
    first_wins: bool = False


def _found(endpoint: Endpoint | None) -> tuple[Endpoint, ...]:
    return () if endpoint is None else (endpoint,)


LEAST_LOAD: Final = (
    Step(propose=lambda candidates, request: _found(candidates.two(request))),
    Step(propose=lambda candidates, request: candidates.endpoints),
)


def _session(candidates: Candidates, request: Request) -> int | None:
    named = request.field(candidates.session)
    return hash_of(named.encode()) if named else None


POLICIES: Final[dict[str, tuple[Step, ...]]] = {
    "least-load": LEAST_LOAD,
    "prefix": (
        Step(
            propose=lambda candidates, request: candidates.owners(request.prefix_key()),
            filters=(below_bound,),
            first_wins=True,
        ),
        *LEAST_LOAD,
    ),
    "session": (
        Step(propose=lambda candidates, request: candidates.owners(_session(candidates, request)), first_wins=True),
        *LEAST_LOAD,
    ),
    "round-robin": (Step(propose=lambda candidates, request: candidates.next_turn()), *LEAST_LOAD),
}
"""Policy by the name that a model's `routing.policy` gives."""
