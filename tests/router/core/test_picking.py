"""The pick: proportional to capacity, never above a limit, one random number."""

from __future__ import annotations

import heapq
import random

import pytest

from router.core.endpoints import Endpoint
from tests.router.core.story import Story, endpoint


@pytest.mark.parametrize(
    ("capacities", "load"),
    [((8, 2), 0.6), ((4, 1, 1), 0.3), ((4, 1, 1), 0.9), ((7, 3, 1), 0.6), ((1, 1, 1, 1), 0.5), ((7, 1, 1, 3), 0.8)],
)
def test_work_is_shared_in_proportion_to_capacity(capacities: tuple[int, ...], load: float) -> None:
    """Poisson arrivals, exponential service of mean 1, limit = 4 x capacity; every share within 10% of proportional."""
    told = [endpoint(f"e{index}", capacity=each, limit=4 * each) for index, each in enumerate(capacities)]
    story = Story(*told, seed=7)
    rng = random.Random(42)
    got = dict.fromkeys((each["id"] for each in told), 0)
    running: list[tuple[float, int, object]] = []
    for count in range(20_000):
        story.now += rng.expovariate(load * 4 * sum(capacities))
        while running and running[0][0] <= story.now:
            story.end(heapq.heappop(running)[2])  # type: ignore[arg-type]  # a heap of mixed tuples
        made, verdict = story.arrive()
        if isinstance(verdict, Endpoint):
            got[verdict.id] += 1
            heapq.heappush(running, (story.now + rng.expovariate(1), count, made))
        for freed in story.started():
            heapq.heappush(running, (story.now + rng.expovariate(1), count, freed))
    total = sum(got.values())
    for each, capacity in zip(told, capacities, strict=True):
        assert got[each["id"]] / total == pytest.approx(capacity / sum(capacities), rel=0.1)


@pytest.mark.fault("R20")
@pytest.mark.parametrize("load", [0.004, 0.05, 0.15, 0.3, 0.6, 0.9])
def test_one_slice_beside_a_full_gpu_gets_an_eighth_of_the_traffic_at_idle_too(load: float) -> None:
    """Capacity 8 beside 56, limits the same: within 10% of 1:7."""
    story = Story(endpoint("slice", capacity=8, limit=8), endpoint("full", capacity=56, limit=56), seed=7)
    rng = random.Random(42)
    running: list[tuple[float, int, object]] = []
    got = {"slice": 0, "full": 0}
    for count in range(40_000):
        story.now += rng.expovariate(load * 64)
        while running and running[0][0] <= story.now:
            story.end(heapq.heappop(running)[2])  # type: ignore[arg-type]  # a heap of mixed tuples
        made, verdict = story.arrive()
        for each in [made] if isinstance(verdict, Endpoint) else story.started():
            assert each.endpoint is not None
            got[each.endpoint.id] += 1
            heapq.heappush(running, (story.now + rng.expovariate(1), count, each))
    assert got["slice"] / sum(got.values()) == pytest.approx(1 / 8, rel=0.1)


def test_a_full_pool_is_filled_to_the_last_slot_and_not_beyond() -> None:
    story = Story(endpoint("a", limit=3, capacity=1), endpoint("b", limit=5, capacity=9), endpoint("c", limit=1))
    for _ in range(9):
        story.sent()
    assert {name: story.at(name).in_flight for name in "abc"} == {"a": 3, "b": 5, "c": 1}
    assert story.arrive()[1] == "queued"


def test_one_random_number_a_pick_and_its_extremes_stay_in_range() -> None:
    for value in (0.0, 0.1, 0.5, 0.999999, 1 - 2**-53):
        drawn: list[float] = []
        story = Story(*(endpoint(name, limit=2, capacity=0.1) for name in "abc"))
        (model,) = story.dispatcher.model_states()
        model.candidates._random = lambda value=value, drawn=drawn: drawn.append(value) or value  # type: ignore[misc]  # counts what is drawn
        story.sent()
        assert drawn == [value]
