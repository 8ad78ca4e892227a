"""Runs commands, each one checked again against what is there now.

It knows no router and no decision. Starting and stopping go to the target; promote, demote, drain and resurrect are
marks kept here, which the next table carries to the routers. A command that has already happened is done again as
nothing; one that no longer fits (its replica is gone, or became something else since it was planned) is refused and
says why, so the next tick plans anew.

    command    | needs the replica to be                          | then
    START      | (a variant)                                      | the target starts one, active or standby
    PROMOTE    | starting or ready                                | active
    DEMOTE     | starting or ready                                | standby
    DRAIN      | starting or ready                                | draining
    RESURRECT  | draining                                         | as before the drain
    STOP       | draining and (drained or past the drain timeout) | stopped
               | or never ready (nothing was ever sent to it)     |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.errors import ControllerError
from autoscaler.model import Action, Applied, Command, Now, Replica, ReplicaState
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import ReplicaTarget


@dataclass(slots=True)
class Mark:
    """What was decided about one replica. `standby` None = as it was started; `drained` only counts while draining."""

    standby: bool | None = None
    draining: Now | None = None
    drained: bool = False
    in_flight: int | None = None


class Actuator:
    """Commands of one policy, carried out on a target."""

    def __init__(self, target: ReplicaTarget) -> None:
        self._target = target
        self._marks: dict[str, Mark] = {}
        self._present: set[str] = set()
        self.drains: dict[str, Now] = {}
        """When each replica that left, or is leaving, began to drain; kept for the record."""

    async def replicas(self, policy: ScalingPolicy, now: Now) -> tuple[Replica, ...]:
        """The target's replicas with the marks on them."""
        found = await self._target.replicas(policy, now)
        self._present = {replica.id for replica in found}
        self._marks = {name: mark for name, mark in self._marks.items() if name in self._present}
        return tuple(self._marked(replica) for replica in found)

    def acknowledged(self, drained: Mapping[str, bool], in_flight: Mapping[str, int]) -> None:
        """What the routers answered to the last table; rows of other policies' replicas are left alone."""
        for name, value in drained.items():
            if name not in self._present:
                continue
            mark = self._mark(name)
            mark.drained = value and mark.draining is not None
            mark.in_flight = in_flight.get(name)

    async def apply(self, policy: ScalingPolicy, commands: Sequence[Command], now: Now) -> tuple[Applied, ...]:
        """Run them in order. One that fails does not keep the others from running."""
        applied = []
        for command in commands:
            try:
                detail = await self._run(policy, command, now)
                applied.append(Applied(command=command, done=True, detail=detail))
            except ControllerError as error:
                applied.append(Applied(command=command, done=False, detail=str(error)))
        return tuple(applied)

    async def _run(self, policy: ScalingPolicy, command: Command, now: Now) -> str:
        if command.action is Action.START:
            started = await self._target.start(policy, command.variant, command.standby, now)
            return started.id
        name = command.replica
        assert name is not None, f"{command.action} names no replica"
        fresh = {replica.id: replica for replica in await self.replicas(policy, now)}
        replica = fresh.get(name)
        if replica is None or replica.state in (ReplicaState.STOPPING, ReplicaState.GONE):
            if command.action in (Action.STOP, Action.DRAIN):
                return f"{name} has left already"
            raise ControllerError(f"{name} has left meanwhile")
        mark = self._mark(name)
        match command.action:
            case Action.PROMOTE | Action.DEMOTE:
                _needs(replica, ReplicaState.READY, ReplicaState.STARTING)
                mark.standby = command.action is Action.DEMOTE
            case Action.DRAIN:
                _needs(replica, ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING)
                if mark.draining is None:
                    mark.draining, mark.drained = now, False
                    self.drains[name] = now
            case Action.RESURRECT:
                _needs(replica, ReplicaState.DRAINING, ReplicaState.READY, ReplicaState.STARTING)
                mark.draining, mark.drained = None, False
                self.drains.pop(name, None)
            case Action.STOP:
                check_stop(policy, replica, now)
                await self._target.stop(policy, name, now)
        return name

    def _mark(self, name: str) -> Mark:
        return self._marks.setdefault(name, Mark())

    def _marked(self, replica: Replica) -> Replica:
        mark = self._marks.get(replica.id)
        if mark is None:
            return replica
        marked = replace(
            replica,
            standby=replica.standby if mark.standby is None else mark.standby,
            in_flight=replica.in_flight if mark.in_flight is None else mark.in_flight,
            draining_s=replica.draining_s if mark.draining is None else mark.draining.monotonic_s,
            drained=mark.drained,
        )
        running = replica.state in (ReplicaState.STARTING, ReplicaState.READY)
        return replace(marked, state=ReplicaState.DRAINING) if running and mark.draining is not None else marked


def check_stop(policy: ScalingPolicy, replica: Replica, now: Now) -> None:
    """A stream is never cut by a stop. Raises `ControllerError` for a replica that served and has not been drained:
    it became ready, or was called back, since the stop was planned.
    """
    never_served = replica.ready_s is None or replica.failed
    drain_s = 0.0 if replica.draining_s is None else now.monotonic_s - replica.draining_s
    drained = replica.state is ReplicaState.DRAINING and replica.drained
    if not (never_served or drained or drain_s >= policy.spec.drain.timeout_seconds):
        raise ControllerError(f"{replica.id} is {replica.state} by now and has not been drained")


def _needs(replica: Replica, *states: ReplicaState) -> None:
    if replica.state not in states:
        raise ControllerError(f"{replica.id} is {replica.state} by now")
