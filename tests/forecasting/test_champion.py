"""Who becomes champion, when the place changes hands, and what is said about it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from forecasting import Champion, LoadSeries
from forecasting.baselines import LastValueGrowth, SeasonalNaive
from forecasting.evaluation import Judge, decision_loss, decision_losses, decision_unit, rolling_origin
from forecasting.series import Floats, ShortHistory
from tests.forecasting.loads import seasonal, series, wandering


def champion_of(values: Floats, *, step_s: float = 1.0, **settings: Any) -> Champion:
    champion = Champion(**{"seasons_s": (48.0,), "min_history_s": 60.0, "decision_horizon_s": 12.0, **settings})
    champion.fit(series(values, step_s), np.random.default_rng(0))
    return champion


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_season_is_won_by_the_seasonal_member(seed: int) -> None:
    champion = champion_of(seasonal(20, seed=seed))
    assert champion.champion == "seasonal-48s"
    losses = champion.losses()
    assert losses["seasonal-48s"] is not None
    assert losses["last-value"] is not None
    assert losses["seasonal-48s"] < losses["last-value"]
    forecast = champion.predict((12.0,), (0.95,))
    assert forecast.champion == "seasonal-48s"
    assert forecast.trusted
    assert "least decision loss" in forecast.why
    assert "last-value" in forecast.why


@pytest.mark.parametrize("seed", range(4))
def test_the_last_value_yields_only_to_a_clear_lead(seed: int) -> None:
    champion = champion_of(wandering(900, seed=seed))
    losses = {name: loss for name, loss in champion.losses().items() if loss is not None}
    best = min(losses, key=lambda name: losses[name])
    clear = losses[best] < 0.97 * losses["last-value"]
    assert champion.champion == (best if clear else "last-value")
    assert ("nothing beats its decision loss" in champion.why) == (champion.champion == "last-value")


@pytest.mark.parametrize(
    ("steps", "settings", "reason"),
    [
        (50, {"min_history_s": 100.0}, "last-value because 50 s of history are known and 100 s are asked for"),
        (90, {}, "1.9 seasons of 48 s are known, two are needed"),
        (110, {}, "too little history after two seasons of 48 s to score it"),
        (400, {"seasons_s": (48.5,)}, "a season of 48.5 s is not a whole number of steps of 1 s"),
        (20, {"min_history_s": 10.0}, "no window could be scored yet"),
    ],
)
def test_doubt_goes_to_the_last_value_and_says_why(steps: int, settings: dict[str, Any], reason: str) -> None:
    champion = champion_of(seasonal(20)[:steps], **settings)
    assert champion.champion == "last-value"
    assert reason in champion.why
    assert champion.predict((1.0,), (0.5,)).trusted == ("history are known" not in reason)


def test_the_window_maximum_covers_what_comes() -> None:
    """q = 0.95 over windows of 12 steps on fresh cycles: about 95% of them, for about a fifth more than came."""
    covered, width = [], []
    for seed in range(5):
        values = seasonal(26, seed=seed)
        member = Champion(seasons_s=(48.0,), min_history_s=60.0, decision_horizon_s=12.0)
        judged = rolling_origin(member, series(values), Judge(cut=960, horizon_s=12.0, quantiles=(0.95,), stride=3))
        covered.append(judged.coverage()[0.95])
        width.append(float(np.mean(judged.forecast[:, 0] / judged.truth)))
    assert 0.9 <= np.mean(covered) <= 0.99
    assert 1.0 < np.mean(width) < 1.4


def test_a_member_that_stops_working_loses_its_place() -> None:
    """The cycle goes from 48 steps to 33, and what was a season is noise."""
    champion = champion_of(seasonal(20))
    assert champion.champion == "seasonal-48s"
    for load in seasonal(12, season=33):
        champion.update([float(load)])
    assert champion.champion == "last-value"


def test_a_quantile_that_keeps_missing_only_advises() -> None:
    champion = champion_of(seasonal(20), seasons_s=())
    grown = 60.0 * np.exp(0.01 * np.arange(400))
    for load in grown:
        champion.update([float(load)])
    forecast = champion.predict((12.0,), (0.99,))
    assert not forecast.trusted
    assert "its 0.99 quantile missed" in forecast.why


def test_windows_with_gaps_are_not_scored() -> None:
    champion = champion_of(seasonal(20))
    before = champion.losses()
    champion.update([math.nan] * 200)
    champion.update([10.0] * 5)
    assert champion.losses() == before


def test_memory_stays_bounded_while_running() -> None:
    champion = champion_of(seasonal(20))
    for _ in range(0, 9000, 5):
        champion.update([50.0] * 5)
    assert len(champion._values) < 3 * 4096


def test_long_seasons_on_a_minute_grid() -> None:
    day = seasonal(9, season=1440, peak=200.0)
    champion = Champion()
    champion.fit(LoadSeries(0.0, 60.0, day), np.random.default_rng(0))
    assert champion.champion == "seasonal-86400s"
    assert "seasonal-604800s left out: 1.3 seasons of 604800 s are known, two are needed" in champion.why


def test_settings_out_of_range() -> None:
    with pytest.raises(ValueError, match="decision_horizon_s: 0"):
        Champion(decision_horizon_s=0.0)
    with pytest.raises(ValueError, match="season_s: -1"):
        Champion(seasons_s=(-1.0,))
    with pytest.raises(ShortHistory, match="two are needed"):
        SeasonalNaive(48.0).fit(series(seasonal(1)), np.random.default_rng(0))


def test_decision_loss_is_in_replicas() -> None:
    """Mean 40 = 20 replicas of 2; forecast 9 -> 5 replicas; truth 8 -> 4 (one idle), truth 12 -> 6 (one short)."""
    assert decision_unit(np.array([40.0, math.nan, 40.0])) == 2.0
    assert decision_unit(np.zeros(3)) == 1.0
    assert [decision_loss(9.0, truth, 2.0) for truth in (8.0, 10.0, 12.0)] == [1.0, 0.0, 99.0]
    truths = np.array([8.0, 10.0, 12.0])
    assert list(decision_losses(np.full(3, 9.0), truths, 2.0)) == [1.0, 0.0, 99.0]


def test_rolling_origin_grades() -> None:
    values = np.full(200, 6.0)
    origins = rolling_origin(LastValueGrowth(), series(values), Judge(cut=150, horizon_s=5.0, quantiles=(0.5, 0.99)))
    assert len(origins.truth) == 46
    assert origins.coverage() == {0.5: pytest.approx(1.0), 0.99: pytest.approx(1.0)}
    assert origins.pinball() == {0.5: pytest.approx(0.0, abs=1e-6), 0.99: pytest.approx(0.0, abs=1e-6)}
    assert origins.decision_loss() == pytest.approx(0.0, abs=1e-6)
    none = rolling_origin(LastValueGrowth(), series(values), Judge(cut=199, horizon_s=5.0))
    assert (none.decision_loss(), none.pinball(), none.coverage()) == (None, {}, {})
    with pytest.raises(ValueError, match="cut: 0; allowed is 1 to 200"):
        rolling_origin(LastValueGrowth(), series(values), Judge(cut=0, horizon_s=5.0))
