"""How fast the total may change: tables of one tick and stories of several, through `decide`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autoscaler.decide.decider import decide
from autoscaler.model import DeciderState
from tests.builders import a_forecast, a_policy, a_replica, an_observation, at, ready, variant_document

LARGE = [variant_document(maxReplicas=100)]


def story(loads: Sequence[tuple[float, float]], before: DeciderState, **spec: Any) -> list[int]:
    """Totals decided at (second, arrivals per second) of capacity 10 and service 1 s; panic is out of the way."""
    spec["behavior"] = {"panic": {"thresholdPercent": 10_000}, **spec["behavior"]}
    policy, totals = a_policy(LARGE, **spec), []
    for second, per_s in loads:
        now = at(second)
        decision = decide(policy, before, an_observation(now, per_s, ready(before.last_desired or 0)), None, now)
        before = decision.next_state
        totals.append(decision.desired)
    return totals


def settled(total: int, second: float = 0) -> DeciderState:
    return DeciderState(recommendations=((second, total),), totals=((-1_000, total),), last_desired=total)


def test_down_only_to_the_highest_that_was_asked_for_within_the_window() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 10, "policies": [], "tolerance": 0}}
    loads = [(1, 50.0), (2, 90.0), (3, 20.0), (8, 30.0), (12, 20.0), (18, 20.0), (22, 20.0)]
    assert story(loads, settled(9), behavior=behavior) == [9, 9, 9, 9, 3, 2, 2]


def test_up_only_to_what_was_asked_for_throughout_the_window() -> None:
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 10, "policies": []}}
    loads = [(1, 50.0), (5, 90.0), (9, 70.0), (10.5, 70.0), (16, 70.0)]
    assert story(loads, settled(2), behavior=behavior) == [2, 2, 2, 5, 7]


@pytest.mark.parametrize(
    ("select", "policies", "expected"),
    [
        ("Max", [("Pods", 3, 10)], [5, 5, 8, 8, 11]),
        ("Max", [("Percent", 100, 10)], [4, 4, 8, 8, 16]),
        ("Max", [("Percent", 10, 10)], [3, 3, 4, 4, 5]),
        ("Max", [("Pods", 3, 10), ("Percent", 100, 10)], [5, 5, 10, 10, 20]),
        ("Min", [("Pods", 3, 10), ("Percent", 100, 10)], [4, 4, 7, 7, 10]),
        ("Disabled", [("Pods", 3, 10)], [2, 2, 2, 2, 2]),
        ("Max", [], [60, 60, 60, 60, 60]),
    ],
)
def test_growth_is_limited_per_period(select: str, policies: list[tuple[str, int, float]], expected: list[int]) -> None:
    rates = [{"type": kind, "value": value, "periodSeconds": period} for kind, value, period in policies]
    behavior = {"scaleUp": {"policies": rates, "selectPolicy": select}}
    loads = [(second, 600.0) for second in (1, 6, 11, 16, 21)]
    assert story(loads, settled(2), behavior=behavior) == expected


@pytest.mark.parametrize(
    ("select", "policies", "expected"),
    [
        ("Max", [("Pods", 2, 10)], [18, 18, 16, 16, 14]),
        ("Max", [("Percent", 50, 10)], [10, 10, 5, 5, 2]),
        ("Max", [("Pods", 2, 10), ("Percent", 50, 10)], [10, 10, 5, 5, 2]),
        ("Min", [("Pods", 2, 10), ("Percent", 50, 10)], [18, 18, 16, 16, 14]),
        ("Disabled", [("Pods", 2, 10)], [20, 20, 20, 20, 20]),
        ("Max", [], [1, 1, 1, 1, 1]),
    ],
)
def test_shrinking_is_limited_per_period(
    select: str, policies: list[tuple[str, int, float]], expected: list[int]
) -> None:
    rates = [{"type": kind, "value": value, "periodSeconds": period} for kind, value, period in policies]
    rules = {"stabilizationWindowSeconds": 0, "policies": rates, "selectPolicy": select, "tolerance": 0}
    loads = [(second, 5.0) for second in (1, 6, 11, 16, 21)]
    assert story(loads, settled(20), behavior={"scaleDown": rules}) == expected


@pytest.mark.parametrize(
    ("per_s", "desired"), [(100.0, 10), (90.0, 10), (89.0, 9), (101.0, 10), (105.0, 10), (106.0, 11)]
)
def test_a_change_within_tolerance_is_not_made(per_s: float, desired: int) -> None:
    rules = {"stabilizationWindowSeconds": 0, "policies": [], "tolerance": 0.1}
    behavior = {"scaleDown": rules, "scaleUp": {"policies": [], "tolerance": 0.05}}
    assert story([(1, per_s)], settled(10), behavior=behavior) == [desired]


def test_what_was_held_is_said_in_the_reason() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 10, "policies": [], "tolerance": 0}}
    now = at(5)
    decision = decide(a_policy(behavior=behavior), settled(4), an_observation(now, 5.0, ready(4)), None, now)
    assert decision.bound_by == "stabilise"
    assert decision.reason == ("load of 5 needs 1 x 10, held at 4: 4 was asked for within the last 10 s; 4 ready")


def test_the_forecast_keeps_what_will_be_needed_within_a_start_time() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [], "tolerance": 0}}
    now = at(5)
    observation = an_observation(now, 5.0, ready(4))
    kept = decide(a_policy(behavior=behavior), settled(4), observation, a_forecast(25.0, now), now)
    assert (kept.desired, kept.bound_by) == (3, None)


def test_panic_raises_on_the_short_window_and_never_lowers() -> None:
    behavior = {
        "panic": {"windowSeconds": 2, "stableWindowSeconds": 10},
        "scaleUp": {"policies": []},
        "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [], "tolerance": 0},
    }
    policy, before, totals = a_policy(LARGE, behavior=behavior), settled(2), []
    for second, stable, short in [(1, 15.0, 15.0), (2, 18.0, 60.0), (3, 15.0, 20.0), (8, 5.0, 5.0), (12, 5.0, 5.0)]:
        now = at(second)
        observation = an_observation(now, stable, ready(2), panic_per_s=short, panic_demand=short)
        decision = decide(policy, before, observation, None, now)
        before = decision.next_state
        totals.append((decision.desired, before.panic_since_s))
    assert totals == [(2, None), (6, 2), (6, 2), (6, 2), (1, None)]


def test_a_queue_alone_is_a_cause_for_panic_but_not_a_demand() -> None:
    now = at(1)
    observation = an_observation(now, 5.0, ready(1), in_flight=10, backlog=15)
    decision = decide(a_policy(), settled(1), observation, None, now)
    assert decision.next_state.panic_since_s == 1
    assert decision.need == pytest.approx(5.0), (
        "5 a second of spare capacity drain 15 requests before a start is through"
    )


def test_what_is_at_hand_drains_a_backlog_that_is_not_worth_a_start() -> None:
    now = at(1)
    replicas = (*ready(1), a_replica("b", standby=True))
    decision = decide(a_policy(), settled(1), an_observation(now, 8.0, replicas, in_flight=8, backlog=20), None, now)
    assert decision.desired == 2
    assert decision.need == pytest.approx(12.0)
