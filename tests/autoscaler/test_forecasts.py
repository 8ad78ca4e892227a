"""Forecasts beside the ticks: first as soon as there is enough, never inside a tick, always of now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from autoscaler.controller.forecasts import Forecasts, asked, start_horizon
from autoscaler.model import StartTime
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast
from forecasting.series import LoadSeries
from tests.autoscaler.controller_fakes import FakeHistory
from tests.builders import EPOCH_S, a_policy, at, variant_document

STEP_S = 15.0


class Recorder:
    """A forecaster that remembers what it was given; with `broken` fits fail, with `lost` forecasts."""

    name = "recorder"

    def __init__(self) -> None:
        self.values: list[float] = []
        self.start_s = 0.0
        self.broken: Exception | None = None
        self.lost: Exception | None = None
        self.on_fit: Callable[[], None] = lambda: None

    def fit(self, series: LoadSeries, rng: np.random.Generator) -> None:
        self.on_fit()
        if self.broken:
            raise self.broken
        self.start_s, self.values = series.start_s, series.values.tolist()

    def update(self, values: Sequence[float]) -> None:
        if self.lost:
            raise self.lost
        self.values += values

    def predict(self, horizons_s: Sequence[float], quantiles: Sequence[float]) -> Forecast:
        made_at_s = self.start_s + STEP_S * len(self.values)
        row = tuple(quantiles)
        table = tuple(row for _ in horizons_s)
        return Forecast(
            made_at_s=made_at_s,
            step_s=STEP_S,
            horizons_s=tuple(horizons_s),
            quantiles=row,
            values=table,
            window_max=table,
            champion="recorder",
            why="",
        )


class Bench:
    """A forecast source with a recorder in it, and a policy that asks for four steps of history."""

    def __init__(self, **prediction: float) -> None:
        self.made: list[Recorder] = []
        self.history = FakeHistory()
        self.policy = a_policy(prediction={"minHistorySeconds": 60, "stepSeconds": STEP_S, **prediction})
        self.forecasts = Forecasts(self.history, self.make)
        self.next = Recorder()

    def make(self, policy: ScalingPolicy, horizon_s: float) -> Recorder:
        made, self.next = self.next, Recorder()
        self.made.append(made)
        return made

    async def take(self, step: int, *values: float | None, settle: bool = True) -> Forecast | None:
        """Steps from number `step` on are complete now."""
        now = at(STEP_S * (step + len(values)) + 1)
        first_s = EPOCH_S + STEP_S * step
        if values:
            self.history.append_load("chat", STEP_S, first_s, values)
        self.forecasts.take(self.policy, [(first_s, values)] if values else [], {}, now)
        if settle:
            await self.forecasts.settle()
        return self.forecasts.latest(self.policy, now)


async def test_the_first_fit_comes_with_enough_history_and_updates_follow() -> None:
    bench = Bench()
    assert await bench.take(0, 1, 2, 3) is None
    first = await bench.take(3, 4)
    assert first is not None
    assert first.made_at_s == EPOCH_S + 4 * STEP_S
    later = await bench.take(4, 5)
    assert later is not None
    assert later.made_at_s == EPOCH_S + 5 * STEP_S
    assert [made.values for made in bench.made] == [[1, 2, 3, 4, 5]]


async def test_gaps_are_no_history_but_keep_their_place() -> None:
    bench = Bench()
    assert await bench.take(0, 1, None, None, 2) is None
    await bench.take(4, 3, 4)
    await bench.take(8, 9)
    values = bench.made[0].values
    assert [None if math.isnan(v) else v for v in values] == [1, None, None, 2, 3, 4, None, None, 9]


async def test_a_silence_goes_on_as_gaps() -> None:
    bench = Bench()
    await bench.take(0, 1, 2, 3, 4)
    quiet = await bench.take(20)
    assert quiet is not None
    assert quiet.made_at_s == EPOCH_S + (20 - 3) * STEP_S
    assert all(math.isnan(v) for v in bench.made[0].values[4:])


async def test_steps_that_come_during_a_fit_are_told_after_it() -> None:
    bench = Bench()
    assert await bench.take(0, 1, 2, 3, 4, settle=False) is None  # the fit has begun
    await bench.take(4, 5, settle=False)
    await bench.forecasts.settle()
    await bench.take(5, 6)
    assert bench.made[0].values == [1, 2, 3, 4, 5, 6]


async def test_it_learns_again_after_a_while_and_serves_the_old_one_meanwhile() -> None:
    bench = Bench()
    await bench.take(0, 1, 2, 3, 4)
    bench.forecasts._lines["chat"].fit_due_s = float("-inf")  # 240 steps later
    serving = await bench.take(4, 5, settle=False)
    assert serving is not None
    assert serving.made_at_s == EPOCH_S + 4 * STEP_S
    await bench.take(5, 6, settle=False)
    await bench.forecasts.settle()
    await bench.take(6, 7)
    assert [made.values for made in bench.made] == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("error", [ValueError("too odd"), np.linalg.LinAlgError("singular"), IndexError("a bug")])
async def test_a_fit_that_fails_is_tried_again_later_not_at_once(error: Exception) -> None:
    bench = Bench()
    bench.next.broken = error
    assert await bench.take(0, 1, 2, 3, 4) is None
    assert await bench.take(4, 5) is None
    assert len(bench.made) == 1
    bench.forecasts._lines["chat"].fit_due_s = float("-inf")
    assert await bench.take(5, 6) is not None


@pytest.mark.parametrize("error", [ValueError("too odd"), IndexError("a bug")])
async def test_a_forecaster_that_fails_between_fits_is_replaced(error: Exception) -> None:
    bench = Bench()
    assert await bench.take(0, 1, 2, 3, 4) is not None
    bench.made[0].lost = error
    assert await bench.take(4, 5) is None
    back = await bench.take(5, 6)
    assert back is not None
    assert back.made_at_s == EPOCH_S + 6 * STEP_S
    assert [made.values for made in bench.made] == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    await bench.forecasts.close()


async def test_prediction_switched_off_does_nothing() -> None:
    bench = Bench(enabled=False)
    assert await bench.take(0, *[1.0] * 100) is None
    assert bench.made == []


async def test_the_real_champion_forecasts_a_steady_load() -> None:
    history = FakeHistory()
    policy = a_policy(prediction={"minHistorySeconds": 60, "stepSeconds": 1, "seasonsSeconds": []})
    forecasts = Forecasts(history)
    history.append_load("chat", 1.0, EPOCH_S, [5.0] * 100)
    forecasts.take(policy, [], {}, at(100))
    await forecasts.settle()
    found = forecasts.latest(policy, at(100))
    assert found is not None
    horizon_s = start_horizon(policy, {})
    assert found.made_at_s == EPOCH_S + 100
    assert found.maximum_within(horizon_s, 0.95) == pytest.approx(5.0, abs=1.0)


def test_horizons_surround_the_time_until_a_replica_ordered_now_is_ready() -> None:
    policy = a_policy(
        [variant_document("a"), variant_document("b", startTime={"p50Seconds": 30, "p90Seconds": 39})],
        prediction={"quantile": 0.97},
    )
    question = asked(policy, {"a": StartTime(p50_s=5, p90_s=7)})
    assert start_horizon(policy, {"b": StartTime(p50_s=1, p90_s=2)}) == 13
    assert list(question.horizons_s) == [10, 20, 30, 40, 50, 60, 70, 80]
    assert question.quantiles == (0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 0.995)
