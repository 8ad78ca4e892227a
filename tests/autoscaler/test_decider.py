"""`decide` as a whole: rows that are sentences, and time stories through observe, decide and plan."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.decide.decider import STEPS, decide
from autoscaler.model import DeciderState, Decision, Expected, ReplicaState, StartTime, Step, VariantTarget
from autoscaler.policy import ScalingPolicy
from tests.autoscaler.crew import Crew, Loop
from tests.builders import (
    a_forecast,
    a_policy,
    a_replica,
    a_sample,
    an_observation,
    at,
    ready,
    starting,
    variant_document,
)

NOW = at(100)


def state(last: int, **fields: Any) -> DeciderState:
    """Remembered: `last` was decided and asked for at 99."""
    return DeciderState(**{"recommendations": ((99, last),), "totals": ((99, last),), "last_desired": last, **fields})


def decided(policy: ScalingPolicy, before: DeciderState, per_s: float | None, **fields: Any) -> Decision:
    forecast = fields.pop("forecast", None)
    return decide(policy, before, an_observation(NOW, per_s, **fields), forecast, NOW)


def test_a_whole_decision_as_a_value() -> None:
    policy = a_policy(warmPool={"standby": 1})
    replicas = (*ready(3), *starting(1, 95.0))
    decision = decided(policy, state(4), 20.0, replicas=replicas, forecast=a_forecast(38.0, NOW))
    assert decision == Decision(
        at=NOW,
        desired=4,
        targets=(VariantTarget(variant="gpu", active=4, standby=1),),
        steps=(
            Step(name="reactive", before=4, after=2, why="load of 20 needs 2"),
            Step(name="predictive", before=2, after=4, why="load up to 38 within 13 s at quantile 0.95 (flat) needs 4"),
            Step(name="supply", before=4, after=4, why="3 ready, 1 due in 5 s; loading replicas are not ordered again"),
            Step(name="warm pool", before=4, after=4, why="standby 1: 1 beside 4"),
            Step(name="mix", before=4, after=4, why="cheapest per capacity first: 5 gpu"),
            Step(name="stabilise", before=4, after=4, why="stays 4"),
            Step(name="bounds", before=4, after=4, why="4 is within 1 to 10"),
        ),
        next_state=DeciderState(recommendations=((100, 4),), totals=((99, 4),), last_desired=4),
        reason="load up to 38 within 13 s needs 4 x 10, plus 1 standby; 3 ready, 1 due in 5 s",
        need=38.0,
        expected=Expected(horizon_s=13.0, p50=38.0, p90=38.0, need=38.0, quantile=0.95),
    )


def test_the_reason_reads_as_the_design_promises() -> None:
    variant = variant_document(capacity=24, startTime={"p50Seconds": 88, "p90Seconds": 131}, maxReplicas=8)
    policy = a_policy([variant], pollingIntervalSeconds=5, warmPool={"standby": "auto"})
    decision = decided(
        policy,
        state(4),
        61.0,
        replicas=(*ready(3), *starting(1, 53.0)),
        start_times={"gpu": StartTime(p50_s=88, p90_s=131, samples=14)},
        forecast=a_forecast(92.0, NOW),
    )
    assert decision.reason == "load up to 92 within 136 s needs 4 x 24, plus 1 standby; 3 ready, 1 due in 41 s"
    assert (decision.desired, decision.bound_by, decision.need) == (4, None, 92.0)


def test_every_decision_tells_all_steps_in_order() -> None:
    names = ["reactive", "predictive", "supply", "warm pool", "mix", "stabilise", "bounds"]
    for per_s in (None, 0.0, 25.0, 1_000.0):
        decision = decided(a_policy(), state(2), per_s, replicas=ready(2))
        assert [step.name for step in decision.steps] == names
        assert [step.before for step in decision.steps[1:]] == [step.after for step in decision.steps[:-1]]
    assert len(STEPS) == len(names)


@pytest.mark.parametrize(
    ("per_s", "desired"), [(0.0, 1), (1.0, 1), (10.0, 1), (10.1, 2), (30.0, 3), (95.0, 10), (400.0, 10)]
)
def test_replicas_for_a_load(per_s: float, desired: int) -> None:
    decision = decided(a_policy(), state(1), per_s, replicas=ready(1))
    assert decision.desired == desired
    assert decision.bound_by == ("bounds" if per_s in (0.0, 400.0) else None)


def test_an_unknown_load_holds_and_a_forecast_may_still_raise() -> None:
    """A3, A4: missing is not zero."""
    held = decided(a_policy(), state(6), None, replicas=ready(6))
    assert (held.desired, held.need) == (6, None)
    assert held.reason == "load is unknown (no report for 9 s): holding 6; 6 ready"
    raised = decided(a_policy(), state(6), None, replicas=ready(6), forecast=a_forecast(75.0, NOW))
    assert raised.desired == 8
    assert raised.reason == (
        "load is unknown (no report for 9 s): holding 6; forecast up to 75 within 13 s needs 8 x 10; 6 ready"
    )
    low = decided(a_policy(), state(6), None, replicas=ready(6), forecast=a_forecast(5.0, NOW))
    assert low.desired == 6


def test_a_partly_known_load_may_raise_and_never_lowers() -> None:
    partly = {"trusted": False, "gaps": ("no answer from b",), "replicas": ready(4)}
    assert decided(a_policy(), state(4), 12.0, **partly).desired == 4
    assert decided(a_policy(), state(4), 55.0, **partly).desired == 6


def test_the_fallback_raises_after_its_threshold() -> None:
    policy = a_policy(fallback={"failureThreshold": 3, "replicas": 5})
    before, desired = state(2), []
    for _ in range(4):
        decision = decided(policy, before, None, replicas=ready(2))
        before = decision.next_state
        desired.append(decision.desired)
    assert desired == [2, 2, 5, 5]
    assert decided(policy, before, 5.0, replicas=ready(5)).next_state.memory == ()


def test_the_first_tick_lowers_nothing() -> None:
    """A13: a controller that comes back at a quiet moment must not take the fleet down."""
    policy = a_policy(warmPool={"standby": 0})
    replicas = (*ready(5), a_replica("b", standby=True), *starting(1, 95.0))
    first = decided(policy, DeciderState(), 0.0, replicas=replicas)
    assert first.targets == (VariantTarget(variant="gpu", active=6, standby=1),)
    assert "the first tick lowers nothing" in first.steps[5].why
    assert decided(policy, first.next_state, 0.0, replicas=replicas).desired == 1


def test_a_restored_total_is_not_lowered_by_the_first_tick_either() -> None:
    restored = DeciderState(recommendations=((100, 6),), last_desired=6)
    assert decided(a_policy(), restored, 0.0, replicas=ready(6)).desired == 6


@pytest.mark.parametrize(("mode", "valid"), [("Observe", False), ("Paused", True)])
def test_observe_and_paused_hold_what_is_there(mode: str, valid: bool) -> None:
    policy = a_policy(mode=mode)
    replicas = (*ready(3), a_replica("f", failed=True), a_replica("b", standby=True), a_replica("d", "draining"))
    decision = decided(policy, state(9), 80.0, replicas=replicas)
    assert decision.targets == (VariantTarget(variant="gpu", active=4, standby=1),)
    assert (decision.valid, decision.bound_by, decision.need) == (valid, "mode", 80.0)


def test_advise_decides_in_full() -> None:
    auto = decided(a_policy(), state(2), 55.0, replicas=ready(2))
    assert decided(a_policy(mode="Advise"), state(2), 55.0, replicas=ready(2)) == auto


def test_variants_fill_the_cheapest_first_and_standby_after() -> None:
    variants = [
        variant_document("h100", capacity=24, costPerHour=4.1, maxReplicas=2),
        variant_document("mig", capacity=9, costPerHour=1.2, minReplicas=0, maxReplicas=3),
        variant_document("v2", version="v2", costPerHour=0.1),
    ]
    policy = a_policy(variants, warmPool={"standby": 1}, rollout={"from": "v1", "to": "v2"})

    def targets(per_s: float) -> dict[str, tuple[int, int]]:
        decision = decided(policy, state(1), per_s, replicas=())
        return {target.variant: (target.active, target.standby) for target in decision.targets}

    assert targets(20) == {"h100": (1, 0), "mig": (0, 1), "v2": (0, 0)}
    assert targets(50) == {"h100": (1, 0), "mig": (3, 0), "v2": (0, 0)} | {"h100": (1, 1)}
    assert targets(70) == {"h100": (2, 0), "mig": (3, 0), "v2": (0, 0)}


def steady(loop: Loop, first: int, last: int, per_s: float, **fields: Any) -> None:
    for second in range(first, last):
        loop.tick(at(second), a_sample(at(second), (per_s,), **fields))


def test_a_surge_with_slow_starts_orders_once() -> None:
    """A1: the load goes from 8 to 45 while a start takes 30 s. The queue grows by 37 a second until the replicas are
    there; nothing more may be ordered for it than the five replicas of the load and what the first sight of the queue
    asked for."""
    variant = variant_document(startTime={"p50Seconds": 30, "p90Seconds": 35}, maxReplicas=50)
    policy = a_policy(
        [variant], behavior={"scaleUp": {"policies": []}, "panic": {"windowSeconds": 3, "stableWindowSeconds": 10}}
    )
    loop = Loop(policy, Crew(ready(1), start_s=30))
    steady(loop, 40, 60, 8.0)
    ordered = []
    for second in range(60, 90):
        queued = 37 * (second - 59)
        loop.tick(at(second), a_sample(at(second), (45.0,), in_flight=10, queued=queued))
        ordered.append(loop.crew.started)
    assert ordered[-1] == ordered[12], "no order after the windows have seen the surge"
    assert loop.decisions[-1].desired <= 14
    assert max(decision.desired for decision in loop.decisions) == loop.decisions[-1].desired
    steady(loop, 90, 96, 45.0, in_flight=45, queued=0)
    assert loop.crew.started == ordered[-1]


def test_a_hung_start_is_replaced_and_blocks_nothing() -> None:
    """A2: the start of one of two replicas hangs; another is ordered in its place, and later the load falls."""
    policy = a_policy(
        behavior={"scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": 0}, "scaleUp": {"policies": []}}
    )
    loop = Loop(policy, Crew(ready(1)))
    steady(loop, 20, 22, 5.0)
    loop.crew.hung = {"gpu-0"}
    steady(loop, 22, 32, 500.0)
    assert loop.crew.started == 9
    steady(loop, 32, 100, 18.0)
    assert loop.decisions[-1].desired == 2
    assert "gpu-0" not in loop.crew.replicas


def test_dead_supply_is_replaced_while_it_is_missed() -> None:
    policy = a_policy()
    replicas = (*ready(1), a_replica("s", "starting", overdue=True))
    missed = decided(policy, state(2), 20.0, replicas=replicas)
    assert (missed.desired, missed.bound_by) == (3, "supply")
    assert missed.reason == "load of 20 needs 2 x 10; 1 ready, 1 overdue and not counted on"
    enough = decided(policy, missed.next_state, 20.0, replicas=(*ready(2), a_replica("s", "starting", overdue=True)))
    assert enough.desired == 2


def test_dead_supply_moves_the_need_to_another_variant() -> None:
    variants = [
        variant_document("gpu", maxReplicas=2, costPerHour=1),
        variant_document("mig", capacity=5, minReplicas=0, costPerHour=2),
    ]
    replicas = (*ready(1), a_replica("s", "starting", overdue=True))
    decision = decided(a_policy(variants), state(2), 20.0, replicas=replicas)
    gpu, mig = VariantTarget(variant="gpu", active=2, dead=1), VariantTarget(variant="mig", active=2)
    assert decision.targets == (gpu, mig)


def test_the_last_replica_goes_when_nobody_asks_and_comes_back_for_one_held_request() -> None:
    """A15."""
    policy = a_policy(
        [variant_document(minReplicas=0)],
        scaleToZero={"enabled": True, "retentionSeconds": 20},
        warmPool={"standby": "auto"},
    )
    loop = Loop(policy, Crew(ready(1)))
    steady(loop, 20, 40, 1.0)
    assert (loop.crew.count(ReplicaState.READY), loop.crew.count(ReplicaState.READY, standby=True)) == (1, 1)
    for second in range(40, 140):
        loop.tick(at(second), a_sample(at(second), (0.0,)), a_forecast(0.01, at(second)))
    assert loop.crew.replicas == {}
    assert [decision.desired for decision in loop.decisions[20:]] == [1] * 79 + [0] * 21
    assert "no request for 20 s: scaled to zero" in loop.decisions[99].reason
    woken = loop.tick(at(140), a_sample(at(140), (0.0,), held_from_zero=1, queued=1))
    assert woken.desired == 1
    assert loop.crew.started > 0


def test_zero_is_not_reached_without_being_allowed_or_when_a_forecast_expects_requests() -> None:
    assert decided(a_policy([variant_document(minReplicas=0)]), state(1), 0.0).desired == 1
    policy = a_policy([variant_document(minReplicas=0)], scaleToZero={"enabled": True, "retentionSeconds": 20})
    idle = state(1, memory=(("idle_since_s", 0.0),))
    assert decided(policy, idle, 0.0).desired == 0
    assert decided(policy, idle, 0.0, forecast=a_forecast(0.5, NOW)).desired == 1
    assert decided(policy, idle, None).desired == 1


def test_a_controller_restart_at_peak_changes_nothing() -> None:
    """A13 as a story: state and windows are lost, the replicas are not."""
    loop = Loop(a_policy(), Crew())
    steady(loop, 0, 40, 55.0)
    assert loop.crew.count(ReplicaState.READY) == 6
    again = Loop(loop.policy, loop.crew)
    again.tick(at(40), None)
    again.tick(at(41), a_sample(at(41), ()))
    steady(again, 42, 60, 55.0)
    assert again.crew.started == loop.crew.started
    assert {decision.desired for decision in again.decisions} == {6}


def test_short_times_scale_all_the_way_down() -> None:
    """Nothing hides a 15 s or 60 s: with windows of 2 s and starts of 1 s a surge of seconds is followed up and
    down."""
    variant = variant_document(startTime={"p50Seconds": 1, "p90Seconds": 1.2, "timeoutSeconds": 5})
    policy = a_policy(
        [variant],
        pollingIntervalSeconds=0.5,
        behavior={
            "scaleUp": {"policies": [{"type": "Percent", "value": 300, "periodSeconds": 1}]},
            "scaleDown": {
                "stabilizationWindowSeconds": 3,
                "policies": [{"type": "Pods", "value": 2, "periodSeconds": 1}],
            },
            "panic": {"windowSeconds": 1, "stableWindowSeconds": 2},
        },
    )
    loop = Loop(policy, Crew(ready(1), start_s=1))
    steady(loop, 20, 25, 5.0)
    steady(loop, 25, 29, 35.0)
    assert loop.crew.count(ReplicaState.READY) == 4
    steady(loop, 29, 40, 5.0)
    assert loop.crew.count(ReplicaState.READY) == 1
