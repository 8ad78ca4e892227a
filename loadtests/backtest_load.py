"""From trace files to the load of a backtest: requests per second on one grid of steps, and which steps were seen.

Knows nothing of laws and replicas. Rates are linear between the centres of their bins (flat beyond the outermost) and
averaged over each step by integrating that line exactly, so any bin width fits any step; requests are counted. A bin
that the collector missed is bridged for the world, as its load existed, and marked as not seen for the laws. Several
files are joined in order of time: a hole between them is missing, an overlap is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from loadtests.trace import RateTrace, Trace, TraceError, read_trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Flags: TypeAlias = "NDArray[np.bool_]"

STEP_S = 15.0
SEEN_SHARE = 0.5
"""A step counts as seen when at least this share of it was: as the controller's own grid does."""
SHIFT_MAX_S = 3600
"""Seeds other than 1 leave out up to this much of the beginning, so that bins, ticks and days meet differently."""
STEPS_MAX = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """`rate_per_s`: mean requests per second of each step, finite, shape (n,); `seen`: False where the collector was
    down, shape (n,). Step i covers [start_s + i step_s, start_s + (i + 1) step_s) on the trace's own clock.
    """

    start_s: float
    step_s: float
    rate_per_s: Floats
    seen: Flags
    source: str = "generated"
    bad_rows: int = 0

    def __len__(self) -> int:
        return len(self.rate_per_s)

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self) * self.step_s

    def part(self, first: int, last: int) -> Load:
        """Steps first .. last - 1, at their own times."""
        return Load(
            start_s=self.start_s + first * self.step_s,
            step_s=self.step_s,
            rate_per_s=self.rate_per_s[first:last],
            seen=self.seen[first:last],
            source=self.source,
            bad_rows=self.bad_rows,
        )

    def between(self, start_s: float, end_s: float) -> Load:
        """Whole steps within [start_s, end_s), both in seconds from the beginning. Raises `TraceError` when nothing is
        left.
        """
        first = max(0, math.ceil(start_s / self.step_s - 1e-9))
        last = min(len(self), math.floor(min(end_s, self.duration_s) / self.step_s + 1e-9))
        if last - first < 2:
            raise TraceError(
                f"{self.source}: the slice {start_s:g} to {end_s:g} s leaves less than two steps of {self.step_s:g} s; "
                f"the trace covers {self.duration_s:g} s"
            )
        return self.part(first, last)


def read_loads(
    paths: Sequence[Path],
    *,
    form: str | None = None,
    skip_bad_rows: bool = False,
    step_s: float = STEP_S,
    seed: int = 1,
) -> Load:
    """The load of one file, or of several that follow each other. Raises `TraceError` for what `read_trace` refuses,
    for files that overlap, and for a trace too short to be played.
    """
    return load_of([read_trace(path, form, skip_bad_rows) for path in paths], step_s=step_s, seed=seed)


def load_of(traces: Sequence[Trace | RateTrace], *, step_s: float = STEP_S, seed: int = 1, flat: bool = False) -> Load:
    """The load of traces, see `read_loads`. `flat`: rates are constant within their bins instead of linear between
    centres.
    """
    pieces = sorted((_piece(trace) for trace in traces), key=lambda piece: piece.start_s)
    for before, after in pairwise(pieces):
        if after.start_s < before.end_s - 1e-6:
            raise TraceError(
                f"{after.trace.source}: begins at {after.start_s:.0f} s, before {before.trace.source} ends at "
                f"{before.end_s:.0f} s; files of one load must not overlap"
            )
    begins_s = pieces[0].start_s
    if isinstance(pieces[0].trace, Trace):  # steps at round times, the first one partly before the first request
        begins_s = math.floor(begins_s / step_s) * step_s
    start_s = begins_s + shift_s(seed)
    steps = math.floor((pieces[-1].end_s - start_s) / step_s + 1e-9)
    names = ", ".join(piece.trace.source for piece in pieces)
    if steps < 2:
        raise TraceError(
            f"{names}: covers {pieces[-1].end_s - start_s:.0f} s; a backtest needs two steps of {step_s:g} s"
        )
    if steps > STEPS_MAX:
        raise TraceError(f"{names}: {steps} steps of {step_s:g} s; allowed are {STEPS_MAX}")
    edges = np.asarray(start_s + np.arange(steps + 1) * step_s, dtype=np.float64)
    rate, seen = np.full(steps, np.nan), np.zeros(steps, dtype=np.bool_)
    for piece in pieces:
        nearest = math.floor if isinstance(piece.trace, Trace) else math.ceil
        first = max(0, nearest((piece.start_s - start_s) / step_s - 1e-9 * (nearest is math.ceil)))
        last = math.floor((piece.end_s - start_s) / step_s + 1e-9)
        rate[first:last], seen[first:last] = _on_grid(piece, edges[first : last + 1], flat)
    holes = np.isnan(rate)
    rate[holes] = np.interp(np.flatnonzero(holes), np.flatnonzero(~holes), rate[~holes])
    return Load(
        start_s=start_s,
        step_s=step_s,
        rate_per_s=rate,
        seen=seen,
        source=names,
        bad_rows=sum(piece.trace.bad_rows for piece in pieces),
    )


def shift_s(seed: int) -> int:
    """Seconds of the beginning that a seed leaves out; none for seed 1."""
    return 0 if seed == 1 else Random(f"tidegate shift {seed}").randint(1, SHIFT_MAX_S)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Piece:
    """One trace and the time it covers, on the clock that all of them share."""

    trace: Trace | RateTrace
    start_s: float
    end_s: float


def _piece(trace: Trace | RateTrace) -> _Piece:
    if isinstance(trace, RateTrace):
        start_s = trace.origin_s + trace.t_s[0]
        return _Piece(trace=trace, start_s=start_s, end_s=start_s + trace.duration_s)
    if len(trace) < 2:
        raise TraceError(f"{trace.source}: {len(trace)} request; a backtest needs a load over time")
    return _Piece(trace=trace, start_s=trace.origin_s + trace.arrival_s[0], end_s=trace.origin_s + trace.duration_s)


def _on_grid(piece: _Piece, edges: Floats, flat: bool) -> tuple[Floats, Flags]:
    """(mean requests per second, seen) of the steps between `edges`, shape (n + 1,) -> (n,), (n,)."""
    trace = piece.trace
    if isinstance(trace, Trace):
        counts, _ = np.histogram(np.asarray(trace.arrival_s) + trace.origin_s, bins=edges)
        return counts / np.diff(edges), np.ones(len(counts), dtype=np.bool_)
    valid = np.frombuffer(trace.valid, dtype=np.uint8).astype(np.bool_)
    rates = np.asarray(trace.rate_per_s)
    if not valid.any():
        raise TraceError(f"{trace.source}: no step has a value")
    bins = np.asarray(piece.start_s + np.arange(len(trace) + 1) * trace.step_s, dtype=np.float64)
    seen = np.diff(_integral(bins, np.concatenate([valid, valid[-1:]]), edges, flat=True)) / np.diff(edges)
    if flat:
        filled = np.interp(np.arange(len(rates)), np.flatnonzero(valid), rates[valid])
        whole = _integral(bins, np.concatenate([filled, filled[-1:]]), edges, flat=True)
    else:
        centres = ((bins[1:] + bins[:-1]) / 2)[valid]
        knots = np.concatenate([[bins[0] - 1.0], centres, [bins[-1] + 1.0]])
        values = rates[valid]
        whole = _integral(knots, np.concatenate([values[:1], values, values[-1:]]), edges, flat=False)
    return np.diff(whole) / np.diff(edges), seen >= SEEN_SHARE - 1e-9


def _integral(knots: Floats, values: Floats | Flags, at: Floats, *, flat: bool) -> Floats:
    """Integral from the first knot to `at` of the line through (knots, values), or of steps that begin at them; shapes
    (k,), (k,), (n,) -> (n,). `at` lies within the knots.
    """
    values = values.astype(np.float64)
    means = values[:-1] if flat else (values[1:] + values[:-1]) / 2
    sums = np.concatenate([[0.0], np.cumsum(means * np.diff(knots))])
    place = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    height = values[place] if flat else (values[place] + np.interp(at, knots, values)) / 2
    return np.asarray(sums[place] + height * (at - knots[place]))
