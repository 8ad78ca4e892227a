"""The champion: of several members the one whose forecasts would have cost least, per series, said with its reason.

Knows members only through what they promise and reads no clock. At `fit` every eligible member is fitted on the first
part of the history and scored on the rest, origin by origin (`evaluation.rolling_origin`); then it is fitted on all.
While `update` brings the truth, windows forecast earlier are scored as they end and push out the oldest scores, so a
member that has stopped working loses its place without another fit. Losses are decision losses in replicas, for
windows of `decision_horizon_s`: set it to the start time plus one tick.

Doubt goes to `LastValueGrowth`: while the history is short, while too few windows have been scored, or when nothing
beats it by `CLEAR_LEAD`. A member that holds the place keeps it until another is better by as much.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forecasting.baselines import LastValueGrowth, SeasonalNaive
from forecasting.evaluation import (
    DECISION_QUANTILE,
    Judge,
    decision_loss,
    decision_losses,
    decision_unit,
    rolling_origin,
)
from forecasting.forecast import Forecast
from forecasting.series import LoadSeries, checked
from forecasting.windows import horizon_steps

ORIGINS = 150
"""Windows scored at fit and kept for comparing: enough to see the miss of 1 in 100 now and then, few enough for a fit
of 0.1 s.
"""
ORIGINS_MIN = 20
"""Below this nothing is said about who is better."""
SCORED_SHARE = 1 / 3
"""Newest part of the history that is scored; the rest is what members learn from before it."""
CLEAR_LEAD = 0.03
"""A lead of less than 3% of the loss is noise at this many windows."""
MISS_SHARE_MAX = 0.1
"""A member whose 0.99 quantile missed more than 1 window in 10 does not know this load any more: its forecasts only
advise.
"""
HORIZON_STEPS = 10
"""Decision horizon in steps when none is given."""

Member = LastValueGrowth | SeasonalNaive


@dataclass(frozen=True, slots=True)
class _Pending:
    """A window whose truth is not known yet: the step it begins at and each member's 0.99 quantile of its maximum."""

    origin: int
    forecast: tuple[float, ...]


@dataclass(slots=True)
class _Score:
    """The newest decision losses of one member, and whether each window was a miss."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=ORIGINS))
    missed: deque[bool] = field(default_factory=lambda: deque(maxlen=ORIGINS))

    def mean(self) -> float:
        return sum(self.losses) / len(self.losses) if self.losses else math.inf

    def miss_share(self) -> float:
        return sum(self.missed) / len(self.missed) if self.missed else 0.0


class Champion:
    """Holds the members of one series and answers with the best one's forecast. Implements `Forecaster`.

    `seasons_s`: lengths of seasons worth trying. `min_history_s`: with less history the answer is the fallback's and
    is not trusted. `decision_horizon_s`: length of the windows it is judged by; None = `HORIZON_STEPS` steps.
    """

    name = "champion"

    def __init__(
        self,
        *,
        seasons_s: Sequence[float] = (86400.0, 604800.0),
        min_history_s: float = 7200.0,
        decision_horizon_s: float | None = None,
    ) -> None:
        if decision_horizon_s is not None and not (math.isfinite(decision_horizon_s) and decision_horizon_s > 0):
            raise ValueError(f"decision_horizon_s: {decision_horizon_s}; allowed is a finite number above 0, or None")
        for season_s in seasons_s:
            SeasonalNaive(season_s)  # raises for a length that no season can have
        self._seasons_s = tuple(seasons_s)
        self._min_history_s = min_history_s
        self._asked_horizon_s = decision_horizon_s
        self._members: tuple[Member, ...] = ()
        self._left_out: dict[str, str] = {}

    def fit(self, series: LoadSeries, rng: np.random.Generator) -> None:
        """Score every eligible member on the newest part of `series`, then fit it on all. Raises `NothingKnown` for
        nothing but gaps.
        """
        self._horizon_s = self._asked_horizon_s or HORIZON_STEPS * series.step_s
        self._horizon = horizon_steps(self._horizon_s, series.step_s)
        fallback = LastValueGrowth()
        fallback.fit(series, rng)
        self._left_out = {}
        self._members = (fallback, *self._eligible(series))
        self._scores = [_Score() for _ in self._members]
        self._unit = decision_unit(series.values)
        self._values = list(series.values[-2 * self._horizon :])
        self._first = len(series) - len(self._values)
        self._end = self._asked_at = len(series)
        self._step_s = series.step_s
        self._pending: deque[_Pending] = deque()
        self._leader = 0
        self._stride = 1
        self._score_history(series, rng)
        self._choose(lead=CLEAR_LEAD)

    def update(self, values: Sequence[float]) -> None:
        """Append steps to every member and score the windows that have ended. Raises as `LastValueGrowth.update`
        does.
        """
        self._need_fit()
        fresh = checked(values)
        for member in self._members:
            member.update(list(fresh))
        self._values.extend(fresh.tolist())
        self._end += len(fresh)
        self._score_ended()
        if len(fresh) and self._end - self._asked_at >= self._stride:
            self._asked_at = self._end
            asked = tuple(member.maximum(self._horizon_s, DECISION_QUANTILE) for member in self._members)
            self._pending.append(_Pending(self._end, asked))
        self._choose(lead=CLEAR_LEAD)

    def predict(self, horizons_s: Sequence[float], quantiles: Sequence[float]) -> Forecast:
        """The champion's forecast, with its name and why it is the champion. Raises `ValueError` as members do."""
        self._need_fit()
        forecast = self._members[self._leader].predict(horizons_s, quantiles)
        return replace(forecast, why=f"{self.why}; {forecast.why}", trusted=not self._distrust())

    @property
    def champion(self) -> str:
        """Name of the member that answers now."""
        self._need_fit()
        return self._members[self._leader].name

    @property
    def why(self) -> str:
        """Why that member answers, in a sentence."""
        self._need_fit()
        name, score = self._members[self._leader].name, self._scores[self._leader]
        others = [
            f"{other.name} {held.mean():.3g}"
            for other, held in zip(self._members, self._scores, strict=True)
            if other.name != name and held.losses
        ]
        others += [f"{left_out} left out: {reason}" for left_out, reason in self._left_out.items()]
        beside = f" ({'; '.join(others)})" if others else ""
        if distrust := self._distrust():
            return f"{name} because {distrust}{beside}"
        if not score.losses:
            return f"{name} because no window could be scored yet{beside}"
        windows = f"{len(score.losses)} windows of {self._horizon_s:g} s"
        if self._leader == 0:
            return f"{name}: nothing beats its decision loss {score.mean():.3g} over {windows}{beside}"
        return f"{name}: least decision loss, {score.mean():.3g} over {windows}{beside}"

    def losses(self) -> dict[str, float | None]:
        """Mean decision loss of each member over the windows kept, in replicas; None = not scored."""
        self._need_fit()
        return {
            member.name: score.mean() if score.losses else None
            for member, score in zip(self._members, self._scores, strict=True)
        }

    def _need_fit(self) -> None:
        if not self._members:
            raise ValueError("champion: fit has not been called; allowed is fit, then update and predict")

    def _distrust(self) -> str:
        """Why the forecast should only advise; empty when it may act."""
        history_s = self._end * self._step_s
        if history_s < self._min_history_s:
            return f"{history_s:g} s of history are known and {self._min_history_s:g} s are asked for"
        score = self._scores[self._leader]
        if len(score.missed) >= ORIGINS_MIN and score.miss_share() > MISS_SHARE_MAX:
            missed = f"{score.miss_share():.0%} of the last {len(score.missed)} windows"
            return f"its {DECISION_QUANTILE:g} quantile missed {missed}"
        return ""

    def _eligible(self, series: LoadSeries) -> list[SeasonalNaive]:
        """Seasonal members fitted on all of `series`; those that cannot be are noted with their reason."""
        fitted = []
        for season_s in self._seasons_s:
            member = SeasonalNaive(season_s)
            if problem := member.ineligible(series):
                self._left_out[member.name] = problem
                continue
            member.fit(series, np.random.default_rng(0))
            fitted.append(member)
        return fitted

    def _score_history(self, series: LoadSeries, rng: np.random.Generator) -> None:
        """Rolling origin over the newest part. All members share the cut, so that they are judged by the same
        windows.
        """
        longest = max((member.season_s for member in self._members if isinstance(member, SeasonalNaive)), default=0.0)
        cut = max(math.ceil(len(series) * (1 - SCORED_SHARE)), 2 * round(longest / series.step_s))
        windows = len(series) - self._horizon - cut + 1
        if windows < ORIGINS_MIN:
            if longest:
                self._drop_longest(longest)
                self._score_history(series, rng)
            return
        if series.head(cut).known == 0:
            return
        self._stride = max(1, windows // ORIGINS)
        for member, score in zip(self._members, self._scores, strict=True):
            judged = SeasonalNaive(member.season_s) if isinstance(member, SeasonalNaive) else LastValueGrowth()
            origins = rolling_origin(judged, series, Judge(cut=cut, horizon_s=self._horizon_s, stride=self._stride))
            forecast = origins.forecast[:, 0]
            score.losses.extend(decision_losses(forecast, origins.truth, origins.unit).tolist())
            score.missed.extend((origins.truth > forecast).tolist())

    def _drop_longest(self, season_s: float) -> None:
        kept = []
        for member in self._members:
            if isinstance(member, SeasonalNaive) and member.season_s == season_s:
                self._left_out[member.name] = f"too little history after two seasons of {season_s:g} s to score it"
            else:
                kept.append(member)
        self._members = tuple(kept)
        self._scores = [_Score() for _ in self._members]

    def _score_ended(self) -> None:
        """Score each pending window that lies wholly in the past; one that touches a gap is forgotten."""
        while self._pending and self._pending[0].origin + self._horizon <= self._end:
            window = self._pending.popleft()
            start = window.origin - self._first
            truth = max(
                self._values[start : start + self._horizon], key=lambda load: math.inf if math.isnan(load) else load
            )
            if math.isnan(truth):
                continue
            for score, forecast in zip(self._scores, window.forecast, strict=True):
                score.losses.append(decision_loss(forecast, truth, self._unit))
                score.missed.append(truth > forecast)
        needed = self._pending[0].origin if self._pending else self._end
        if (spare := needed - self._first) > 4096:
            del self._values[:spare]
            self._first = needed

    def _choose(self, lead: float) -> None:
        """Give the place to the member with the least loss if that leads clearly over who holds it."""
        if self._end * self._step_s < self._min_history_s or len(self._scores[0].losses) < ORIGINS_MIN:
            self._leader = 0
            return
        best = min(range(len(self._members)), key=lambda index: self._scores[index].mean())
        if self._scores[best].mean() < (1.0 - lead) * self._scores[self._leader].mean():
            self._leader = best
