"""What holds for every decision and every plan, whatever the policy, the load and the replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.actuate.plan import plan
from autoscaler.decide.decider import decide
from autoscaler.model import Action, DeciderState, Decision, Replica, ReplicaState, VariantTarget
from autoscaler.observe.observation import Windows, fold
from autoscaler.policy import ScalingPolicy
from tests.autoscaler.crew import Crew, Loop
from tests.builders import a_forecast, a_policy, a_replica, a_sample, an_observation, at, variant_document

NOW = at(1_000)
REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
"""The same examples in every run, and no limit on wall time."""
LOADS = st.one_of(st.just(0.0), st.floats(0.01, 2_000))


@st.composite
def policies(draw: st.DrawFn) -> ScalingPolicy:
    variants = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        least = draw(st.integers(0, 3))
        variants.append(
            variant_document(
                name,
                capacity=draw(st.sampled_from([0.5, 3, 10, 24])),
                costPerHour=draw(st.sampled_from([1, 2.5, 4])),
                minReplicas=least,
                maxReplicas=least + draw(st.integers(0, 8)),
            )
        )
    rates = st.lists(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["Pods", "Percent"]),
                "value": st.integers(1, 200),
                "periodSeconds": st.sampled_from([1, 15, 60]),
            }
        ),
        max_size=2,
    )
    rules = st.fixed_dictionaries(
        {
            "stabilizationWindowSeconds": st.sampled_from([0, 5, 60]),
            "policies": rates,
            "selectPolicy": st.sampled_from(["Max", "Min"]),
            "tolerance": st.sampled_from([0, 0.1]),
        }
    )
    return a_policy(
        variants,
        behavior={"scaleUp": draw(rules), "scaleDown": draw(rules)},
        warmPool={"standby": draw(st.sampled_from([0, 2, "auto", "30%"]))},
        signal={"type": draw(st.sampled_from(["concurrency", "requestRate"])), "serviceSeconds": 3},
    )


@st.composite
def crews(draw: st.DrawFn) -> tuple[Replica, ...]:
    replicas = []
    for number in range(draw(st.integers(0, 10))):
        state = draw(st.sampled_from(["requested", "starting", "ready", "ready", "ready", "draining", "stopping"]))
        loads = state in ("requested", "starting")
        replicas.append(
            a_replica(
                f"r{number}",
                state,
                variant=draw(st.sampled_from(["a", "b", "c"])),
                started_s=draw(st.floats(900, 999)),
                standby=draw(st.booleans()),
                overdue=loads and draw(st.booleans()),
                failed=draw(st.sampled_from([False, False, False, True])),
                in_flight=draw(st.one_of(st.none(), st.integers(0, 30))),
                drained=state == "draining" and draw(st.booleans()),
                draining_s=990.0 if state == "draining" else None,
            )
        )
    return tuple(replicas)


@st.composite
def states(draw: st.DrawFn) -> DeciderState:
    if draw(st.booleans()):
        return DeciderState()
    moments = sorted(draw(st.lists(st.floats(900, 999), min_size=1, max_size=5)))
    totals = draw(st.lists(st.integers(0, 30), min_size=len(moments), max_size=len(moments)))
    memory: list[tuple[str, float]] = []
    if draw(st.booleans()):
        memory.append(("backlog_units", draw(st.floats(0.1, 100))))
    return DeciderState(
        recommendations=tuple(zip(moments, totals, strict=True)),
        totals=tuple(zip(moments, totals, strict=True)),
        last_desired=totals[-1],
        panic_since_s=draw(st.one_of(st.none(), st.floats(900, 999))),
        memory=tuple(memory),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[ScalingPolicy, DeciderState, tuple[Replica, ...], float | None]:
    """Policy, state, replicas, and the forecast's maximum or None."""
    return draw(policies()), draw(states()), draw(crews()), draw(st.one_of(st.none(), LOADS))


Given = tuple[ScalingPolicy, DeciderState, tuple[Replica, ...], float | None]


def decided(given_: Given, per_s: float | None, **fields: Any) -> Decision:
    policy, state, replicas, maximum = given_
    observation = an_observation(NOW, per_s, replicas, service_s=3.0, **fields)
    observation = replace(observation, demand=policy.spec.signal.units(per_s, 3.0))
    forecast = None if maximum is None else a_forecast(maximum, NOW)
    return decide(policy, state, observation, forecast, NOW)


@REPEATABLE
@given(situations(), st.one_of(st.none(), LOADS), st.integers(0, 500))
def test_bounds_hold(given_: Given, per_s: float | None, backlog: int) -> None:
    policy = given_[0]
    decision = decided(given_, per_s, backlog=backlog)
    assert [target.variant for target in decision.targets] == [variant.name for variant in policy.spec.variants]
    for target, variant in zip(decision.targets, policy.spec.variants, strict=True):
        assert target.active >= variant.min_replicas
        assert target.standby >= 0
        assert target.active + target.standby <= variant.max_replicas
    assert decision.desired == sum(target.active for target in decision.targets)
    most = sum(variant.max_replicas for variant in policy.spec.variants)
    assert decision.desired >= min(1, most)
    assert decision.steps[-1].after == decision.desired


@REPEATABLE
@given(situations(), LOADS, LOADS, st.integers(0, 300), st.integers(0, 300))
def test_more_load_never_means_fewer_replicas(
    given_: Given, one: float, other: float, queue: int, more_queue: int
) -> None:
    low, high = sorted((one, other))
    less = decided(given_, low, backlog=min(queue, more_queue))
    more = decided(given_, high, backlog=max(queue, more_queue))
    assert more.desired >= less.desired


@REPEATABLE
@given(situations(), st.one_of(st.none(), LOADS), LOADS, LOADS)
def test_a_higher_forecast_never_means_fewer_replicas(
    given_: Given, per_s: float | None, one: float, other: float
) -> None:
    policy, state, replicas, _ = given_
    low, high = sorted((one, other))
    less = decided((policy, state, replicas, low), per_s)
    more = decided((policy, state, replicas, high), per_s)
    assert more.desired >= less.desired
    assert less.desired >= decided((policy, state, replicas, None), per_s).desired


@REPEATABLE
@given(situations(), st.one_of(st.none(), LOADS), st.booleans())
def test_an_unknown_or_partly_known_load_never_scales_down(given_: Given, per_s: float | None, drained: bool) -> None:
    policy, state, _, _ = given_
    decision = decided(given_, per_s, trusted=False)
    most = sum(variant.max_replicas for variant in policy.spec.variants)
    assert decision.desired >= min(state.last_desired or 0, most)


@REPEATABLE
@given(policies(), crews(), st.one_of(st.none(), LOADS))
def test_the_first_tick_never_lowers(policy: ScalingPolicy, replicas: tuple[Replica, ...], per_s: float | None) -> None:
    decision = decided((policy, DeciderState(), replicas, None), per_s)
    living = [item for item in replicas if not item.failed and not item.standby]
    there = sum(item.state in (ReplicaState.REQUESTED, ReplicaState.STARTING, ReplicaState.READY) for item in living)
    assert decision.desired >= min(there, sum(variant.max_replicas for variant in policy.spec.variants))


@REPEATABLE
@given(situations(), st.one_of(st.none(), LOADS), st.integers(0, 500))
def test_equal_inputs_give_equal_decisions(given_: Given, per_s: float | None, backlog: int) -> None:
    assert decided(given_, per_s, backlog=backlog) == decided(given_, per_s, backlog=backlog)


def a_decision(policy: ScalingPolicy, numbers: list[tuple[int, int]]) -> Decision:
    targets = tuple(
        VariantTarget(variant=variant.name, active=active, standby=standby)
        for variant, (active, standby) in zip(policy.spec.variants, numbers, strict=False)
    )
    desired = sum(target.active for target in targets)
    state = DeciderState()
    return Decision(at=NOW, desired=desired, targets=targets, steps=(), next_state=state, reason="")


TARGETS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=3, max_size=3)


@REPEATABLE
@given(policies(), crews(), TARGETS)
def test_a_plan_converges_and_stops_nothing_before_it_is_drained(
    policy: ScalingPolicy, replicas: tuple[Replica, ...], numbers: list[tuple[int, int]]
) -> None:
    """Planning again after the commands gives nothing; `Crew` fails on a stop of what is not drained, and on a start
    too many."""
    decision = a_decision(policy, numbers)
    crew = Crew(replicas)
    commands = plan(policy, decision, replicas)
    crew.apply(commands, NOW)
    assert plan(policy, decision, tuple(crew.replicas.values())) == ()
    for target in decision.targets:
        own = [item for item in crew.replicas.values() if item.variant == target.variant and not item.failed]
        there = [item for item in own if item.state not in (ReplicaState.DRAINING, ReplicaState.STOPPING)]
        assert len(there) == target.active + target.standby
        ready = [item for item in there if item.state is ReplicaState.READY]
        if sum(not item.standby for item in ready) < target.active:  # nothing waits unrouted meanwhile
            assert not any(item.standby for item in ready)
        if any(
            item.variant == target.variant for item in crew.replicas.values() if item.state is ReplicaState.DRAINING
        ):
            assert not any(item.action is Action.START and item.variant == target.variant for item in commands)


@REPEATABLE
@given(policies(), crews(), TARGETS)
def test_a_plan_does_not_depend_on_the_order_of_replicas(
    policy: ScalingPolicy, replicas: tuple[Replica, ...], numbers: list[tuple[int, int]]
) -> None:
    decision = a_decision(policy, numbers)

    def chosen(there: tuple[Replica, ...]) -> set[tuple[str, str | None]]:
        return {(item.action, item.replica) for item in plan(policy, decision, there)}

    assert chosen(replicas) == chosen(tuple(reversed(replicas)))


@settings(REPEATABLE, max_examples=40)
@given(
    policies(),
    st.lists(st.one_of(st.none(), st.floats(0, 400)), min_size=1, max_size=60),
    st.floats(1, 12),
)
def test_a_loop_never_has_more_than_the_maximum_and_orders_no_replica_twice(
    policy: ScalingPolicy, loads: list[float | None], start_s: float
) -> None:
    """Whatever happens to the load: living replicas of a variant never exceed its maximum, and a tick starts at most
    what is wanted and neither there nor on its way."""
    loop = Loop(policy, Crew(start_s=start_s))
    for second, load in enumerate(loads):
        loop.crew.advance(at(second))
        before = {name: item.variant for name, item in loop.crew.replicas.items()}
        sample = None if load is None else a_sample(at(second), (load,))
        decision = loop.tick(at(second), sample)
        for target, variant in zip(decision.targets, policy.spec.variants, strict=True):
            own = [item for item in loop.crew.replicas.values() if item.variant == variant.name]
            started = sum(item.id not in before for item in own)
            living = sum(item.state is not ReplicaState.DRAINING for item in own)
            assert living <= variant.max_replicas
            assert started <= max(
                0, target.active + target.standby - sum(name == variant.name for name in before.values())
            )


SECONDS = st.one_of(st.none(), st.floats(0, 400))


@REPEATABLE
@given(policies(), st.lists(st.tuples(SECONDS, st.booleans()), min_size=60, max_size=60), st.integers(1, 30))
def test_a_load_that_is_half_unknown_never_scales_down(
    policy: ScalingPolicy, story: list[tuple[float | None, bool]], last: int
) -> None:
    """Through the observation: unless every router saw at least half of the seconds, and all answered now, the total
    does not fall, whatever the known seconds say."""
    windows, state = Windows(), DeciderState(totals=((0, last),), recommendations=((0, last),), last_desired=last)
    most = sum(variant.max_replicas for variant in policy.spec.variants)
    seconds: list[float | None] = []
    for second, (load, alone) in enumerate(story):
        missing = ("http://b",) if alone else ()
        sample = a_sample(at(second), (load,), routers_missing=missing)
        windows, seen = fold(windows, sample, (), {}, policy, at(second))
        seconds.append(None if alone else load)
        decision = decide(policy, state, seen, None, at(second))
        known = sum(value is not None for value in seconds)
        if alone or 2 * known < len(seconds):
            assert not seen.trusted
            assert decision.desired >= min(state.last_desired or 0, most)
        else:
            assert seen.trusted
        state = decision.next_state


@REPEATABLE
@given(st.lists(st.tuples(SECONDS, st.booleans()), min_size=1, max_size=90))
def test_a_part_of_the_load_never_makes_it_less(story: list[tuple[float | None, bool]]) -> None:
    """The demand is at least what all routers saw, and what some saw only ever adds to it."""
    policy = a_policy()
    whole, partly = Windows(), Windows()
    for second, (load, alone) in enumerate(story):
        missing = ("http://b",) if alone else ()
        lost = a_sample(at(second), (None if alone else load,), routers_missing=missing)
        whole, least = fold(whole, lost, (), {}, policy, at(second))
        partly, seen = fold(partly, a_sample(at(second), (load,), routers_missing=missing), (), {}, policy, at(second))
        assert (seen.demand or 0.0) >= (least.demand or 0.0)
        assert (seen.panic_demand or 0.0) >= (least.panic_demand or 0.0)
        assert seen.trusted == least.trusted
