"""The table of forecasts: what the controller's forecaster says, kept on disk, blind to the future."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.controller.forecasts import champion
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecaster
from forecasting.series import LoadSeries
from loadtests import backtest_forecasts
from loadtests.backtest_forecasts import ForecastTable, forecast_table, grid_of
from loadtests.backtest_run import run_law
from loadtests.backtest_sweep import law_of
from loadtests.backtest_world import Setting, World, world_of
from tests.loadtests.backtest_loads import daily, policy


def a_world(hours: float = 12.0) -> World:
    prediction = {"seasonsSeconds": [21600], "minHistorySeconds": 3600}
    return world_of(daily(hours, gaps=True), policy(prediction=prediction), Setting(judge_from_day=0.05))


def same(one: ForecastTable, other: ForecastTable, rows: int | None = None) -> None:
    assert np.array_equal(one.window_max[:rows], other.window_max[:rows], equal_nan=True)
    assert np.array_equal(one.values[:rows], other.values[:rows], equal_nan=True)
    assert one.words[:rows] == other.words[:rows]


def test_a_minute_is_the_mean_of_what_was_seen_of_it() -> None:
    world = a_world(2.0)
    step_s, series = grid_of(world)
    assert (step_s, len(series)) == (60.0, 120)
    for place in (0, 57, 119):
        part = slice(4 * place, 4 * place + 4)
        seen = world.load.seen[part]
        expected = world.shown()[part][seen].mean() if seen.sum() >= 2 else math.nan
        assert series[place] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(series).any()


def test_rows_are_what_the_champion_says_from_the_steps_before() -> None:
    world = a_world(3.0)
    table, (_, series) = forecast_table(world, None), grid_of(world)
    # With 3,600 s of known history the first forecast is made after the 60th known minute.
    first = int(np.flatnonzero(np.cumsum(~np.isnan(series)) >= 60)[0])
    assert table.forecast(first - 1) is None
    forecaster = champion(world.policy, 135.0)
    forecaster.fit(LoadSeries(0.0, 60.0, series[: first + 1]), np.random.default_rng(0))
    for row in (first, first + 1):
        made = table.forecast(row)
        assert made is not None
        plain = forecaster.predict(made.horizons_s, made.quantiles)
        assert np.array(made.window_max) == pytest.approx(np.array(plain.window_max), rel=1e-6)
        assert (made.made_at_s, made.champion, made.trusted) == (plain.made_at_s, plain.champion, plain.trusted)
        forecaster.update([float(series[row + 1])])


def test_a_tick_sees_the_newest_whole_minute() -> None:
    world = a_world(3.0)
    newest = forecast_table(world, None).at_step(world)
    at = {step: newest(step) for step in range(600, 606)}
    assert [at[step].made_at_s for step in at if at[step]] == [9000.0] * 4 + [9060.0] * 2  # type: ignore[union-attr]  # filtered in the same line
    assert newest(0) is None


def test_the_future_changes_no_forecast_before_it() -> None:
    world = a_world(12.0)
    whole, short = forecast_table(world, None), forecast_table(world.before(2001), None)
    same(short, whole, rows=500)
    assert len(short.words) == 500


def test_the_cache_gives_back_what_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world(4.0)
    made = forecast_table(world, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1

    def never(policy: ScalingPolicy, horizon_s: float) -> Forecaster:
        raise AssertionError("the cache was not used")

    monkeypatch.setattr(backtest_forecasts, "champion", never)
    same(forecast_table(world, tmp_path), made)
    runs = [
        run_law(world, law_of("tidegate", world), "tidegate", forecast_at=table.at_step(world))
        for table in (made, forecast_table(world, tmp_path))
    ]
    assert runs[0].turns == runs[1].turns


def test_what_a_forecast_depends_on_changes_the_cache_key(tmp_path: Path) -> None:
    world = a_world(2.0)
    other_load = replace(world, demand=np.where(np.arange(len(world)) == 7, 0.0, world.demand))
    slower = world_of(world.load, world.policy, Setting(judge_from_day=0.05, start_time_s=300.0))
    seasons = policy(prediction={"seasonsSeconds": [], "minHistorySeconds": 3600})
    reseasoned = world_of(world.load, seasons, Setting(judge_from_day=0.05))
    for one in (world, other_load, slower, reseasoned, world):
        forecast_table(one, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_broken_file_in_the_cache_is_made_anew(tmp_path: Path) -> None:
    world = a_world(2.0)
    made = forecast_table(world, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:500])
    same(forecast_table(world, tmp_path), made)
    assert len(list(tmp_path.iterdir())) == 1
