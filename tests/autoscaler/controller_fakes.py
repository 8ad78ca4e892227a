"""A small world for control loops in explicit time: routers, replicas and a history that do what they are told.

Nothing waits: replicas become ready when the story's clock passes their start time, routers say drained when the
story says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.controller.forecasts import Run
from autoscaler.controller.loop import Board, ControlLoop, World
from autoscaler.controller.tick import Tick
from autoscaler.decide.decider import decide
from autoscaler.errors import ControllerError
from autoscaler.model import DecisionRecord, Now, Replica, ReplicaState, Sample, StartTime
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from tests.builders import a_forecast, a_sample, at


@dataclass
class FakeSource:
    """`per_s` arrivals in every second since the last read; None = no router answers."""

    per_s: float | None = 0.0
    fields: dict[str, object] = field(default_factory=dict)
    _read_s: float | None = None

    async def read(self, policy: ScalingPolicy, now: Now) -> Sample | None:
        if self.per_s is None:
            return None
        seconds = 60 if self._read_s is None else round(now.monotonic_s - self._read_s)
        self._read_s = now.monotonic_s
        return a_sample(now, [self.per_s] * seconds, **self.fields)


@dataclass
class FakeReplicas:
    """Replicas that are ready `start_s` after their start; `crash` makes one vanish as a dead process does."""

    start_s: float = 10.0
    broken: bool = False
    rows: dict[str, Replica] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    _number: int = 0

    async def replicas(self, policy: ScalingPolicy, now: Now) -> tuple[Replica, ...]:
        for name, row in self.rows.items():
            due_s = row.started_s + self.start_s
            if row.state is ReplicaState.STARTING and now.monotonic_s >= due_s:
                self.rows[name] = replace(row, state=ReplicaState.READY, ready_s=due_s)
        return tuple(self.rows.values())

    async def start(self, policy: ScalingPolicy, variant: str, standby: bool, now: Now) -> Replica:
        if self.broken:
            raise ControllerError(f"variant {variant}: no free device")
        self._number += 1
        row = Replica(
            id=f"chat-{variant}-{self._number}",
            variant=variant,
            version="v1",
            state=ReplicaState.STARTING,
            started_s=now.monotonic_s,
            standby=standby,
            url=f"http://127.0.0.1:{20_000 + self._number}",
        )
        self.rows[row.id] = row
        return row

    async def mark(self, policy: ScalingPolicy, replica: str, *, standby: bool, draining: Now | None) -> None:
        row = self.rows[replica]
        state = ReplicaState.STARTING if row.ready_s is None else ReplicaState.READY
        self.rows[replica] = replace(
            row,
            standby=standby,
            state=state if draining is None else ReplicaState.DRAINING,
            draining_s=None if draining is None else draining.monotonic_s,
        )

    async def stop(self, policy: ScalingPolicy, replica: str, now: Now) -> None:
        self.stopped.append(replica)
        del self.rows[replica]

    async def close(self) -> None:
        self.rows.clear()

    def crash(self, replica: str) -> None:
        del self.rows[replica]


@dataclass
class FakeLink:
    """Keeps what was published; `drained` names the replicas that have nothing in flight any more."""

    drained: set[str] = field(default_factory=set)
    published: list[dict[str, Sequence[Replica]]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    async def publish(
        self, policies: Sequence[ScalingPolicy], replicas: Mapping[str, Sequence[Replica]], now: Now
    ) -> Mapping[str, bool]:
        self.published.append(dict(replicas))
        return {
            r.id: r.state is ReplicaState.DRAINING and r.id in self.drained for rows in replicas.values() for r in rows
        }

    def in_flight(self) -> Mapping[str, int]:
        return self.counts

    def unacknowledged(self) -> Mapping[str, str]:
        return self.silent


@dataclass
class FakeHistory:
    """In memory; every start takes as long as the prior says."""

    records: list[DecisionRecord] = field(default_factory=list)
    series: dict[float, float | None] = field(default_factory=dict)

    def append_load(self, policy: str, step_s: float, first_epoch_s: float, values: Sequence[float | None]) -> None:
        self.series.update({first_epoch_s + i * step_s: value for i, value in enumerate(values)})

    def load(self, policy: str, step_s: float, since_epoch_s: float) -> tuple[float, list[float]]:
        known = [(s, math.nan if v is None else v) for s, v in sorted(self.series.items()) if s >= since_epoch_s]
        return (known[0][0], [v for _, v in known]) if known else (since_epoch_s, [])

    def add_start_time(self, policy: str, variant: str, seconds: float) -> None: ...

    def start_time(self, policy: str, variant: str, prior: StartTime) -> StartTime:
        return prior

    def next_replica_number(self, policy: str, variant: str) -> int:
        return 1

    def record(self, record: DecisionRecord) -> None:
        self.records.append(record)

    def last_decision(self, policy: str | None, before_epoch_s: float | None = None) -> DecisionRecord | None:
        return self.records[-1] if self.records else None


@dataclass
class FakeForecasts:
    """Expects `maximum` requests per second in every window; None = no forecast. `fixed` is one made once."""

    maximum: float | None = None
    fixed: Forecast | None = None
    taken: list[Run] = field(default_factory=list)

    def latest(self, policy: ScalingPolicy, now: Now) -> Forecast | None:
        return self.fixed if self.maximum is None else a_forecast(self.maximum, now)

    def take(self, policy: ScalingPolicy, runs: Sequence[Run], start_times: Mapping[str, StartTime], now: Now) -> None:
        self.taken += runs


class Story:
    """One policy's loop among the fakes. `tick` moves the clock by one period."""

    def __init__(self, policy: ScalingPolicy, now_s: float = 100.0) -> None:
        self.policy = policy
        self.source = FakeSource()
        self.target = FakeReplicas()
        self.link = FakeLink()
        self.history = FakeHistory()
        self.forecasts = FakeForecasts()
        self.law: Law = decide
        self.now_s = now_s
        self.loop = self.a_loop()

    def a_loop(self) -> ControlLoop:
        """A loop that knows nothing yet, as after a start of the controller."""
        world = World(
            source=self.source,
            target=self.target,
            board=Board(self.link),
            history=self.history,
            forecasts=self.forecasts,
        )
        return ControlLoop(self.policy, world, self.law)

    async def tick(self) -> Tick:
        self.now_s += self.policy.tick_s
        return await self.loop.tick(at(self.now_s))

    async def ticks(self, count: int) -> Tick:
        for _ in range(count):
            last = await self.tick()
        return last
