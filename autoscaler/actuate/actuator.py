"""Runs commands, each one checked again against what is there now.

It knows no router and no decision. Starting and stopping go to the target; promote, demote, drain and resurrect are
marks that the target keeps with the replica (they outlive this process) and the next table carries to the routers. What
routers said of a drain is kept here: after a restart they are asked again. A command that has already happened is done again as
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
from dataclasses import replace

from autoscaler.errors import ControllerError
from autoscaler.model import Action, Applied, Command, Now, Replica, ReplicaState
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import ReplicaTarget


class Actuator:
    """Commands of one policy, carried out on a target."""

    def __init__(self, target: ReplicaTarget) -> None:
        self._target = target
        self._drained: set[str] = set()
        self._in_flight: dict[str, int] = {}
        self._present: set[str] = set()

    async def replicas(self, policy: ScalingPolicy, now: Now) -> tuple[Replica, ...]:
        """The target's replicas, with what the routers said of them."""
        found = await self._target.replicas(policy, now)
        self._present = {replica.id for replica in found}
        self._drained &= self._present
        self._in_flight = {name: count for name, count in self._in_flight.items() if name in self._present}
        return tuple(self._told(replica) for replica in found)

    def acknowledged(self, drained: Mapping[str, bool], in_flight: Mapping[str, int]) -> None:
        """What the routers answered to the last table; rows of other policies' replicas are left alone."""
        own = self._present & drained.keys()
        self._drained = {name for name in own if drained[name]} | (self._drained - own)
        kept = {name: count for name, count in self._in_flight.items() if name not in own}
        self._in_flight = kept | {name: in_flight[name] for name in own if name in in_flight}

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
        match command.action:
            case Action.PROMOTE | Action.DEMOTE:
                _needs(replica, ReplicaState.READY, ReplicaState.STARTING)
                await self._target.mark(policy, name, standby=command.action is Action.DEMOTE, draining=None)
            case Action.DRAIN:
                _needs(replica, ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING)
                if replica.state is not ReplicaState.DRAINING:
                    self._drained.discard(name)
                    await self._target.mark(policy, name, standby=replica.standby, draining=now)
            case Action.RESURRECT:
                _needs(replica, ReplicaState.DRAINING, ReplicaState.READY, ReplicaState.STARTING)
                self._drained.discard(name)
                await self._target.mark(policy, name, standby=replica.standby, draining=None)
            case Action.STOP:
                check_stop(policy, replica, now)
                await self._target.stop(policy, name, now)
        return name

    def _told(self, replica: Replica) -> Replica:
        return replace(
            replica,
            in_flight=self._in_flight.get(replica.id, replica.in_flight),
            drained=replica.state is ReplicaState.DRAINING and replica.id in self._drained,
        )


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
