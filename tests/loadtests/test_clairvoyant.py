"""The clairvoyant's bill, beside all the schedules there are on small cases."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from loadtests.clairvoyant import clairvoyant_gpu_hours, clairvoyant_gpu_s


def least_by_trying_everything(demand: list[int], start_steps: int, clipped: bool) -> int:
    """Oracle: every on/off schedule of each unit, in steps; a unit is ready once it has been on for `start_steps`."""
    before = start_steps
    best: dict[tuple[bool, ...], int] = {}
    for powered in itertools.product((False, True), repeat=before + len(demand)):
        ready = tuple(all(powered[step : step + start_steps + 1]) for step in range(len(demand)))
        cost = sum(powered[before:]) if clipped else sum(powered)
        best[ready] = min(cost, best.get(ready, cost))
    least = math.inf
    for units in itertools.combinations_with_replacement(best, max([1, *demand])):
        if all(sum(unit[step] for unit in units) >= need for step, need in enumerate(demand)):
            least = min(least, sum(best[unit] for unit in units))
    return int(least)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("clipped", [True, False])
def test_never_dearer_or_cheaper_than_the_best_schedule(seed: int, clipped: bool) -> None:
    rng = Random(f"clairvoyant {seed}")
    demand = [rng.randint(0, 2) for _ in range(6)]
    start_steps = rng.randint(0, 3)
    found = clairvoyant_gpu_s(demand, 10.0, 10.0 * start_steps, clipped=clipped)
    assert found == 10.0 * least_by_trying_everything(demand, start_steps, clipped)


@pytest.mark.parametrize(
    ("demand", "start_s", "clipped", "gpu_s"),
    [
        ([], 30.0, True, 0.0),
        ([0, 0, 0], 30.0, True, 0.0),
        ([1, 1, 1], 30.0, True, 30.0),
        ([1, 1, 1], 30.0, False, 60.0),
        ([0.2, 1.0, 1.1], 0.0, True, 40.0),
        ([1, 0, 0, 1], 15.0, True, 35.0),
        ([1, 0, 0, 1], 25.0, True, 40.0),
        ([0, 0, 2], 15.0, True, 50.0),
        ([0, 1.0000000001], 5.0, True, 15.0),
    ],
)
def test_by_hand(demand: list[float], start_s: float, clipped: bool, gpu_s: float) -> None:
    assert clairvoyant_gpu_s(demand, 10.0, start_s, clipped=clipped) == pytest.approx(gpu_s)


def test_share_and_hours() -> None:
    assert clairvoyant_gpu_hours([2.0] * 60, 60.0, 120.0, gpu_share=0.5) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("demand", "step_s", "start_s"), [([math.nan], 1, 1), ([-1.0], 1, 1), ([1.0], 0, 1), ([1.0], 1, -1)]
)
def test_out_of_range(demand: list[float], step_s: float, start_s: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        clairvoyant_gpu_s(demand, step_s, start_s)
