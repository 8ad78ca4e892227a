"""One law over one world: every step the law sees what the controller would see, decides, and its replicas follow.

The observation is made by the controller's own `fold`, once a world (what the windows hold does not depend on the law);
only replicas and queue are filled in per law. Commands come from the controller's own `plan`. At the tick of step k the
law knows the load of step k - 1 and the queue that it left; what it starts is ready `start_time` later, at the next
boundary between steps. A step that was not seen brings no report, as from a router that does not answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.actuate.plan import plan
from autoscaler.model import Action, Command, DeciderState, Decision, Now, Observation, Replica, ReplicaState, Sample
from autoscaler.observe.observation import Windows, fold
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.backtest_load import Floats
from loadtests.backtest_world import FluidQueue, World, recent_work

ForecastAt = Callable[[int], Forecast | None]
"""The newest forecast at the tick of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A tick at which the total changed: `t_s` on the trace's clock, and the law's own words."""

    t_s: float
    desired: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What became of one law. All arrays of shape (n,), one entry a step.

    Counts are of the step, `desired` of the tick at its beginning. `backlog` (at its end), `late`, `evicted` are work in
    replica-seconds, `gpus` the GPUs paid for during it and `price` their price an hour.
    """

    law: str
    world: World
    ready: Floats
    starting: Floats
    standby: Floats
    desired: Floats
    backlog: Floats
    late: Floats
    evicted: Floats
    gpus: Floats
    price: Floats
    turns: tuple[Turn, ...]


def no_forecast(step: int) -> Forecast | None:
    """For laws that do not look ahead."""
    return None


def story(world: World) -> tuple[Observation, ...]:
    """What any law sees of the load at the tick of each step, replicas and queue left empty. Made by `fold`."""
    windows, told = Windows(), 0
    length = max(1, round(world.policy.spec.behavior.panic.stable_window_seconds))
    seen = []
    start_times = world.start_times
    rates, counts = world.shown().tolist(), np.rint(_in_units(world)).astype(int).tolist()
    for step, known in enumerate(_known_before(world)):
        now = moment(world, step)
        sample = None
        if known:
            missed = (step - 1 - told) * world.step_s
            lost = (None,) * min(length, round(missed))
            sample = Sample(
                at=now,
                arrivals=(*lost, *(rates[step - 1],) * round(world.step_s)),
                in_flight=counts[step - 1],
                queued=0,
                oldest_s=None,
                held_from_zero=0,
                service_count=0,
                service_sum_s=0.0,
            )
            told = step
        windows, observation = fold(windows, sample, (), start_times, world.policy, now)
        seen.append(observation)
    return tuple(seen)


def run_law(
    world: World,
    law: Law,
    name: str,
    *,
    forecast_at: ForecastAt = no_forecast,
    seen: Sequence[Observation] | None = None,
) -> Run:
    """Play the whole world under `law`. `seen`: the world's `story`, if it is known already.

    Raises what the law raises: a law that cannot decide is a bug.
    """
    play = _Play(world)
    state = DeciderState()
    policy = world.policy
    for base in story(world) if seen is None else seen:
        step = play.step
        if step:
            observation = play.observed(base)
            decision = law(policy, state, observation, forecast_at(step), observation.at)
            state = decision.next_state
            play.follow(decision)
        play.serve()
    return play.run(name)


def moment(world: World, step: int) -> Now:
    """The tick at the beginning of a step. The trace's clock serves as both."""
    at_s = world.load.start_s + step * world.step_s
    return Now(monotonic_s=at_s, epoch_s=at_s)


def _in_units(world: World) -> Floats:
    """Offered load of each step in signal units."""
    return world.demand * world.policy.spec.serving[0].capacity


def _known_before(world: World) -> list[bool]:
    """For each tick, whether the step before it was seen."""
    return [False, *world.load.seen[:-1].tolist()]


@dataclass(slots=True)
class Fleet:
    """Replicas of one law. `ready_at` holds the step at which each loading one is ready; `capacity`, `gpus` and `price`
    are of the moment.
    """

    policy: ScalingPolicy
    replicas: tuple[Replica, ...] = ()
    changed: bool = True
    number: int = 0
    ready_at: dict[str, int] = field(default_factory=dict)
    capacity: float = 0.0
    counts: tuple[int, int, int] = (0, 0, 0)
    gpus: float = 0.0
    price: float = 0.0

    def begin(self, routed: int, now: Now) -> None:
        """Replicas that are ready at the beginning."""
        for _ in range(routed):
            variant = self.policy.spec.serving[0].name
            self.replicas += (self._new(variant, standby=False, now=now, state=ReplicaState.READY),)
        self._count()

    def arrive(self, step: int, now: Now) -> None:
        """Loading replicas whose time has come are ready."""
        due = {name for name, at in self.ready_at.items() if at <= step}
        if due:
            self.replicas = tuple(
                replace(item, state=ReplicaState.READY, ready_s=now.monotonic_s) if item.id in due else item
                for item in self.replicas
            )
            for name in due:
                del self.ready_at[name]
            self._count()

    def obey(self, commands: Sequence[Command], step: int, now: Now, load_steps: dict[str, int]) -> None:
        """Carry out the planner's commands; a drain ends at once, as a flow has no requests to wait for."""
        crew = {item.id: item for item in self.replicas}
        for command in commands:
            name = command.replica or ""
            match command.action:
                case Action.START:
                    item = self._new(command.variant, standby=command.standby, now=now, state=ReplicaState.STARTING)
                    crew[item.id] = item
                    self.ready_at[item.id] = step + load_steps[command.variant]
                case Action.STOP | Action.DRAIN:
                    del crew[name]
                    self.ready_at.pop(name, None)
                case Action.PROMOTE:
                    crew[name] = replace(crew[name], standby=False)
                case Action.DEMOTE:
                    crew[name] = replace(crew[name], standby=True)
                case Action.RESURRECT:
                    raise AssertionError("nothing drains for longer than a moment here")
        if commands:
            self.replicas = tuple(crew.values())
            self._count()

    def _new(self, variant: str, *, standby: bool, now: Now, state: ReplicaState) -> Replica:
        self.number += 1
        return Replica(
            id=f"{self.policy.metadata.name}-{variant}-{self.number:06d}",
            variant=variant,
            version=self.policy.variant(variant).version,
            state=state,
            started_s=now.monotonic_s,
            ready_s=now.monotonic_s if state is ReplicaState.READY else None,
            standby=standby,
        )

    def _count(self) -> None:
        self.changed = True
        ready = starting = standby = 0
        capacity = gpus = price = 0.0
        variants = {variant.name: variant for variant in self.policy.spec.variants}
        unit = self.policy.spec.serving[0].capacity
        for item in self.replicas:
            variant = variants[item.variant]
            gpus += variant.gpu_share
            price += variant.cost_per_hour or 0.0
            if item.state is not ReplicaState.READY:
                starting += 1
            elif item.standby:
                standby += 1
            else:
                ready += 1
                capacity += variant.capacity / unit
        self.counts, self.capacity, self.gpus, self.price = (ready, starting, standby), capacity, gpus, price


class _Play:
    """The state of a run in the making."""

    def __init__(self, world: World) -> None:
        policy, timeout_s = world.policy, world.policy.spec.routing.queue.timeout_seconds
        self.world = world
        self.step = 0
        self._policy = policy
        self._queue = FluidQueue(world.step_s, policy.spec.slo.queue_seconds, timeout_s)
        self._recent = recent_work(world.demand, world.step_s, timeout_s).tolist()
        self._demand = world.demand.tolist()
        self._known = _known_before(world)
        self._reported: tuple[int, float | None, int] = (0, None, 0)
        self._load_steps = {
            variant.name: math.ceil(variant.start_time.p90_seconds / world.step_s - 1e-9)
            for variant in policy.spec.variants
        }
        self._fleet = Fleet(policy)
        self._fleet.begin(math.ceil(self._demand[0] - 1e-9), moment(world, 0))
        self._targets: object = None
        self._desired = len(self._fleet.replicas)
        self._rows: list[tuple[float, ...]] = []
        self._turns: list[Turn] = []

    def observed(self, base: Observation) -> Observation:
        """The world's observation with this law's replicas and queue."""
        self._fleet.arrive(self.step, base.at)
        if self._known[self.step]:
            self._reported = self._queued()
        backlog, oldest_s, held = self._reported if base.backlog is not None else (None, None, 0)
        return replace(base, backlog=backlog, oldest_s=oldest_s, held_from_zero=held, replicas=self._fleet.replicas)

    def follow(self, decision: Decision) -> None:
        """Do what was decided. The planner is asked when the decision or the replicas are not those of its last answer:
        asked again about the same it gives nothing.
        """
        if decision.valid and (self._fleet.changed or decision.targets != self._targets):
            self._targets, self._fleet.changed = decision.targets, False
            commands = plan(self._policy, decision, self._fleet.replicas)
            self._fleet.obey(commands, self.step, decision.at, self._load_steps)
        if decision.desired != self._desired:
            self._desired = decision.desired
            self._turns.append(Turn(t_s=decision.at.monotonic_s, desired=decision.desired, reason=decision.reason))

    def serve(self) -> None:
        """The step itself, and its row."""
        fleet, queue = self._fleet, self._queue
        late, evicted = queue.step(self._demand[self.step], fleet.capacity, self._recent[self.step])
        self._rows.append((*fleet.counts, self._desired, queue.backlog, late, evicted, fleet.gpus, fleet.price))
        self.step += 1

    def run(self, name: str) -> Run:
        """The finished run."""
        columns = np.array(self._rows, dtype=np.float64).T
        ready, starting, standby, desired, backlog, late, evicted, gpus, price = columns
        return Run(
            law=name,
            world=self.world,
            ready=ready,
            starting=starting,
            standby=standby,
            desired=desired,
            backlog=backlog,
            late=late,
            evicted=evicted,
            gpus=gpus,
            price=price,
            turns=tuple(self._turns),
        )

    def _queued(self) -> tuple[int, float | None, int]:
        """(requests queued, seconds that the oldest waits, requests held because no replica is ready)."""
        waiting = self._queue.backlog
        if waiting <= 0.0:
            return 0, None, 0
        queued = round(waiting * self.world.shown_per_s)
        demand = self._demand[self.step - 1]
        oldest_s = min(self._queue.timeout_s, waiting / demand if demand > 0 else self._queue.timeout_s)
        return queued, oldest_s, queued if self._fleet.capacity <= 0.0 else 0
