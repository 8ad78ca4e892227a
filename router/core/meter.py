"""What one model was asked for and how it was served: the figures of wire 1 and of the metrics page.

Counts of the second that runs are plain ints that the hot path adds to; `roll` files them when the second is complete
(the dispatcher calls it at the first event after, or from the timer, whichever comes first). 120 complete seconds are
kept. Totals and histograms are cumulative per boot. Nothing here reads a clock.

- tokens_in is an estimate: bytes of the body / 4.
- tokens_out are server-sent events; an answer that is not streamed counts none.
- An inter-token time is the mean of its stream, filed once at the stream's end with the weight of its gaps: 0 us per
  event, where an
  observation per event costs 0.15.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from router.core.endpoints import OUTCOMES
from router.model import Histogram, Total

SECONDS_KEPT = 120
TTFT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
BYTES_PER_TOKEN = 4
MEAN_OUTPUT = 256.0
"""Tokens of an answer as long as none was seen: what a request that names no bound is expected to cost besides its prompt."""


class Buckets:
    """A histogram being filled. `counts[i]` values lie in (bounds[i-1], bounds[i]], the last above all bounds; `sum`
    in seconds.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """File a value of `weight` equal observations."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def report(self) -> Histogram:
        """The wire's form: counts up to each bound, the last of all."""
        running, totals = 0, []
        for count in self.counts:
            running += count
            totals.append(running)
        return Histogram(le=self.bounds, count=tuple(totals))


class Meter:
    """Counters of one model. The `*_now` fields are of the second that runs; `mean_output`: tokens of a stream lately."""

    __slots__ = (
        "arrived",
        "arrived_now",
        "arrived_total",
        "gap",
        "mean_output",
        "outcomes",
        "refused",
        "replays",
        "retries",
        "served",
        "served_now",
        "service_count",
        "service_sum",
        "shed",
        "shed_now",
        "streams",
        "streams_now",
        "tokens_in",
        "tokens_in_now",
        "tokens_out",
        "tokens_out_now",
        "ttft",
        "wait",
    )

    def __init__(self) -> None:
        self.arrived: deque[int] = deque(maxlen=SECONDS_KEPT)
        self.tokens_in: deque[int] = deque(maxlen=SECONDS_KEPT)
        self.tokens_out: deque[int] = deque(maxlen=SECONDS_KEPT)
        self.shed: deque[int] = deque(maxlen=SECONDS_KEPT)
        self.served: deque[int] = deque(maxlen=SECONDS_KEPT)
        self.streams: deque[int] = deque(maxlen=SECONDS_KEPT)
        self.arrived_now = self.tokens_in_now = self.tokens_out_now = self.shed_now = self.served_now = 0
        self.streams_now = 0
        self.arrived_total = 0
        self.mean_output = MEAN_OUTPUT
        self.service_count = 0
        self.service_sum = 0.0
        self.outcomes = [0] * len(OUTCOMES)
        self.refused: dict[str, int] = {}
        self.retries = 0
        self.replays = 0
        self.ttft = Buckets(TTFT_BOUNDS_S)
        self.gap = Buckets(GAP_BOUNDS_S)
        self.wait = Buckets(TTFT_BOUNDS_S)

    def roll(self, seconds: int) -> None:
        """The running second is complete, and `seconds` - 1 empty ones after it."""
        self.arrived_total += self.arrived_now
        self.arrived.append(self.arrived_now)
        self.tokens_in.append(self.tokens_in_now)
        self.tokens_out.append(self.tokens_out_now)
        self.shed.append(self.shed_now)
        self.served.append(self.served_now)
        self.streams.append(self.streams_now)
        self.arrived_now = self.tokens_in_now = self.tokens_out_now = self.shed_now = self.served_now = 0
        self.streams_now = 0
        for _ in range(min(seconds - 1, SECONDS_KEPT)):
            for ring in (self.arrived, self.tokens_in, self.tokens_out, self.shed, self.served, self.streams):
                ring.append(0)
        tokens, streams = sum(self.tokens_out), sum(self.streams)
        if tokens and streams:
            self.mean_output = tokens / streams

    def refuse(self, code: str) -> None:
        """Count a refused request under its code (a small fixed set) and as shed."""
        self.shed_now += 1
        self.refused[code] = self.refused.get(code, 0) + 1

    def asked_for(self) -> int:
        """Requests that arrived since boot."""
        return self.arrived_total + self.arrived_now

    def served_per_s(self, seconds: int = 10) -> float:
        """Requests that ended in the last complete seconds, per second: the rate at which slots come free."""
        ring = self.served
        recent = [ring[-index] for index in range(1, min(seconds, len(ring)) + 1)]
        return sum(recent) / len(recent) if recent else 0.0

    def service(self) -> Total:
        """Service time of good answers, from the pick of the endpoint to the last byte."""
        return Total(count=self.service_count, sum=round(self.service_sum, 6))
