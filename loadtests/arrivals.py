"""Arrivals that nobody recorded: a generated load with a day's shape, arrivals drawn from rates, and thinning.

Knows nothing of how load is played. Everything is drawn from `random.Random` streams seeded by text, one stream per
purpose and cycle, so a cycle is the same whichever span it is asked for in: the history of earlier cycles and the
load that is then played come from one generator and meet at time 0. Standard library only.

Shape of a cycle, phase p in [0, 1), each term in [0, 1]:

    rate(p) = level * (trough + (peak - trough) * max(plateau(p), evening(p)))
    plateau: 0.72 * S((p - 0.32) / 0.016) * S((0.80 - p) / 0.035)     steep morning ramp, midday plateau, slower end
    evening: exp(-((p - 0.70) / 0.055)^2)                             the peak of the day

with S the logistic function; `level` is one lognormal draw a cycle, median 1.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from loadtests.trace import RateTrace, Trace, TraceError

PLATEAU = 0.72
"""Midday plateau as a share of the way from trough to peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lognormal token counts of requests: medians and the standard deviation of their logarithms, cut at the maxima."""

    input_median: float = 400.0
    input_sigma: float = 0.8
    input_max: int = 8192
    output_median: float = 12.0
    output_sigma: float = 0.5
    output_max: int = 256

    def draw(self, rng: Random) -> tuple[int, int]:
        """(input tokens, output tokens), each at least 1."""
        return (
            _lognormal(rng, self.input_median, self.input_sigma, self.input_max),
            _lognormal(rng, self.output_median, self.output_sigma, self.output_max),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DayShape:
    """A generated load whose cycle of `period_s` has a day's shape: night trough, steep morning ramp, plateau,
    evening peak.

    `trough_per_s`, `peak_per_s`: requests per second of a median cycle; `level_sigma`: spread of the cycles' levels
    (log standard deviation). Cycle 0 begins at time 0; negative times are earlier cycles.
    """

    period_s: float
    trough_per_s: float
    peak_per_s: float
    seed: int = 1
    level_sigma: float = 0.06
    lengths: Lengths = Lengths()

    def __post_init__(self) -> None:
        for name in ("period_s", "peak_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value}; allowed is a finite number above 0")
        if not 0 <= self.trough_per_s <= self.peak_per_s:
            raise ValueError(f"trough_per_s: {self.trough_per_s}; allowed is 0 to peak_per_s, {self.peak_per_s}")
        if not 0 <= self.level_sigma <= 1:
            raise ValueError(f"level_sigma: {self.level_sigma}; allowed is 0 to 1")

    def level(self, cycle: int) -> float:
        """How this cycle compares with a median one."""
        return math.exp(self._rng("level", cycle).gauss(0.0, self.level_sigma))

    def rate_per_s(self, t_s: float) -> float:
        """Expected requests per second at a time, which may be negative."""
        cycle = math.floor(t_s / self.period_s)
        return self.level(cycle) * self._median_rate(t_s / self.period_s - cycle)

    def arrivals_s(self, start_s: float, end_s: float) -> array[float]:
        """Poisson arrival times in [start_s, end_s), ascending."""
        found: array[float] = array("d")
        for cycle in range(math.floor(start_s / self.period_s), math.ceil(end_s / self.period_s)):
            for at_s in self._cycle(cycle):
                if start_s <= at_s < end_s:
                    found.append(at_s)
        return found

    def counts(self, start_s: float, end_s: float, step_s: float = 1.0) -> list[int]:
        """Arrivals in each whole step of [start_s, end_s): what a router would have counted."""
        steps = [0] * int((end_s - start_s) / step_s + 1e-9)
        for at_s in self.arrivals_s(start_s, start_s + len(steps) * step_s):
            steps[min(len(steps) - 1, int((at_s - start_s) / step_s))] += 1
        return steps

    def history(self, cycles: int, step_s: float = 1.0) -> list[int]:
        """Counts per step of the `cycles` cycles before time 0, to seed a forecaster with."""
        return self.counts(-cycles * self.period_s, 0.0, step_s)

    def requests(self, start_s: float, end_s: float) -> Trace:
        """The requests of [start_s, end_s) with token lengths, times counted from `start_s`."""
        at = self.arrivals_s(start_s, end_s)
        return _with_lengths(array("d", [at_s - start_s for at_s in at]), self.lengths, self._rng("lengths", 0))

    def _median_rate(self, phase: float) -> float:
        plateau = PLATEAU * _logistic((phase - 0.32) / 0.016) * _logistic((0.80 - phase) / 0.035)
        evening = math.exp(-(((phase - 0.70) / 0.055) ** 2))
        return self.trough_per_s + (self.peak_per_s - self.trough_per_s) * max(plateau, evening)

    def _cycle(self, cycle: int) -> list[float]:
        level, start_s = self.level(cycle), cycle * self.period_s
        return poisson_arrivals(
            lambda t_s: level * self._median_rate(t_s / self.period_s),
            end_s=self.period_s,
            rate_max=level * self.peak_per_s,
            rng=self._rng("arrivals", cycle),
            offset_s=start_s,
        )

    def _rng(self, purpose: str, cycle: int) -> Random:
        return Random(f"tidegate day {purpose} {self.seed} {cycle}")


def day_shape(period_s: float, *, trough_per_s: float, peak_per_s: float, seed: int = 1) -> DayShape:
    """A generated load with a day's shape; see `DayShape` for the rest. Raises `ValueError` naming what is out of
    range.
    """
    return DayShape(period_s=period_s, trough_per_s=trough_per_s, peak_per_s=peak_per_s, seed=seed)


def poisson_arrivals(
    rate: Callable[[float], float], *, end_s: float, rate_max: float, rng: Random, offset_s: float = 0.0
) -> list[float]:
    """Arrivals of a Poisson process whose rate varies (thinning: Lewis and Shedler 1979), over [0, end_s), moved by
    `offset_s`.

    `rate(t)` must not exceed `rate_max`; where it does it is cut.
    """
    found: list[float] = []
    at_s = 0.0
    if rate_max <= 0:
        return found
    while (at_s := at_s + rng.expovariate(rate_max)) < end_s:
        if rng.uniform(0.0, rate_max) < rate(at_s):
            found.append(offset_s + at_s)
    return found


def from_rates(rates: RateTrace, *, seed: int, lengths: Lengths | None = None, limit: int | None = None) -> Trace:
    """Poisson arrivals with the rates of a trace, constant within a step, times counted from its start.

    Steps without a value take the line between their known neighbours (flat at the ends): an outage of the collector
    was not an outage of the load. `limit`: stop after so many arrivals. Raises `TraceError` when no step has a value.
    """
    known = [place for place, valid in enumerate(rates.valid) if valid]
    if not known:
        raise TraceError(f"{rates.source}: no step has a value")
    rng = Random(f"tidegate rates {seed}")
    arrivals: array[float] = array("d")
    for place, rate in enumerate(_filled(rates, known)):
        arrivals.extend(
            poisson_arrivals(
                lambda _, rate=rate: rate,  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                end_s=rates.step_s,
                rate_max=rate,
                rng=rng,
                offset_s=place * rates.step_s,
            )
        )
        if limit is not None and len(arrivals) >= limit:
            del arrivals[limit:]
            break
    return _with_lengths(arrivals, lengths or Lengths(), Random(f"tidegate lengths {seed}"), source=rates.source)


def thin(trace: Trace, keep: float, *, seed: int) -> Trace:
    """Keep each request with probability `keep`, in (0, 1]. Raises `TraceError` for another probability."""
    if not 0 < keep <= 1:
        raise TraceError(f"keep: {keep}; allowed is above 0 and up to 1")
    rng = Random(f"tidegate thin {seed}")
    return trace.pick([row for row in range(len(trace)) if rng.uniform(0.0, 1.0) < keep])


def _filled(rates: RateTrace, known: list[int]) -> list[float]:
    """Rates with gaps filled by straight lines."""
    filled = list(rates.rate_per_s)
    for before, after in pairwise(known):
        rise = (filled[after] - filled[before]) / (after - before)
        for place in range(before + 1, after):
            filled[place] = filled[before] + rise * (place - before)
    filled[: known[0]] = [filled[known[0]]] * known[0]
    filled[known[-1] + 1 :] = [filled[known[-1]]] * (len(filled) - known[-1] - 1)
    return filled


def _with_lengths(arrivals: array[float], lengths: Lengths, rng: Random, source: str = "generated") -> Trace:
    drawn = [lengths.draw(rng) for _ in arrivals]
    return Trace(
        arrival_s=arrivals,
        input_tokens=array("q", [tokens for tokens, _ in drawn]),
        output_tokens=array("q", [tokens for _, tokens in drawn]),
        source=source,
    )


def _lognormal(rng: Random, median: float, sigma: float, most: int) -> int:
    return max(1, min(most, round(median * math.exp(rng.gauss(0.0, sigma)))))


def _logistic(x: float) -> float:
    # Beyond 60 the exponential is nothing beside 1, and far beyond it overflows.
    return 0.0 if x < -60 else 1.0 / (1.0 + math.exp(-x))
