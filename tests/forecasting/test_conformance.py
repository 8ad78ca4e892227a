"""What every forecaster must do. A new member is one row of `MEMBERS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from forecasting import Champion, Forecast, Forecaster
from forecasting.baselines import LastValueGrowth, SeasonalNaive
from forecasting.series import Floats, NegativeLoad, NonFiniteLoad, NothingKnown, WrongShape
from tests.forecasting.loads import seasonal, series, wandering

MEMBERS: dict[str, Callable[[], Forecaster]] = {
    "last-value": LastValueGrowth,
    "seasonal": lambda: SeasonalNaive(48.0),
    "champion": lambda: Champion(seasons_s=(48.0, 336.0), min_history_s=60.0, decision_horizon_s=12.0),
}
HORIZONS_S = (1.0, 2.0, 5.0, 12.0, 30.0, 60.0)
QUANTILES = (0.01, 0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.995)


def with_gaps(values: Floats, *gaps: slice) -> Floats:
    holed = values.copy()
    for gap in gaps:
        holed[gap] = math.nan
    return holed


def with_spike(values: Floats) -> Floats:
    spiked = values.copy()
    spiked[len(values) // 2] = 5000.0
    return spiked


LOADS: dict[str, Floats] = {
    "seasonal": seasonal(12),
    "wandering": wandering(600),
    "all zero": np.zeros(300),
    "constant": np.full(300, 7.0),
    "one spike": with_spike(np.full(400, 7.0)),
    "sparse": (np.arange(400) % 97 == 0).astype(np.float64),
    "night of zero": np.tile(np.r_[np.zeros(24), np.full(24, 30.0)], 8),
    "gaps": with_gaps(seasonal(12), slice(40, 60), slice(200, 201), slice(300, 380)),
    "ends in a gap": with_gaps(seasonal(12), slice(560, 576)),
    "begins in a gap": with_gaps(seasonal(12), slice(0, 60)),
    "two seasons": seasonal(2),
    "from nothing": np.r_[np.zeros(200), np.full(4, 50.0)],
    "tiny": seasonal(12) * 1e-5,
    "huge": seasonal(12) * 1e9,
}


def fitted(name: str, values: Floats) -> Forecaster:
    member = MEMBERS[name]()
    member.fit(series(values), np.random.default_rng(0))
    return member


def forecast_of(name: str, values: Floats) -> Forecast:
    return fitted(name, values).predict(HORIZONS_S, QUANTILES)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", MEMBERS)
def test_tables_are_whole_and_never_cross(name: str, load: str) -> None:
    values = LOADS[load]
    forecast = forecast_of(name, values)
    assert (forecast.horizons_s, forecast.quantiles) == (HORIZONS_S, QUANTILES)
    assert forecast.made_at_s == len(values)
    assert forecast.champion
    assert forecast.why
    for table in (forecast.values, forecast.window_max):
        assert np.shape(table) == (len(HORIZONS_S), len(QUANTILES))
        assert np.isfinite(table).all()
        assert (np.array(table) >= 0).all()
        assert all(low <= high for row in table for low, high in pairwise(row))
    for level_row, maximum_row in zip(forecast.values, forecast.window_max, strict=True):
        assert all(level <= maximum for level, maximum in zip(level_row, maximum_row, strict=True))
    for shorter, longer in pairwise(forecast.window_max):
        assert all(before <= after for before, after in zip(shorter, longer, strict=True))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", MEMBERS)
def test_answers_stay_near_what_was_seen(name: str, load: str) -> None:
    """Sane: a tail beyond what was learned may exceed the largest load ever seen, but not wildly."""
    forecast = forecast_of(name, LOADS[load])
    assert forecast.maximum_within(60.0, 0.995) <= 6.0 * float(np.nanmax(LOADS[load])) + 1e-5


@pytest.mark.parametrize("name", MEMBERS)
def test_equal_input_equal_answer(name: str) -> None:
    assert forecast_of(name, LOADS["gaps"]) == forecast_of(name, LOADS["gaps"])


@pytest.mark.parametrize("name", MEMBERS)
def test_the_future_changes_nothing(name: str) -> None:
    """Fit on a part and be told more: what comes after a step must not change what is said at it."""
    values, other = seasonal(12, seed=1), seasonal(12, seed=1)
    other[500:] = seasonal(12, seed=2)[500:] + 300.0
    said: list[list[Forecast]] = []
    for future in (values, other):
        member = fitted(name, future[:400])
        answers = [member.predict(HORIZONS_S, QUANTILES)]
        for start in range(400, 500, 20):
            member.update(list(future[start : start + 20]))
            answers.append(member.predict(HORIZONS_S, QUANTILES))
        said.append(answers)
    assert said[0] == said[1]


@pytest.mark.parametrize("name", MEMBERS)
def test_the_past_cannot_be_changed_from_outside(name: str) -> None:
    values = seasonal(12)
    member, told = fitted(name, values[:500]), list(values[500:560])
    member.update(told)
    before = member.predict(HORIZONS_S, QUANTILES)
    values[:], told[:] = 0.0, [0.0] * len(told)
    assert member.predict(HORIZONS_S, QUANTILES) == before


@pytest.mark.parametrize("name", MEMBERS)
def test_update_moves_the_clock_and_the_level(name: str) -> None:
    values = seasonal(12)
    member = fitted(name, values[:500])
    member.update([])
    assert member.predict(HORIZONS_S, QUANTILES).made_at_s == 500.0
    for load in values[500:530]:
        member.update([float(load)])
    one_by_one = member.predict(HORIZONS_S, QUANTILES)
    whole = fitted(name, values[:500])
    whole.update(list(values[500:530]))
    at_once = whole.predict(HORIZONS_S, QUANTILES)
    assert one_by_one.made_at_s == at_once.made_at_s == 530.0
    assert (one_by_one.values, one_by_one.window_max) == (at_once.values, at_once.window_max)


@pytest.mark.parametrize("name", ["last-value", "seasonal"])
def test_update_comes_close_to_a_fit_on_the_longer_series(name: str) -> None:
    """Levels are as new as in a fit; errors are as old as the last fit, so quantiles differ a little."""
    values = seasonal(14)
    told = fitted(name, values[:600])
    told.update(list(values[600:]))
    again = fitted(name, values)
    for quantile in (0.5, 0.9):
        new = again.predict((12.0,), (quantile,)).maximum_within(12.0, quantile)
        assert told.predict((12.0,), (quantile,)).maximum_within(12.0, quantile) == pytest.approx(new, rel=0.12)


@pytest.mark.parametrize("name", MEMBERS)
def test_constant_and_zero_loads_stay_what_they_are(name: str) -> None:
    for level in (0.0, 7.0):
        forecast = forecast_of(name, np.full(3000, level))
        assert np.allclose(forecast.values, level)
        assert np.allclose(forecast.window_max, level)


@pytest.mark.parametrize("name", ["last-value", "champion"])
@pytest.mark.parametrize("steps", [1, 2, 5, 30])
def test_a_short_history_gives_a_wide_answer(name: str, steps: int) -> None:
    forecast = forecast_of(name, np.full(steps, 20.0))
    row = dict(zip(QUANTILES, forecast.window_max[3], strict=True))
    assert row[0.5] == pytest.approx(20.0, rel=0.05)
    assert 22.0 < row[0.95] < 60.0
    assert forecast.maximum_within(60.0, 0.995) < 120.0


@pytest.mark.parametrize("name", MEMBERS)
def test_what_cannot_be_asked_or_told(name: str) -> None:
    untaught = MEMBERS[name]()
    with pytest.raises(ValueError, match="fit has not been called"):
        untaught.predict((1.0,), (0.5,))
    with pytest.raises(ValueError, match="fit has not been called"):
        untaught.update([1.0])
    member = fitted(name, seasonal(12))
    for horizons_s in ((), (0.0,), (-1.0,), (math.nan,), (math.inf,), (5.0, 1.0), (1.0, 1.0)):
        with pytest.raises(ValueError, match="horizons_s"):
            member.predict(horizons_s, (0.5,))
    for quantiles in ((), (0.0,), (1.0,), (math.nan,), (0.9, 0.5)):
        with pytest.raises(ValueError, match="quantiles"):
            member.predict((1.0,), quantiles)
    before = member.predict((1.0,), (0.5,))
    for bad, error in (([-1.0], NegativeLoad), ([math.inf], NonFiniteLoad), ([[1.0]], WrongShape)):
        with pytest.raises(error):
            member.update(bad)  # type: ignore[arg-type]  # the point of the test
    assert member.predict((1.0,), (0.5,)) == before
    with pytest.raises(NothingKnown, match="none of them known"):
        untaught.fit(series(np.full(200, math.nan)), np.random.default_rng(0))


@pytest.mark.parametrize("name", MEMBERS)
def test_a_gap_while_running_is_not_a_drop(name: str) -> None:
    """The collector goes silent at the plateau: what is expected stays up there, and does not fall with the silence."""
    values = seasonal(12)
    member = fitted(name, values[: 11 * 48 + 24])
    before = member.predict((3.0,), (0.5,)).maximum_within(3.0, 0.5)
    member.update([math.nan] * 4)
    during = member.predict((3.0,), (0.5,)).maximum_within(3.0, 0.5)
    assert during > 0.75 * before
