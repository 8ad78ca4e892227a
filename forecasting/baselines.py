"""The baseline members: the last level with learned growth, and earlier seasons with learned errors.

Neither knows the other, the champion or a clock. Both work alike: a *base* explains the load h steps ahead and,
separately, the maximum of the next h steps (a quantile of a maximum is not the maximum of quantiles), and an
`ErrorPool` of past (base, outcome) pairs turns the base now into quantiles. Pairs are taken when a horizon is first
asked for, from the fitted steps only, and kept until the next fit, so `update` merely appends: after it a member
answers from newer levels with errors as old as its fit.

Trade-offs: a base is one number, so neither member sees a trend; a spike that is over still raises the level for
`LEVEL_STEPS` steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forecasting.forecast import Forecast, Table
from forecasting.pools import ErrorPool
from forecasting.series import Floats, LoadSeries, NothingKnown, ShortHistory, checked
from forecasting.windows import at_lag, horizon_steps, mean_of_known, trailing_means, window_maxima

LEVEL_STEPS = 3
"""Steps whose mean is the level now: fewer follow noise, more lag behind a ramp."""
FLOOR_SHARE = 0.02
"""Additive floor of all ratios, as a share of the fitted mean: loads below it count as nearly none."""
FLOOR_MIN = 1e-6


def check_asked(horizons_s: Sequence[float], quantiles: Sequence[float]) -> None:
    """Raises `ValueError` unless horizons are finite, above 0 and ascending, and quantiles inside (0, 1) and
    ascending.
    """
    for name, row, top in (("horizons_s", horizons_s, math.inf), ("quantiles", quantiles, 1.0)):
        if not row or not all(0.0 < value < top for value in row):
            raise ValueError(f"{name}: {tuple(row)}; allowed is at least one number above 0 and below {top:g}")
        if any(later <= earlier for earlier, later in pairwise(row)):
            raise ValueError(f"{name}: {tuple(row)}; allowed is ascending order")


class _Member(ABC):
    """What both baselines share: the growing history, its checks, and turning pools into a consistent `Forecast`."""

    name: str

    def __init__(self) -> None:
        self._steps = np.empty(0)
        self._count = 0
        self._fitted = 0
        self._start_s = 0.0
        self._step_s = 0.0
        self._floor = FLOOR_MIN

    def fit(self, series: LoadSeries, rng: np.random.Generator) -> None:
        """Learn from `series`; deterministic, `rng` is not drawn from. Raises `NothingKnown` when all of it is gaps."""
        if series.known == 0:
            raise NothingKnown(
                f"values: {len(series)} steps, none of them known; allowed is at least one that is not a gap"
            )
        self._steps = series.values
        self._count = self._fitted = len(series)
        self._start_s, self._step_s = series.start_s, series.step_s
        self._floor = max(FLOOR_MIN, FLOOR_SHARE * float(np.nanmean(series.values)))
        self._learn()

    def update(self, values: Sequence[float]) -> None:
        """Append steps (NaN = gap). Raises a `SeriesError` for values that no series may hold, `ValueError` before
        `fit`.
        """
        self._need_fit()
        fresh = checked(values)
        if self._count + len(fresh) > len(self._steps) or not self._steps.flags.writeable:
            longer = np.empty(self._count + len(fresh) + max(1024, self._count // 4))
            longer[: self._count] = self._steps[: self._count]
            self._steps = longer
        self._steps[self._count : self._count + len(fresh)] = fresh
        self._count += len(fresh)

    def predict(self, horizons_s: Sequence[float], quantiles: Sequence[float]) -> Forecast:
        """Quantiles for each horizon, never crossing. Raises `ValueError` before `fit` or for horizons or quantiles
        out of range.
        """
        self._need_fit()
        check_asked(horizons_s, quantiles)
        values: list[tuple[float, ...]] = []
        maxima: list[tuple[float, ...]] = []
        for horizon_s in horizons_s:
            level, largest = self._rows(horizon_steps(horizon_s, self._step_s), quantiles)
            floor = maxima[-1] if maxima else (0.0,) * len(level)
            # A longer window holds the shorter one and its own last step, so its maximum can be no less than either.
            maxima.append(tuple(max(row) for row in zip(level, largest, floor, strict=True)))
            values.append(tuple(level))
        return self._forecast(horizons_s, quantiles, tuple(values), tuple(maxima))

    def maximum(self, horizon_s: float, quantile: float) -> float:
        """One quantile of the maximum over (now, now + horizon_s]: what scoring needs, at a fraction of `predict`'s
        cost.
        """
        self._need_fit()
        return self._row(horizon_steps(horizon_s, self._step_s), (quantile,), largest=True)[0]

    def _forecast(
        self, horizons_s: Sequence[float], quantiles: Sequence[float], values: Table, maxima: Table
    ) -> Forecast:
        return Forecast(
            made_at_s=self._start_s + self._count * self._step_s,
            step_s=self._step_s,
            horizons_s=tuple(horizons_s),
            quantiles=tuple(quantiles),
            values=values,
            window_max=maxima,
            champion=self.name,
            why=self._why(),
        )

    def _need_fit(self) -> None:
        if self._fitted == 0:
            raise ValueError(f"{self.name}: fit has not been called; allowed is fit, then update and predict")

    def _known(self) -> Floats:
        return self._steps[: self._count]

    def _rows(self, steps: int, quantiles: Sequence[float]) -> tuple[list[float], list[float]]:
        return self._row(steps, quantiles, largest=False), self._row(steps, quantiles, largest=True)

    @abstractmethod
    def _row(self, steps: int, quantiles: Sequence[float], *, largest: bool) -> list[float]:
        """Quantiles of the load `steps` ahead, or of the largest one until then."""

    @abstractmethod
    def _learn(self) -> None:
        """Take what is common to all horizons from the fitted steps, and forget what was learned before."""

    @abstractmethod
    def _why(self) -> str:
        """What the answer stands on now, in a sentence."""


class LastValueGrowth(_Member):
    """The last level (mean of the last `LEVEL_STEPS` known steps), grown as it has grown before from levels like it.

    When the newest steps are a gap of g steps, the level is the last one known and horizons count from there:
    uncertainty grows with the gap by itself.
    """

    name = "last-value"

    def _learn(self) -> None:
        self._pools: dict[tuple[int, bool], ErrorPool] = {}
        self._levels = trailing_means(self._known(), LEVEL_STEPS)

    def _row(self, steps: int, quantiles: Sequence[float], *, largest: bool) -> list[float]:
        level, age = self._level_now()
        # Beyond half of the fitted steps there would be no pairs left to learn from.
        reach = max(steps, min(steps + age, self._fitted // 2))
        return self._pool(reach, largest).quantiles(level, quantiles)

    def _level_now(self) -> tuple[float, int]:
        """(level, steps since the newest known one)."""
        known = self._known()
        age = 0
        while math.isnan(known[self._count - 1 - age]):
            age += 1
        end = self._count - age
        recent = known[max(0, end - LEVEL_STEPS) : end]
        return float(np.mean(recent[~np.isnan(recent)])), age

    def _pool(self, steps: int, largest: bool) -> ErrorPool:
        key = (steps, largest)
        if key not in self._pools:
            fitted = self._steps[: self._fitted]
            ahead = at_lag(window_maxima(fitted, steps), -1) if largest else at_lag(fitted, -steps)
            self._pools[key] = ErrorPool(self._levels, ahead, floor=self._floor, span=steps)
        return self._pools[key]

    def _why(self) -> str:
        level, age = self._level_now()
        stale = f", {age} steps old" if age else ""
        return f"last level {level:.3g}{stale}, grown as in the last {self._fitted} steps"


@dataclass(frozen=True, slots=True)
class _SeasonalFit:
    """What one horizon learned: how far today's deviation from earlier seasons carries on (0..1), and the errors
    after that.
    """

    follow: float
    pool: ErrorPool


class SeasonalNaive(_Member):
    """The same time in up to `seasons` earlier seasons, moved by today's deviation as far as that has helped before.

    Base of the window h steps ahead: mean over earlier seasons of the same window (its level, or its maximum), times
    r ** follow, where r is the recent level over the same stretch of earlier seasons and `follow` in [0, 1] is the
    least-squares slope of the log error on log r, per horizon, shrunk towards 0. follow = 0 is the plain seasonal
    naive, 1 is yesterday's shape on today's level. Where earlier seasons are all gaps it answers as `LastValueGrowth`
    does.
    """

    def __init__(self, season_s: float, *, seasons: int = 4) -> None:
        super().__init__()
        if not (math.isfinite(season_s) and season_s > 0) or seasons < 1:
            raise ValueError(
                f"season_s: {season_s}, seasons: {seasons}; allowed is a season above 0 s and at least one of them"
            )
        self.name = f"seasonal-{season_s:g}s"
        self.season_s = season_s
        self._seasons = seasons
        self._understudy = LastValueGrowth()

    def ineligible(self, series: LoadSeries) -> str:
        """Why it cannot learn from `series`, in a sentence; empty when it can."""
        steps = self.season_s / series.step_s
        if abs(steps - round(steps)) > 1e-6 or round(steps) < 2:
            return (
                f"a season of {self.season_s:g} s is not a whole number of steps of {series.step_s:g} s, two at least"
            )
        if len(series) < 2 * round(steps):
            seasons = len(series) / steps
            return f"{seasons:.1f} seasons of {self.season_s:g} s are known, two are needed"
        return ""

    def fit(self, series: LoadSeries, rng: np.random.Generator) -> None:
        """As for every member. Raises `ShortHistory` when `ineligible` has something to say."""
        if problem := self.ineligible(series):
            raise ShortHistory(problem)
        super().fit(series, rng)
        self._understudy.fit(series, rng)

    def update(self, values: Sequence[float]) -> None:
        """Append steps (NaN = gap)."""
        super().update(values)
        self._understudy.update(values)

    def _learn(self) -> None:
        self._season = round(self.season_s / self._step_s)
        self._level_steps = max(LEVEL_STEPS, self._season // 12)
        self._fits: dict[tuple[int, bool], _SeasonalFit] = {}
        levels = trailing_means(self._known(), self._level_steps)
        self._deviation = self._log_ratio(levels, self._past(levels, 1))

    def _past(self, values: Floats, first: int) -> Floats:
        """Mean over `seasons` earlier seasons, the nearest `first` seasons ago, at each step; shape of `values`."""
        lags = range(first, first + self._seasons)
        return mean_of_known(np.stack([at_lag(values, lag * self._season) for lag in lags]))

    def _log_ratio(self, above: Floats, below: Floats) -> Floats:
        return np.log((above + self._floor) / (below + self._floor))

    def _nearest(self, steps: int) -> int:
        """How many seasons ago the newest window of `steps` lies that is wholly known by now."""
        return -(-steps // self._season)

    def _learned(self, steps: int, largest: bool) -> _SeasonalFit:
        key = (steps, largest)
        if key not in self._fits:
            fitted = self._steps[: self._fitted]
            ahead = at_lag(window_maxima(fitted, steps), -1) if largest else at_lag(fitted, -steps)
            base = self._past(ahead, self._nearest(steps))
            error, deviation = self._log_ratio(ahead, base), self._deviation
            both = ~(np.isnan(error) | np.isnan(deviation))
            # 1e-4: deviations of less than 1% teach nothing.
            energy = float(np.square(deviation[both]).sum()) + 1e-4 * max(1, int(both.sum()))
            follow = min(1.0, max(0.0, float((error[both] * deviation[both]).sum()) / energy))
            moved = (base + self._floor) * np.exp(follow * np.nan_to_num(deviation)) - self._floor
            self._fits[key] = _SeasonalFit(
                follow, ErrorPool(np.maximum(moved, 0.0), ahead, floor=self._floor, span=steps)
            )
        return self._fits[key]

    def _row(self, steps: int, quantiles: Sequence[float], *, largest: bool) -> list[float]:
        base = self._base_now(steps, largest)
        if math.isnan(base):
            return self._understudy._row(steps, quantiles, largest=largest)
        learned = self._learned(steps, largest)
        moved = (base + self._floor) * math.exp(learned.follow * self._deviation_now()) - self._floor
        return learned.pool.quantiles(max(0.0, moved), quantiles)

    def _base_now(self, steps: int, largest: bool) -> float:
        """Mean over earlier seasons of the window that begins now, NaN when none of them is known."""
        known, found = self._known(), []
        first = self._nearest(steps)
        for lag in range(first, first + self._seasons):
            start = self._count - lag * self._season
            if start < 0:
                break
            window = known[start : start + steps]
            value = float(window.max() if largest else window[-1])
            if not math.isnan(value):
                found.append(value)
        return sum(found) / len(found) if found else math.nan

    def _deviation_now(self) -> float:
        """Log ratio of the recent level to the same stretch of earlier seasons; 0 while either is unknown."""
        known, stretches = self._known(), []
        for lag in range(self._seasons + 1):
            end = self._count - lag * self._season
            if end <= 0:
                break
            stretch = known[max(0, end - self._level_steps) : end]
            stretch = stretch[~np.isnan(stretch)]
            stretches.append(float(stretch.mean()) if len(stretch) else math.nan)
        now, past = stretches[0], [level for level in stretches[1:] if not math.isnan(level)]
        if math.isnan(now) or not past:
            return 0.0
        return math.log((now + self._floor) / (sum(past) / len(past) + self._floor))

    def _why(self) -> str:
        seasons = min(self._seasons, self._count // self._season)
        apart = math.expm1(self._deviation_now())
        return f"the same time in the last {seasons} seasons of {self.season_s:g} s; now {apart:+.0%} from them"
