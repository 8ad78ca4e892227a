"""The values of forecasting, standard library only: what a forecast is and what a forecaster must do.

A forecast is a table of quantiles per horizon, twice: of the load *at* now + h, and of the *maximum* over (now, now + h]. The second is
what capacity must cover, and it is not the maximum of the first. Rows never decrease along quantiles, and window maxima never decrease
along horizons.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from forecasting.series import LoadSeries

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Quantiles of future load.

    `made_at_s`: end of the last step known, on the series' own clock; `step_s`: the grid; `horizons_s`, ascending, in seconds from
    `made_at_s`; `quantiles`, ascending in (0, 1); `values[h][q]` and `window_max[h][q]` in the series' unit; `champion` the member
    that made it; `why` in a sentence; `trusted` False when it should only advise.
    """

    made_at_s: float
    step_s: float
    horizons_s: tuple[float, ...]
    quantiles: tuple[float, ...]
    values: Table
    window_max: Table
    champion: str
    why: str
    trusted: bool = True

    def at(self, horizon_s: float, quantile: float) -> float:
        """Quantile of the load at now + `horizon_s`, linear between the horizons and quantiles held, flat beyond them."""
        return _interpolate(self.horizons_s, self.quantiles, self.values, horizon_s, quantile)

    def maximum_within(self, horizon_s: float, quantile: float) -> float:
        """Quantile of the largest load over (now, now + `horizon_s`], interpolated in the same way."""
        return _interpolate(self.horizons_s, self.quantiles, self.window_max, horizon_s, quantile)


class Forecaster(Protocol):
    """A member: learns from one series, is told each new value, answers with quantiles. Never reads a clock."""

    name: str

    def fit(self, series: LoadSeries, rng: np.random.Generator) -> None:
        """Learn from `series` (NaN = gap). Deterministic for equal `series` and `rng` state."""

    def update(self, values: Sequence[float]) -> None:
        """Append the newest steps (NaN = gap) without learning again; cheap enough for every tick."""

    def predict(self, horizons_s: Sequence[float], quantiles: Sequence[float]) -> Forecast:
        """Quantiles for each horizon. Raises `ValueError` before the first `fit`, or for horizons or quantiles out of range."""


def _weights(grid: Sequence[float], x: float) -> tuple[int, int, float]:
    """Neighbours of x in an ascending grid and the weight of the upper one; flat outside."""
    upper = bisect_left(grid, x)
    if upper == 0:
        return 0, 0, 0.0
    if upper == len(grid):
        return upper - 1, upper - 1, 0.0
    below, above = grid[upper - 1], grid[upper]
    return upper - 1, upper, (x - below) / (above - below)


def _interpolate(rows: Sequence[float], columns: Sequence[float], table: Table, row: float, column: float) -> float:
    r0, r1, rw = _weights(rows, row)
    c0, c1, cw = _weights(columns, column)
    low = table[r0][c0] * (1 - cw) + table[r0][c1] * cw
    high = table[r1][c0] * (1 - cw) + table[r1][c1] * cw
    return low * (1 - rw) + high * rw
