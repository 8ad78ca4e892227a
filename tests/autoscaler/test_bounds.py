"""The last word: minima, maxima, budgets, standby and dead supply within them."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.decide.decider import decide
from autoscaler.decide.mix import in_words, replicas_for, spread
from autoscaler.decide.warmpool import standby_for
from autoscaler.model import DeciderState, Decision, VariantTarget
from autoscaler.policy import ScalingPolicy
from tests.builders import a_policy, a_replica, an_observation, at, ready, variant_document

NOW = at(100)


def decided(policy: ScalingPolicy, per_s: float, **fields: Any) -> Decision:
    before = DeciderState(recommendations=((99, 1),), totals=((99, 1),), last_desired=1)
    return decide(policy, before, an_observation(NOW, per_s, **fields), None, NOW)


def target(active: int, standby: int) -> tuple[VariantTarget, ...]:
    return (VariantTarget(variant="gpu", active=active, standby=standby),)


@pytest.mark.parametrize(
    ("per_s", "expected", "bound_by"),
    [
        (5.0, target(3, 2), "bounds"),
        (35.0, target(4, 2), None),
        (55.0, target(6, 0), None),
        (80.0, target(6, 0), "bounds"),
    ],
)
def test_standby_takes_the_room_that_is_left(
    per_s: float, expected: tuple[VariantTarget, ...], bound_by: str | None
) -> None:
    policy = a_policy([variant_document(minReplicas=3, maxReplicas=6)], warmPool={"standby": 2})
    decision = decided(policy, per_s)
    assert (decision.targets, decision.bound_by) == (expected, bound_by)


def test_a_limit_is_said_in_the_reason() -> None:
    policy = a_policy([variant_document(maxReplicas=3)])
    assert decided(policy, 80.0, replicas=ready(3)).reason == (
        "load of 80 needs 8 replicas, limited to the maximum of 3; 3 ready"
    )
    policy = a_policy([variant_document(minReplicas=3)])
    assert decided(policy, 5.0, replicas=ready(3)).reason == (
        "load of 5 needs 1 x 10, raised to the minimum of 3; 3 ready"
    )


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"maxGPUs": 5}, target(4, 1)),
        ({"maxGPUs": 4}, target(4, 0)),
        ({"maxGPUs": 3.9}, target(3, 0)),
        ({"maxCostPerHour": 8}, target(4, 0)),
        ({"maxGPUs": 1}, target(1, 0)),
    ],
)
def test_a_budget_takes_standby_first_and_then_replicas(
    budget: dict[str, float], expected: tuple[VariantTarget, ...]
) -> None:
    policy = a_policy([variant_document(costPerHour=2)], warmPool={"standby": 2}, budget=budget)
    decision = decided(policy, 40.0)
    assert decision.targets == expected
    assert "limited by the budget" in decision.steps[-1].why


def test_a_slice_counts_its_sevenths_in_a_budget() -> None:
    slices = variant_document("mig", resource={"name": "nvidia.com/mig-1g.10gb"}, maxReplicas=20)
    assert decided(a_policy([slices], budget={"maxGPUs": 2}), 200.0).desired == 14


def test_dead_supply_stays_within_the_maximum() -> None:
    replicas = (*ready(1), *[a_replica(f"s{n}", "starting", overdue=True) for n in range(4)])
    decision = decided(a_policy([variant_document(maxReplicas=5)]), 40.0, replicas=replicas)
    assert decision.desired == 5
    assert [step.after for step in decision.steps] == [4, 4, 8, 8, 8, 8, 5]
    assert decision.bound_by == "bounds"


@pytest.mark.parametrize(
    ("setting", "total", "standby"),
    [(0, 5, 0), (3, 0, 3), ("auto", 0, 0), ("auto", 7, 1), ("25%", 4, 1), ("25%", 5, 2), ("10%", 30, 3), ("0%", 9, 0)],
)
def test_standby_beside_a_total(setting: int | str, total: int, standby: int) -> None:
    assert standby_for(setting, total) == standby


def test_a_total_is_spread_cheapest_first_above_the_minima() -> None:
    variants = a_policy(
        [
            variant_document("big", capacity=24, costPerHour=4.8, minReplicas=1, maxReplicas=3),
            variant_document("cheap", capacity=8, costPerHour=1, minReplicas=0, maxReplicas=2),
            variant_document("same", capacity=24, costPerHour=4.8, minReplicas=0, maxReplicas=1),
        ]
    ).spec.serving
    rows = [tuple(spread(variants, total).values()) for total in range(8)]
    assert rows == [(1, 0, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0), (2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 2, 1)]
    needs = [0, 1, 24, 25, 40, 41, 88, 89, 112, 113, 136]
    assert [replicas_for(variants, need) for need in needs] == [0, 1, 1, 2, 3, 4, 5, 6, 6, 7, 9]
    assert in_words(variants, spread(variants, 6)) == "2 x 8 + 3 x 24 + 1 x 24"


def test_arithmetic_noise_orders_nothing() -> None:
    variants = a_policy([variant_document(capacity=0.1, maxReplicas=100)]).spec.serving
    assert replicas_for(variants, 0.1 * 3) == 3
