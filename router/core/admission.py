"""The bounded queue of one model: priority bands in strict order, in each fairness between tenants (`fairness.py`), for
each tenant the earliest deadline first; and what a request is told when it is not let in.

Bounds: how many wait, how many bytes they hold, how long one may wait (the model's bound, or the client's own
`x-queue-timeout-s` if that is less). A queue that is full makes room for who has a better claim: it refuses the last
request of the tenant with the most in line for its weight, in the lowest band; so neither a burst nor a lower band keeps
others out. A large one may need the room of several; if theirs is not enough nobody has to go.

Who leaves is only marked, its place is dropped when it comes to the head, so leaving is O(1) and the counts are right at
once. No list holds more than twice those who wait: marked places are swept when they are the majority. Each wait is filed in
a histogram when it ends, by an endpoint, a refusal or the client's departure; a request that waits again after a failed
attempt files the second wait by itself.

| what happened                                        | answer                                                 |
|------------------------------------------------------|--------------------------------------------------------|
| queue full (count or bytes), or this tenant's share  | 429, Retry-After = waiting / rate of freed slots       |
| no replica, and the next one is due after the limit  | 503, Retry-After = its ETA                             |
| waited until the deadline                            | 503, Retry-After = ETA, else by the rate, else 5 s     |
| known model, no replica, none or one in time told    | held: the controller is woken and may still bring one  |
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from router.core.fairness import Band
from router.core.meter import Buckets
from router.core.refusals import Refusal, whole_seconds
from router.core.requests import Request
from router.model import QueueBounds, Routing

TENANT_NAME_MAX: Final = 128
ANSWER_MAX: Final = 8.0
"""No answer is expected to be longer than this many usual ones, whatever its request allows."""


class Order:
    """Where in the queue a request stands, by what its client told: a band and a tenant. Built once per table."""

    __slots__ = ("_bands", "_default", "_header", "_middle", "_tenant_header", "_weights", "bands")

    def __init__(self, routing: Routing) -> None:
        priorities, tenants = routing.priorities, routing.tenants
        names = priorities.bands if priorities else ("",)
        self.bands = len(names)
        self._header = priorities.header.lower() if priorities else None
        self._bands = {name.lower(): index for index, name in enumerate(names)}
        self._bands |= {str(index): index for index in range(len(names)) if str(index) not in self._bands}
        self._middle = len(names) // 2
        self._tenant_header = tenants.header.lower() if tenants else None
        self._weights = tenants.weights if tenants else {}
        self._default = tenants.default if tenants else 1.0

    def classify(self, request: Request) -> None:
        """Set the request's band, the tenant's name and its weight. A band that is not known, or none, is the middle one:
        the second of three, the second of two.
        """
        request.band, request.tenant_name, request.tenant_weight = 0, "", 1.0
        if self._header is not None:
            said = request.field(self._header) or ""
            request.band = self._bands.get(said.lower(), self._middle)
        if self._tenant_header is not None:
            name = (request.field(self._tenant_header) or "")[:TENANT_NAME_MAX]
            request.tenant_name = name
            request.tenant_weight = self._weights.get(name, self._default)


class Queue:
    """Requests of one model that wait for a slot.

    `ahead`: those whose turn has come and that only a certain endpoint could take, or that an endpoint failed; they go
    first, in order. `bands`: all others, highest first. `count`, `bytes` and `tokens` are of all that still wait;
    `waits`: where the time of each wait is filed.
    """

    __slots__ = ("_due", "_number", "ahead", "bands", "bounds", "bytes", "count", "tokens", "waits")

    def __init__(self, bounds: QueueBounds, waits: Buckets) -> None:
        self.bounds = bounds
        self.waits = waits
        self.ahead: dict[Request, None] = {}
        self.bands = [Band()]
        self._due: list[tuple[float, int, Request]] = []
        self._number = count()
        self.count = 0
        self.bytes = 0
        self.tokens = 0

    def tell(self, bounds: QueueBounds, bands: int) -> None:
        """Other bounds, or another number of bands, from now on; who waits stays, at worst in the last band."""
        known = self.bounds
        self.bounds = bounds
        while len(self.bands) < bands:
            self.bands.append(Band())
        for band in self.bands[bands:]:
            for request in sorted(band.requests(), key=lambda each: each.queued_at):
                request.band = bands - 1
                self.bands[bands - 1].put(request, request.tenant_name, request.tenant_weight)
        del self.bands[bands:]
        if known.timeout_s != bounds.timeout_s:
            self._sweep()
            for band in self.bands:
                band.sweep()

    def has_room(self, size: int) -> bool:
        """Would a request of `size` bytes fit."""
        return self.count < self.bounds.max_requests and self.bytes + size <= self.bounds.max_bytes

    def put(self, request: Request, now: float) -> None:
        """To its place among those of its band and tenant."""
        self._enter(request, now)
        self.bands[request.band].put(request, request.tenant_name, request.tenant_weight)

    def put_ahead(self, request: Request, now: float) -> None:
        """Before all who wait: an endpoint failed it, so it was let in before."""
        self._enter(request, now)
        request.ahead = True
        self.ahead[request] = None

    def _enter(self, request: Request, now: float) -> None:
        request.queued_at = now
        request.queued = True
        request.ahead = False
        request.deadline = self._deadline_of(request)
        self.count += 1
        self.bytes += request.size
        self.tokens += request.tokens
        if len(self._due) > 64 + 2 * self.count:
            self._sweep()
        heappush(self._due, (request.deadline, next(self._number), request))

    def discard(self, request: Request, now: float) -> None:
        """It waits no more: it left, was refused, or its turn has come. Where it stood is dropped later."""
        request.queued = False
        self.count -= 1
        self.bytes -= request.size
        self.tokens -= request.tokens
        if request.ahead:
            del self.ahead[request]
        else:
            self.bands[request.band].left(request)
        wait_s = now - request.queued_at
        request.waited_s += wait_s
        self.waits.observe(wait_s)

    def head(self) -> Request | None:
        """Who is next of those not ahead, left in place."""
        for band in self.bands:
            if band.waiting:
                return band.head()
        return None

    def take(self, request: Request, mean_output: float, now: float) -> None:
        """Remove the head that `head()` gave: its wait is over. `mean_output`: tokens of an answer that says no bound."""
        self.bands[request.band].take(self._cost(request, mean_output))
        self.discard(request, now)

    def step_ahead(self, request: Request, mean_output: float) -> None:
        """The head's turn has come, but it waits on for a certain endpoint."""
        band = self.bands[request.band]
        band.take(self._cost(request, mean_output))
        band.left(request)
        request.ahead = True
        self.ahead[request] = None

    def push_out(self, request: Request, most: int) -> list[Request]:
        """Who has to go so that this one may wait, at most so many: the last of the largest tenant of the lowest band, and
        so on in each band up to its own, there as long as that tenant has more in line for its weight. Empty = it cannot be
        had so.
        """
        needed, bounds = self.bytes + request.size, self.bounds
        out: list[Request] = []
        for index in range(len(self.bands) - 1, request.band - 1, -1):
            band = self.bands[index]
            largest = band.largest() if band.waiting else None
            if largest is None:
                continue
            left = largest.waiting
            if index == request.band:
                own = band.tenants.get(request.tenant_name)
                claim = ((own.waiting if own else 0) + 1) / request.tenant_weight
            else:
                claim = 0.0
            for last in band.latest(largest):
                if len(out) == most or claim >= left / largest.weight:
                    return []
                out.append(last)
                left -= 1
                needed -= last.size
                if needed <= bounds.max_bytes and self.count - len(out) < bounds.max_requests:
                    return out
        return []

    def overdue(self, now: float) -> Request | None:
        """Remove and give one whose deadline has passed."""
        due = self._due
        while due and (due[0][0] <= now or not due[0][2].queued):
            _, _, request = heappop(due)
            if request.queued:
                self.discard(request, now)
                return request
        return None

    def deadline(self) -> float | None:
        """When the next one must be evicted."""
        due = self._due
        while due and not due[0][2].queued:
            heappop(due)
        return due[0][0] if due else None

    def take_any(self, now: float) -> Request | None:
        """Remove and give anybody: the model is gone."""
        due = self._due
        while due:
            _, _, request = heappop(due)
            if request.queued:
                self.discard(request, now)
                return request
        return None

    def oldest_s(self, now: float) -> float:
        """How long the oldest has been here; 0 when nobody waits."""
        return max((now - each.arrived_at for _, _, each in self._due if each.queued), default=0.0)

    @staticmethod
    def _cost(request: Request, mean_output: float) -> float:
        """Tokens it is expected to cost. What it may ask for is a bound that answers seldom reach, and costs nothing to say."""
        asked = request.tokens - request.tokens_in
        return max(1.0, request.tokens_in + (min(asked, ANSWER_MAX * mean_output) if asked else mean_output))

    def _deadline_of(self, request: Request) -> float:
        bound_s, patience_s = self.bounds.timeout_s, request.patience_s
        return request.arrived_at + (bound_s if patience_s is None else min(bound_s, patience_s))

    def _sweep(self) -> None:
        """Drop the places of those that wait no more, and take over a changed bound."""
        waiting = [request for _, _, request in self._due if request.queued]
        for request in waiting:
            request.deadline = self._deadline_of(request)
        numbers = self._number
        self._due = [(request.deadline, next(numbers), request) for request in waiting]
        heapify(self._due)


def full(queue: Queue, size: int, freed_per_s: float) -> Refusal:
    """429: the queue has no room for `size` bytes more; come back when what waits now has been served at the rate
    measured.
    """
    bounds = queue.bounds
    if queue.count >= bounds.max_requests:
        message = f"the queue is full: {queue.count} requests wait, the bound is {bounds.max_requests}"
    else:
        message = f"the queue is full: {queue.bytes} bytes wait, {size} more would pass the bound of {bounds.max_bytes}"
    wait_s = max(queue.count, 1) / freed_per_s if freed_per_s > 0 else None
    return Refusal(status=429, code="queue_full", message=message, retry_after_s=whole_seconds(wait_s))


def pushed_out(queue: Queue, freed_per_s: float) -> Refusal:
    """429: it waited, but others had a better claim to its place in a full queue."""
    message = (
        f"the queue of {queue.bounds.max_requests} requests is full, and others have a better claim to a place in it"
    )
    wait_s = max(queue.count, 1) / freed_per_s if freed_per_s > 0 else None
    return Refusal(status=429, code="pushed_out", message=message, retry_after_s=whole_seconds(wait_s))


def none_in_time(model: str, eta_s: float, timeout_s: float) -> Refusal:
    """503: there is no replica, and the next one comes after this request's deadline."""
    message = (
        f"no replica of {model!r} is ready; the next is due in {eta_s:.0f} s, "
        f"later than the {timeout_s:g} s a request may wait"
    )
    return Refusal(status=503, code="no_capacity", message=message, retry_after_s=whole_seconds(eta_s))


def evicted(queue: Queue, shortage: str, waited_s: float, eta_s: float | None, freed_per_s: float) -> Refusal:
    """503: it waited until its deadline. `shortage`: what was wrong, in words."""
    if eta_s is None and freed_per_s > 0:
        eta_s = max(queue.count, 1) / freed_per_s
    message = f"{shortage} within {waited_s:.3g} s"
    return Refusal(status=503, code="queue_timeout", message=message, retry_after_s=whole_seconds(eta_s))
