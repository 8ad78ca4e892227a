"""Grades of forecasts: decision loss, pinball loss, coverage, and the rolling-origin loop that collects what they are
computed from.

Knows members only through `Forecaster`. An origin is a moment of the past: the member has been fitted on the steps
before a cut and told the steps up to the origin, nothing later; the steps after it are the truth. Decision loss
(contracts, section 6) is in replicas of a fleet that serves the mean of the fitted part with `REPLICAS_MEAN` of them:

    unit = mean / REPLICAS_MEAN     n = ceil(forecast / unit)     D = truth / unit
    loss = mean(max(0, n - D) + 99 max(0, D - n))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from forecasting.forecast import Forecaster
from forecasting.series import Floats, LoadSeries
from forecasting.windows import horizon_steps, window_maxima

REPLICAS_MEAN = 20.0
MISS_COST = 99.0
"""What a missing replica costs, in idle replicas; its best answer is the quantile 0.99."""
DECISION_QUANTILE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """How to judge: steps before `cut` are learned from, then every `stride` steps the maximum over `horizon_s` is
    asked for.
    """

    cut: int
    horizon_s: float
    quantiles: tuple[float, ...] = (DECISION_QUANTILE,)
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origins:
    """Forecasts of the window maximum beside the truth: `forecast` of shape (origins, quantiles), `truth` of shape
    (origins,).
    """

    quantiles: tuple[float, ...]
    forecast: Floats
    truth: Floats
    unit: float

    def decision_loss(self) -> float | None:
        """Mean decision loss of the highest quantile held, None without an origin."""
        if not len(self.truth):
            return None
        return float(np.mean(decision_losses(self.forecast[:, -1], self.truth, self.unit)))

    def pinball(self) -> dict[float, float]:
        """Mean pinball loss per quantile, in the series' unit; empty without an origin."""
        if not len(self.truth):
            return {}
        over = self.truth[:, None] - self.forecast
        levels = np.array(self.quantiles)
        losses = np.maximum(levels * over, (levels - 1.0) * over).mean(axis=0)
        return {quantile: float(loss) for quantile, loss in zip(self.quantiles, losses, strict=True)}

    def coverage(self) -> dict[float, float]:
        """Share of truths at or below the forecast per quantile; empty without an origin."""
        if not len(self.truth):
            return {}
        shares = (self.truth[:, None] <= self.forecast).mean(axis=0)
        return {quantile: float(share) for quantile, share in zip(self.quantiles, shares, strict=True)}


def decision_unit(values: Floats) -> float:
    """Load of one replica: the mean of the fitted part over `REPLICAS_MEAN`; 1 where there has been no load."""
    mean = float(np.nanmean(values))
    return mean / REPLICAS_MEAN if mean > 0 else 1.0


def decision_losses(forecast: Floats, truth: Floats, unit: float) -> Floats:
    """Decision loss of each origin, in replicas; shapes (n,), (n,) -> (n,). A fraction of 1e-9 of a replica is
    rounding, not a need.
    """
    need = np.ceil(forecast / unit - 1e-9)
    demand = truth / unit
    return np.maximum(0.0, need - demand) + MISS_COST * np.maximum(0.0, demand - need)


def decision_loss(forecast: float, truth: float, unit: float) -> float:
    """The same for one origin."""
    need, demand = math.ceil(forecast / unit - 1e-9), truth / unit
    return max(0.0, need - demand) + MISS_COST * max(0.0, demand - need)


def rolling_origin(member: Forecaster, series: LoadSeries, judge: Judge) -> Origins:
    """Fit `member` on the steps before the cut, then forecast the window maximum every `stride` steps to the end.

    Origins whose window touches a gap or passes the end are left out. Raises what the member's `fit` raises, and
    `ValueError` for a cut outside the series.
    """
    if not 0 < judge.cut <= len(series):
        raise ValueError(f"cut: {judge.cut}; allowed is 1 to {len(series)}")
    values = series.values
    maxima = window_maxima(values, horizon_steps(judge.horizon_s, series.step_s))
    member.fit(series.head(judge.cut), np.random.default_rng(0))
    rows: list[tuple[float, ...]] = []
    truths: list[float] = []
    told = judge.cut
    for origin in range(judge.cut, len(values), judge.stride):
        if math.isnan(maxima[origin]):
            continue
        if origin > told:
            member.update(list(values[told:origin]))
            told = origin
        rows.append(member.predict((judge.horizon_s,), judge.quantiles).window_max[0])
        truths.append(float(maxima[origin]))
    return Origins(
        quantiles=judge.quantiles,
        forecast=np.array(rows, dtype=np.float64).reshape(len(rows), len(judge.quantiles)),
        truth=np.array(truths, dtype=np.float64),
        unit=decision_unit(values[: judge.cut]),
    )
