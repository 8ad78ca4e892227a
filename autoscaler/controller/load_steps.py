"""Arrivals per second -> steps of a grid, for the history and the forecast. Pure.

A sample brings the seconds that are new, the last of which ended about when it was read. Seconds are put on the
epoch's grid one after another, so a read that comes a little early or late neither counts a second twice nor leaves a
hole; only a shift of more than two seconds (a gap that nobody reported, a clock that was set) moves them. A step is
known when at least half of its seconds are: its value is their mean, in requests per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SHIFT_MAX_S = 2
"""A tick may be this late before its seconds are moved."""


class LoadSteps:
    """Collects the seconds of one policy. `step_s`: the grid, in seconds, whole steps counted from the epoch."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self._next_second: int | None = None
        self._step: int | None = None
        self._known: list[float] = []

    def add(self, arrivals: Sequence[float | None], epoch_s: float) -> list[tuple[float, list[float | None]]]:
        """Take new seconds in. Returns runs of completed steps: (epoch of the first, values with None for gaps)."""
        second = self._place(len(arrivals), epoch_s)
        done: list[tuple[int, float | None]] = []
        for value in arrivals:
            step = math.floor(second / self.step_s + 1e-9)
            if self._step is not None and step != self._step:
                done.append(self._completed())
            self._step = step
            if value is not None and math.isfinite(value) and value >= 0:
                self._known.append(value)
            second += 1
        if arrivals:
            self._next_second = second
            following = math.floor(second / self.step_s + 1e-9)
            if self._step is not None and following != self._step:
                done.append(self._completed())
                self._step = following
        return [(step * self.step_s, [value for _, value in run]) for step, run in _runs(done)]

    def _place(self, count: int, epoch_s: float) -> int:
        """The epoch second of the first of `count` new seconds, the last of which has just ended."""
        ends = math.floor(epoch_s)
        if self._next_second is None or abs(self._next_second + count - ends) > SHIFT_MAX_S:
            return ends - count
        return self._next_second

    def _completed(self) -> tuple[int, float | None]:
        """Close the step at hand."""
        assert self._step is not None
        known, self._known = self._known, []
        return self._step, (sum(known) / len(known) if 2 * len(known) >= max(1, round(self.step_s)) else None)


def _runs(steps: Sequence[tuple[int, float | None]]) -> list[tuple[int, list[tuple[int, float | None]]]]:
    """Consecutive steps together."""
    runs: list[tuple[int, list[tuple[int, float | None]]]] = []
    for row in steps:
        if runs and runs[-1][1][-1][0] + 1 == row[0]:
            runs[-1][1].append(row)
        else:
            runs.append((row[0], [row]))
    return runs
