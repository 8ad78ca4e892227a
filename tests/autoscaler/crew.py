"""A dumb model of replicas for stories and properties: it does what commands say, and starts take exactly as long as
it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.actuate.plan import plan
from autoscaler.decide.decider import decide
from autoscaler.model import (
    Action,
    Command,
    DeciderState,
    Decision,
    Now,
    Observation,
    Replica,
    ReplicaState,
    Sample,
)
from autoscaler.observe.observation import Windows, fold
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast


class Crew:
    """Replicas by id. Draining ones are drained at the next `advance`, as nothing is in flight here. Marks are those of
    the actuator: a replica that is called back is what it was before the drain, standby or not.
    """

    def __init__(self, replicas: Iterable[Replica] = (), start_s: float = 10.0) -> None:
        self.replicas = {replica.id: replica for replica in replicas}
        self.start_s = start_s
        self.started = 0
        self.hung: set[str] = set()
        """Replicas that never become ready."""

    def apply(self, commands: Iterable[Command], now: Now) -> None:
        """Do what they say; a command that does not fit its replica is an error of the plan."""
        for command in commands:
            if command.action is Action.START:
                self._start(command, now)
                continue
            assert command.replica is not None
            replica = self.replicas[command.replica]
            match command.action:
                case Action.PROMOTE | Action.DEMOTE:
                    assert replica.state in (ReplicaState.READY, ReplicaState.STARTING)
                    self._set(replica, standby=command.action is Action.DEMOTE)
                case Action.DRAIN:
                    assert replica.state is ReplicaState.READY
                    self._set(replica, state=ReplicaState.DRAINING, draining_s=now.monotonic_s, drained=False)
                case Action.RESURRECT:
                    assert replica.state is ReplicaState.DRAINING
                    back = ReplicaState.STARTING if replica.ready_s is None else ReplicaState.READY
                    self._set(replica, state=back, draining_s=None, drained=False)
                case Action.STOP:
                    assert replica.failed or replica.ready_s is None or replica.drained, f"{replica.id} was not drained"
                    del self.replicas[replica.id]

    def advance(self, now: Now) -> None:
        """Let starts arrive and drains end."""
        for replica in list(self.replicas.values()):
            due = now.monotonic_s - replica.started_s >= self.start_s and replica.id not in self.hung
            if replica.state is ReplicaState.STARTING and due:
                self._set(replica, state=ReplicaState.READY, ready_s=now.monotonic_s, overdue=False, in_flight=0)
            elif replica.state is ReplicaState.DRAINING:
                self._set(replica, drained=True)

    def count(self, state: ReplicaState, standby: bool = False) -> int:
        """Replicas in a state."""
        return sum(item.state is state and item.standby == standby for item in self.replicas.values())

    def _start(self, command: Command, now: Now) -> None:
        replica = Replica(
            id=f"{command.variant}-{self.started}",
            variant=command.variant,
            version="v1",
            state=ReplicaState.STARTING,
            started_s=now.monotonic_s,
            standby=command.standby,
        )
        self.started += 1
        self.replicas[replica.id] = replica

    def _set(self, replica: Replica, **fields: object) -> None:
        self.replicas[replica.id] = replace(replica, **fields)  # type: ignore[arg-type]  # any field of a replica


class Loop:
    """Observe, decide, plan and act against a crew, one tick a second; keeps what happened."""

    def __init__(self, policy: ScalingPolicy, crew: Crew | None = None) -> None:
        self.policy = policy
        self.crew = crew or Crew()
        self.windows = Windows()
        self.state = DeciderState()
        self.decisions: list[Decision] = []
        self.observation: Observation | None = None

    def tick(self, now: Now, sample: Sample | None, forecast: Forecast | None = None) -> Decision:
        """Once around."""
        self.crew.advance(now)
        replicas = tuple(self.crew.replicas.values())
        self.windows, seen = fold(self.windows, sample, replicas, {}, self.policy, now)
        decision = decide(self.policy, self.state, seen, forecast, now)
        self.state, self.observation = decision.next_state, seen
        self.crew.apply(plan(self.policy, decision, seen.replicas), now)
        self.decisions.append(decision)
        return decision
