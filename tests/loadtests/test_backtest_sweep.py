"""Tuning by hand against trying everything, and which points no other beats."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.backtest_score import BacktestError
from loadtests.backtest_sweep import Bench, Point, law_names, law_of, pareto, tuned
from loadtests.backtest_world import Setting, World, world_of
from loadtests.peer_laws import TUNABLE
from tests.loadtests.backtest_loads import daily, policy


def a_point(value: float, late: float, cost: float) -> Point:
    return Point(law="x", knob="k", value=value, late_fraction=late, gpu_hours=cost, regret=cost / 10)


def a_world() -> World:
    return world_of(daily(4.0), policy(), Setting(judge_from_day=1 / 24))


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 90), share=st.floats(0.0, 1.2))
def test_on_a_smooth_curve_the_best_of_all_is_found(size: int, share: float) -> None:
    grid = tuple(float(place) for place in range(size))
    tried: list[float] = []

    def play(value: float) -> Point:
        tried.append(value)
        return a_point(value, late=value / size, cost=2 * size - value)

    best, points = tuned(play, grid, share)
    expected = max(value for value in grid if value / size <= share)
    assert best is not None
    assert best.value == expected
    assert len(tried) == len(set(tried)) == len(points)


def test_when_nothing_meets_the_ask_everything_was_tried() -> None:
    best, points = tuned(lambda value: a_point(value, 0.5, 1.0), tuple(float(n) for n in range(30)), 0.1)
    assert best is None
    assert len(points) == 30


def test_tuning_a_real_law_is_as_good_as_trying_every_value() -> None:
    bench = Bench(world_of(daily(2.5), policy(), Setting(judge_from_day=1 / 24)))
    best, points = bench.tuned("hpa", 0.01)
    every = [bench.point("hpa", value) for value in TUNABLE["hpa"].grid]
    assert best is not None
    assert len(points) < 40
    assert best.gpu_hours <= 1.01 * min(point.gpu_hours for point in every if point.late_fraction <= 0.01)


def test_points_that_no_other_beats() -> None:
    points = [
        a_point(1, 0.00, 30.0),
        a_point(2, 0.01, 20.0),
        a_point(3, 0.02, 25.0),
        a_point(4, 0.03, 10.0),
        a_point(5, 0.03, 12.0),
        a_point(6, 0.05, 10.0),
    ]
    assert [point.value for point in pareto(points)] == [1, 2, 4]


def test_a_higher_quantile_is_dearer() -> None:
    world = world_of(daily(8.0), policy(prediction={"seasonsSeconds": [], "minHistorySeconds": 600}), Setting())
    from loadtests.backtest_forecasts import forecast_table

    bench = Bench(world, forecast_table(world, None).at_step(world))
    low, high = bench.point("tidegate", 0.5), bench.point("tidegate", 0.99)
    assert high.gpu_hours > low.gpu_hours
    assert high.late_fraction <= low.late_fraction


def test_static_peak_stands_at_the_peak() -> None:
    world = a_world()
    point = Bench(world).point("static_peak", float(world.peak))
    assert point.late_fraction == 0.0
    assert point.gpu_hours == pytest.approx(world.peak * (len(world) - world.judged) * 15 / 3600)
    law_of("static_peak", world)


def test_all_laws_are_known_and_no_other() -> None:
    assert {"tidegate", "hpa", "keda", "knative", "static_peak"} <= set(law_names())
    with pytest.raises(BacktestError, match="--laws: 'hpaa' is not known; allowed: tidegate, hpa"):
        law_of("hpaa", a_world())
