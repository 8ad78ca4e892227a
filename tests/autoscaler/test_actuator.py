"""Commands are checked again before they are run, and running them twice changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.actuate.actuator import Actuator
from autoscaler.errors import ControllerError
from autoscaler.model import Action, Command, Now, Replica, ReplicaState
from autoscaler.policy import ScalingPolicy
from tests.builders import a_policy, a_replica, at

POLICY = a_policy(drain={"timeoutSeconds": 30})


class Target:
    """Replicas as given; remembers what it was asked."""

    def __init__(self, *replicas: Replica) -> None:
        self.there = {replica.id: replica for replica in replicas}
        self.states = {replica.id: replica.state for replica in replicas}
        self.asked: list[str] = []

    async def replicas(self, policy: ScalingPolicy, now: Now) -> tuple[Replica, ...]:
        return tuple(self.there.values())

    async def start(self, policy: ScalingPolicy, variant: str, standby: bool, now: Now) -> Replica:
        if variant == "broken":
            raise ControllerError("no device")
        self.asked.append(f"start {variant}")
        new = a_replica(f"new-{len(self.there)}", ReplicaState.STARTING, standby=standby)
        self.there[new.id] = new
        return new

    async def mark(self, policy: ScalingPolicy, replica: str, *, standby: bool, draining: Now | None) -> None:
        there = self.there[replica]
        self.there[replica] = replace(
            there,
            standby=standby,
            state=self.states.setdefault(replica, there.state) if draining is None else ReplicaState.DRAINING,
            draining_s=None if draining is None else draining.monotonic_s,
        )

    async def stop(self, policy: ScalingPolicy, replica: str, now: Now) -> None:
        self.asked.append(f"stop {replica}")

    async def close(self) -> None:
        self.asked.append("close")


def command(action: Action, replica: str | None = "r") -> Command:
    return Command(action=action, variant="gpu", replica=replica)


async def after(target: Target, *actions: Action, moment_s: float = 50) -> tuple[Actuator, list[bool]]:
    actuator = Actuator(target)
    applied = await actuator.apply(POLICY, [command(action) for action in actions], at(moment_s))
    return actuator, [row.done for row in applied]


@pytest.mark.parametrize(
    ("start", "actions", "done", "state", "standby"),
    [
        ("ready", [Action.DRAIN], [True], ReplicaState.DRAINING, False),
        ("ready", [Action.DRAIN, Action.DRAIN], [True, True], ReplicaState.DRAINING, False),
        ("ready", [Action.DRAIN, Action.RESURRECT], [True, True], ReplicaState.READY, False),
        ("ready", [Action.RESURRECT], [True], ReplicaState.READY, False),
        ("ready", [Action.DEMOTE], [True], ReplicaState.READY, True),
        ("ready", [Action.DEMOTE, Action.PROMOTE], [True, True], ReplicaState.READY, False),
        ("ready", [Action.DRAIN, Action.PROMOTE], [True, False], ReplicaState.DRAINING, False),
        ("ready", [Action.STOP], [False], ReplicaState.READY, False),
        ("ready", [Action.DRAIN, Action.STOP], [True, False], ReplicaState.DRAINING, False),
        ("starting", [Action.DRAIN], [True], ReplicaState.DRAINING, False),
        ("stopping", [Action.PROMOTE], [False], ReplicaState.STOPPING, False),
        ("stopping", [Action.STOP], [True], ReplicaState.STOPPING, False),
    ],
)
async def test_marks(start: str, actions: list[Action], done: list[bool], state: ReplicaState, standby: bool) -> None:
    target = Target(a_replica("r", start))
    actuator, outcomes = await after(target, *actions)
    (seen,) = await actuator.replicas(POLICY, at(50))
    assert (outcomes, seen.state, seen.standby) == (done, state, standby)
    assert target.asked == []


async def test_a_drain_keeps_its_beginning() -> None:
    target = Target(a_replica("r"))
    actuator, _ = await after(target, Action.DRAIN, moment_s=50)
    await actuator.apply(POLICY, [command(Action.DRAIN)], at(60))
    (seen,) = await actuator.replicas(POLICY, at(60))
    assert seen.draining_s == 50


@pytest.mark.parametrize(
    ("drained", "moment_s", "stopped"),
    [(False, 79.9, False), (True, 51, True), (False, 80, True)],
    ids=["not before it is drained", "once every router said so", "past the drain timeout"],
)
async def test_stop_of_a_replica_that_served(drained: bool, moment_s: float, stopped: bool) -> None:
    target = Target(a_replica("r"))
    actuator, _ = await after(target, Action.DRAIN, moment_s=50)
    actuator.acknowledged({"r": drained, "of another policy": True}, {"r": 2})
    (seen,) = await actuator.replicas(POLICY, at(moment_s))
    assert (seen.drained, seen.in_flight) == (drained, 2)
    (row,) = await actuator.apply(POLICY, [command(Action.STOP)], at(moment_s))
    assert row.done is stopped
    assert target.asked == (["stop r"] if stopped else [])


async def test_an_acknowledged_drain_that_was_called_back_does_not_count() -> None:
    target = Target(a_replica("r"))
    actuator, _ = await after(target, Action.DRAIN)
    actuator.acknowledged({"r": True}, {})
    await actuator.apply(POLICY, [command(Action.RESURRECT)], at(51))
    (row,) = await actuator.apply(POLICY, [command(Action.STOP)], at(52))
    assert (row.done, target.asked) == (False, [])
    assert "has not been drained" in row.detail


async def test_a_start_that_is_no_longer_needed_is_cancelled() -> None:
    target = Target(a_replica("r", "starting"))
    _, done = await after(target, Action.STOP)
    assert (done, target.asked) == ([True], ["stop r"])


async def test_a_start_that_became_ready_meanwhile_is_not_cut() -> None:
    target = Target(a_replica("r", "starting"))
    actuator = Actuator(target)
    planned = command(Action.STOP)
    target.there["r"] = replace(target.there["r"], state=ReplicaState.READY, ready_s=49.0)
    (row,) = await actuator.apply(POLICY, [planned], at(50))
    assert (row.done, target.asked) == (False, [])


async def test_one_failure_does_not_keep_the_rest_from_running() -> None:
    target = Target()
    rows = await Actuator(target).apply(
        POLICY,
        [
            Command(action=Action.START, variant="broken"),
            Command(action=Action.START, variant="gpu", standby=True),
            command(Action.PROMOTE, "absent"),
            command(Action.STOP, "absent"),
        ],
        at(0),
    )
    assert [(row.done, row.detail) for row in rows] == [
        (False, "no device"),
        (True, "new-0"),
        (False, "absent has left meanwhile"),
        (True, "absent has left already"),
    ]
    assert target.there["new-0"].standby


async def test_what_routers_said_of_replicas_that_are_gone_is_forgotten() -> None:
    target = Target(a_replica("r", in_flight=None))
    actuator, _ = await after(target, Action.DRAIN)
    actuator.acknowledged({"r": True}, {"r": 2})
    kept = target.there.pop("r")
    assert await actuator.replicas(POLICY, at(51)) == ()
    target.there["r"] = kept
    (seen,) = await actuator.replicas(POLICY, at(52))
    assert (seen.drained, seen.in_flight) == (False, None)


@pytest.mark.parametrize("standby", [False, True], ids=["active", "standby"])
async def test_the_next_actuator_finds_every_mark(standby: bool) -> None:
    """A restart of the controller: the target keeps what was decided, routers are asked again whether it is drained."""
    target = Target(a_replica("kept", standby=not standby), a_replica("leaving", standby=standby))
    first = Actuator(target)
    action = Action.DEMOTE if standby else Action.PROMOTE
    await first.apply(POLICY, [command(action, "kept"), command(Action.DRAIN, "leaving")], at(50))
    first.acknowledged({"leaving": True}, {})
    kept, leaving = await Actuator(target).replicas(POLICY, at(60))
    assert (kept.state, kept.standby) == (ReplicaState.READY, standby)
    assert (leaving.state, leaving.standby, leaving.draining_s) == (ReplicaState.DRAINING, standby, 50)
    assert not leaving.drained


async def test_a_standby_that_is_called_back_is_standby_until_it_is_promoted() -> None:
    target = Target(a_replica("r", standby=True))
    actuator, done = await after(target, Action.DRAIN, Action.RESURRECT)
    assert (done, (await actuator.replicas(POLICY, at(50)))[0].standby) == ([True, True], True)
    await actuator.apply(POLICY, [command(Action.PROMOTE)], at(50))
    assert not (await actuator.replicas(POLICY, at(50)))[0].standby
