"""Which endpoint gets a request: two choices sampled in proportion to capacity, the one with the lower load per
capacity wins.

The routable endpoints of a model stand in a list that is rebuilt only when one becomes routable or stops being it
(seldom), never per request. `edges` are their running sums of capacity: one random number x in [0, total) falls into
one span, and where it falls inside the span is as good as a second random number, so a pick costs one `random()` and
two bisections.

Source: M. Mitzenmacher, The power of two choices in randomized load balancing (2001), with load divided by capacity.

The load compared is (in flight + 1/2) / capacity. Without the half an idle small endpoint beats a large one that
holds a single request and gets up to 1.8 of its share; with a whole one it gets as little as 0.1 (simulated over five
mixes of capacity at 10 to 90 % use; with the half all stay within 0.9 to 1.1 from 30 % use on).

Trade-offs: no ramp for a fresh endpoint (it is empty, so it wins the comparisons it is in: at most twice its share
until it has caught up, and never more than its limit); no affinity; in-flight work counts as equal whatever its
length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from router.core.endpoints import Endpoint


class Candidates:
    """The routable endpoints of one model, ready to be picked from."""

    __slots__ = ("edges", "endpoints", "last", "total")

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.edges: list[float] = []
        self.total = 0.0
        self.last = -1

    def rebuild(self, endpoints: Iterable[Endpoint]) -> None:
        """Take the routable ones of `endpoints`."""
        self.endpoints = [endpoint for endpoint in endpoints if endpoint.routable]
        self.edges = []
        self.total = 0.0
        for endpoint in self.endpoints:
            self.total += endpoint.capacity
            self.edges.append(self.total)
        self.last = len(self.endpoints) - 1

    def pick(self, random: Callable[[], float]) -> Endpoint | None:
        """One with room, or None when all are full. `random` gives [0, 1). 0.4 us; a scan only when both choices are
        full.
        """
        last = self.last
        if last < 1:
            if last < 0:
                return None
            first = self.endpoints[0]
            return first if first.in_flight < first.limit else None
        edges = self.edges
        x = random() * self.total
        at = bisect_right(edges, x, 0, last)  # `hi` keeps a rounded-up x in range
        first = self.endpoints[at]
        weight = first.capacity
        before = edges[at] - weight
        y = (x - before) / weight * (self.total - weight)  # uniform over all spans but the first one's
        second = self.endpoints[bisect_right(edges, y if y < before else y + weight, 0, last)]
        if (first.in_flight + 0.5) * second.capacity > (second.in_flight + 0.5) * weight:
            first = second
        if first.in_flight < first.limit:
            return first
        return self.least()

    def least(self, tried: tuple[Endpoint, ...] = ()) -> Endpoint | None:
        """The one with the lowest load per capacity that has room and was not tried. O(n): for full pools and
        retries.
        """
        best: Endpoint | None = None
        lowest = 0.0
        for endpoint in self.endpoints:
            if endpoint.in_flight < endpoint.limit and endpoint not in tried:
                load = (endpoint.in_flight + 0.5) / endpoint.capacity
                if best is None or load < lowest:
                    best, lowest = endpoint, load
        return best

    def again(self, tried: tuple[Endpoint, ...]) -> Endpoint | None:
        """For a request that failed before: an untried one with room; a tried one only when no other routable one
        exists.
        """
        found = self.least(tried)
        if found is None and all(endpoint in tried for endpoint in self.endpoints):
            return self.least()
        return found
