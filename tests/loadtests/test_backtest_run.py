"""Whole runs against a second implementation without any of its shortcuts, and what no run may do: see the future, lose
a replica, or differ from itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.decide.decider import decide
from autoscaler.model import DeciderState, Decision, Now, Observation, Replica, ReplicaState, Sample, VariantTarget
from autoscaler.observe.observation import Windows, fold
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.backtest_load import Load
from loadtests.backtest_run import run_law, story
from loadtests.backtest_score import score
from loadtests.backtest_world import Setting, World, world_of
from loadtests.peer_laws import LAWS
from tests.loadtests.backtest_loads import daily, policy

ALL: dict[str, Law] = {"tidegate": decide, **LAWS}


def a_world(hours: float = 4.0, gaps: bool = True, **spec: Any) -> World:
    return world_of(daily(hours, gaps=gaps), policy(**spec), Setting(judge_from_day=1 / 24))


def naive(world: World, law: Law) -> dict[str, list[float]]:
    """The world step by step, with nothing shared, nothing skipped and nothing integrated: every observation by `fold`
    from a sample of its own, replicas as a list in order of start, waits judged at a thousand moments of a step.
    """
    spec = world.policy.spec
    queue_s, timeout_s = spec.slo.queue_seconds, spec.routing.queue.timeout_seconds
    start_s, step_s = spec.variants[0].start_time.p90_seconds, world.step_s
    rows: dict[str, list[float]] = {name: [] for name in ("ready", "starting", "standby", "desired", "late", "waiting")}
    crew: list[Replica] = []
    born = 0

    for _ in range(math.ceil(world.demand[0])):
        born += 1
        crew.append(_born(born, 0.0, ReplicaState.READY, False))
    windows, state, waiting, desired, told = Windows(), DeciderState(), 0.0, len(crew), 0
    for step, demand in enumerate(world.demand.tolist()):
        now = Now(monotonic_s=step * step_s, epoch_s=step * step_s)
        crew = [
            replace(item, state=ReplicaState.READY, ready_s=now.monotonic_s)
            if item.state is ReplicaState.STARTING and now.monotonic_s >= item.started_s + start_s
            else item
            for item in crew
        ]
        if step:
            last = world.demand[step - 1]
            sample = None
            if world.load.seen[step - 1]:
                queued = round(waiting * world.shown_per_s)
                served = any(item.state is ReplicaState.READY and not item.standby for item in crew)
                sample = Sample(
                    at=now,
                    arrivals=(*(None,) * ((step - 1 - told) * 15), *(float(last * world.shown_per_s),) * 15),
                    in_flight=round(last * 40),
                    queued=queued,
                    oldest_s=min(timeout_s, waiting / last) if waiting else None,
                    held_from_zero=0 if served else queued,
                    service_count=0,
                    service_sum_s=0.0,
                )
                told = step
            windows, seen = fold(windows, sample, crew, world.start_times, world.policy, now)
            decision = law(world.policy, state, seen, None, now)
            state, desired = decision.next_state, decision.desired
            crew = _arranged(crew, decision.targets[0])
            for _ in range(decision.targets[0].active + decision.targets[0].standby - len(crew)):
                born += 1
                standby = sum(not item.standby for item in crew) >= decision.targets[0].active
                crew.append(_born(born, now.monotonic_s, ReplicaState.STARTING, standby))
        capacity = sum(item.state is ReplicaState.READY and not item.standby for item in crew)
        waiting = min(waiting, capacity * timeout_s)
        moments = (np.arange(1000) + 0.5) * step_s / 1000
        late = float(np.mean(waiting + (demand - capacity) * moments > queue_s * capacity)) * demand * step_s
        waiting = min(max(0.0, waiting + (demand - capacity) * step_s), capacity * timeout_s)
        rows["ready"].append(capacity)
        rows["starting"].append(sum(item.state is ReplicaState.STARTING for item in crew))
        rows["standby"].append(sum(item.state is ReplicaState.READY and item.standby for item in crew))
        rows["desired"].append(desired)
        rows["late"].append(late)
        rows["waiting"].append(waiting)
    return rows


def _born(number: int, at_s: float, state: ReplicaState, standby: bool) -> Replica:
    ready_s = at_s if state is ReplicaState.READY else None
    name = f"p-gpu-{number:06d}"
    return Replica(id=name, variant="gpu", version="v1", state=state, started_s=at_s, ready_s=ready_s, standby=standby)


def _arranged(crew: list[Replica], target: VariantTarget) -> list[Replica]:
    """The crew after roles and cancelling, before any start: newest loading ones go first, then newest ready ones."""
    wanted = target.active + target.standby

    def by_age(state: ReplicaState, standby: bool | None = None) -> list[Replica]:
        return [item for item in crew if item.state is state and standby in (None, item.standby)]

    def turn(item: Replica, standby: bool) -> None:
        crew[crew.index(item)] = replace(item, standby=standby)

    while len(by_age(ReplicaState.READY, False)) < target.active and by_age(ReplicaState.READY, True):
        turn(by_age(ReplicaState.READY, True)[0], False)
    while (
        len(by_age(ReplicaState.READY, False)) > target.active
        and len(by_age(ReplicaState.READY, True)) < target.standby
    ):
        turn(max(by_age(ReplicaState.READY, False), key=lambda item: (item.started_s, -ord(item.id[-1]))), True)
    while len(crew) > wanted and by_age(ReplicaState.STARTING):
        crew.remove(min(by_age(ReplicaState.STARTING), key=lambda item: (-item.started_s, item.id)))
    while len(crew) > wanted:
        spare = len(by_age(ReplicaState.READY, True)) > target.standby
        group = by_age(ReplicaState.READY, spare)
        crew.remove(min(group, key=lambda item: (-item.started_s, item.id)))
    return crew


@pytest.mark.parametrize("name", ["tidegate", "hpa", "knative"])
def test_a_second_implementation_agrees(name: str) -> None:
    world = a_world()
    run, plain = run_law(world, ALL[name], name), naive(world, ALL[name])
    for column in ("ready", "starting", "standby", "desired"):
        assert getattr(run, column).tolist() == plain[column], column
    assert run.backlog == pytest.approx(np.array(plain["waiting"]), abs=1e-6)
    assert run.late == pytest.approx(np.array(plain["late"]), abs=0.002 * 15 * float(world.demand.max()))
    assert run.late.sum() > 0


def test_a_second_implementation_agrees_on_standby_and_limits() -> None:
    slow = {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}
    world = a_world(gaps=False, warmPool={"standby": 2}, behavior=slow)
    run, plain = run_law(world, decide, "tidegate"), naive(world, decide)
    for column in ("ready", "starting", "standby", "desired"):
        assert getattr(run, column).tolist() == plain[column], column


def test_the_shared_story_is_what_fold_says_with_replicas_and_queue() -> None:
    world, heard = a_world(2.0), list[Observation]()

    def listening(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        heard.append(seen)
        return decide(policy, state, seen, forecast, now)

    told: list[Observation] = []

    def naive_listening(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        told.append(seen)
        return decide(policy, state, seen, forecast, now)

    run_law(world, listening, "tidegate")
    naive(world, naive_listening)
    assert len(heard) == len(world) - 1
    for one, other in zip(heard, told, strict=True):
        assert replace(one, replicas=(), oldest_s=None) == replace(other, replicas=(), oldest_s=None)
        assert {item.id for item in one.replicas} == {item.id for item in other.replicas}
        assert one.oldest_s == pytest.approx(other.oldest_s)


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_future_changes_nothing_before_it(name: str) -> None:
    world = a_world(2.5)
    whole = run_law(world, ALL[name], name)
    for cut in (200, 333):
        other = run_law(world.before(cut), ALL[name], name)
        for column in ("ready", "starting", "standby", "desired", "backlog", "late", "evicted", "gpus"):
            assert getattr(other, column).tolist() == getattr(whole, column)[:cut].tolist()
        assert other.turns == tuple(turn for turn in whole.turns if turn.t_s < cut * 15)


@pytest.mark.parametrize("name", sorted(ALL))
def test_work_and_replica_time_are_conserved(name: str) -> None:
    world = a_world(2.5, warmPool={"standby": 1})
    run = run_law(world, ALL[name], name)
    came = world.demand * 15
    served = came - run.evicted - np.diff(run.backlog, prepend=0.0)
    assert served.min() > -1e-6
    assert np.all(served <= run.ready * 15 + 1e-6)
    assert run.gpus.tolist() == (run.ready + run.starting + run.standby).tolist()
    assert run.late.min() >= 0.0
    assert run.late.sum() <= came.sum() + 1e-6
    entry = score(run)
    assert entry["requests"] == entry["answered"] + entry["refused"]
    assert entry["requests"] == round(float(came[world.judged :].sum()) * world.unit_per_s)


def test_the_same_again_is_the_same() -> None:
    world = a_world()
    seen = story(world)
    one, two = (run_law(world, decide, "tidegate", seen=given) for given in (seen, None))
    assert one.turns == two.turns
    assert one.late.tolist() == two.late.tolist()
    assert score(one) == score(two)


def test_a_start_takes_its_time_and_is_paid_from_its_command() -> None:
    """Demand steps from 4 to 8 replicas at step 40; the law sees it a step later, and 8 steps of loading follow."""
    rate = np.where(np.arange(100) < 40, 4.0, 8.0)
    load = Load(start_s=0.0, step_s=15.0, rate_per_s=rate, seen=np.ones(100, dtype=np.bool_))
    world = world_of(load, policy(), Setting(replicas_mean=float(rate.mean()), judge_from_day=0.0))
    run = run_law(world, LAWS["hpa"], "hpa")
    begins = int(np.flatnonzero(run.starting[30:])[0]) + 30
    assert begins == 41
    assert run.starting[begins : begins + 8].min() > 0
    assert run.ready[begins + 7] == run.ready[begins - 1]
    assert run.ready[begins + 8] == run.ready[begins - 1] + run.starting[begins]
    assert run.gpus[begins] == run.ready[begins] + run.starting[begins]


def test_what_was_not_seen_is_not_acted_upon() -> None:
    """The load vanishes while the collector is down: no law that acts on load may follow it."""
    rate = np.full(400, 10.0)
    rate[200:300] = 0.5
    seen = np.ones(400, dtype=np.bool_)
    seen[195:305] = False
    world = world_of(
        Load(start_s=0.0, step_s=15.0, rate_per_s=rate, seen=seen),
        policy(),
        Setting(replicas_mean=10.0, judge_from_day=0.0),
    )
    for name in ("tidegate", "hpa", "keda", "knative"):
        run = run_law(world, ALL[name], name)
        assert run.desired[196:300].min() == run.desired[196:300].max(), name


def test_two_variants_are_started_at_their_own_pace() -> None:
    fast = {
        "name": "small",
        "scaleTargetRef": {"name": "y"},
        "capacity": 10,
        "costPerHour": 2.0,
        "minReplicas": 0,
        "maxReplicas": 400,
        "startTime": {"p50Seconds": 30, "p90Seconds": 30},
        "resource": {"name": "nvidia.com/mig-2g.20gb"},
    }
    big = {
        "name": "gpu",
        "scaleTargetRef": {"name": "x"},
        "capacity": 40,
        "costPerHour": 4.0,
        "minReplicas": 1,
        "maxReplicas": 15,
        "startTime": {"p50Seconds": 300, "p90Seconds": 300},
    }
    world = world_of(daily(4.0), policy(variants=[big, fast]), Setting(judge_from_day=0.0))
    run = run_law(world, decide, "tidegate")
    entry = score(run)
    assert run.ready.max() > 15
    # Some seven of the small ones take the place of one GPU and its price: neither is a count of replicas.
    assert entry["gpu_hours"] < float((run.ready + run.starting).sum()) * 15 / 3600
    assert entry["cost"] == pytest.approx(float(run.price.sum()) * 15 / 3600)
