"""What the steps of a decision share: the situation they look at and the proposal they hand on.

Knows no step. A step is a function `(Situation, Proposal) -> Proposal`; it never changes what it was given, and it
says what it did by `Proposal.stepped`, which appends one `Step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from autoscaler.decide.curve import SupplyCurve, slowest_start, supply_curve
from autoscaler.model import (
    LOADING,
    DeciderState,
    Expected,
    Now,
    Observation,
    Replica,
    ReplicaState,
    StartTime,
    Step,
)
from autoscaler.policy import ScalingPolicy, Variant
from forecasting.forecast import Forecast

NO_DEAD: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything a step may look at. Never changes within a decision, so what several steps ask for is worked out once
    (which is why this value has no slots).
    """

    policy: ScalingPolicy
    state: DeciderState
    observation: Observation
    forecast: Forecast | None
    now: Now

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that scaling may use, in the policy's order."""
        return self.policy.spec.serving

    @cached_property
    def replicas(self) -> tuple[Replica, ...]:
        """Replicas that live: neither failed nor leaving for good."""
        leaving = (ReplicaState.STOPPING, ReplicaState.GONE)
        return tuple(item for item in self.observation.replicas if not item.failed and item.state not in leaving)

    @cached_property
    def ready(self) -> tuple[Replica, ...]:
        """Ready, standby included."""
        return tuple(item for item in self.replicas if item.state is ReplicaState.READY)

    @cached_property
    def loading(self) -> tuple[Replica, ...]:
        """On their way and expected to arrive; overdue ones are not."""
        return tuple(item for item in self.replicas if item.state in LOADING and not item.overdue)

    @cached_property
    def overdue(self) -> tuple[Replica, ...]:
        """Loading for longer than their start time's P99: dead supply."""
        return tuple(item for item in self.replicas if item.state in LOADING and item.overdue)

    @property
    def first_tick(self) -> bool:
        """True when no total was decided yet: the controller has just started, so nothing may be lowered."""
        return not self.state.totals

    @property
    def present(self) -> int:
        """Replicas that are routed or loading to be routed."""
        return sum(not item.standby for item in (*self.ready, *self.loading, *self.overdue))

    @property
    def current(self) -> int:
        """The total decided last, else what is there."""
        return self.present if self.state.last_desired is None else self.state.last_desired

    @cached_property
    def curve(self) -> SupplyCurve:
        """What is ready, at hand and on its way."""
        seen = self.observation
        return supply_curve(self.policy, seen.replicas, seen.start_times, self.now)

    @cached_property
    def supply_in_words(self) -> str:
        """`3 ready, 1 due in 41 s`: what there is, as the reason of a decision ends."""
        curve = self.curve
        routed = sum(not item.standby for item in self.ready)
        waiting = len(self.ready) - routed
        parts = [f"{routed} ready"]
        if waiting:
            parts.append(f"{waiting} standby")
        if curve.arrivals:
            first, last = number(curve.arrivals[0].eta_s), number(curve.arrivals[-1].eta_s)
            parts.append(f"{len(curve.arrivals)} due in {first if first == last else f'{first} to {last}'} s")
        if curve.overdue:
            parts.append(f"{len(curve.overdue)} overdue and not counted on")
        draining = sum(item.state is ReplicaState.DRAINING for item in self.replicas)
        if draining:
            parts.append(f"{draining} draining")
        return ", ".join(parts)

    @cached_property
    def start_time(self) -> StartTime:
        """The slowest of the variants that may grow."""
        return slowest_start(self.policy, self.observation.start_times)

    @property
    def horizon_s(self) -> float:
        """Until a replica ordered at the next tick is ready, nine times in ten."""
        return self.start_time.p90_s + self.policy.tick_s

    def remembered(self, name: str) -> float | None:
        """A number that an earlier decision left in `memory`."""
        return dict(self.state.memory).get(name)


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A decision in the making. A Struct, as seven are made in every decision and copying one costs a quarter of what
    it costs for a dataclass.

    `need`: signal units to be covered, None = not known. `total`: replicas to be routed, without replacements of dead
    supply; `dead`: overdue replicas by variant that `total` does not count on. `standby`: loaded beside them. `asked`:
    the total before delays and bounds, which is what stabilization remembers. `decided`: the total after bounds, which
    is what the next tick starts from. `cause` begins the reason, `notes` follow it. `idle_since_s`: monotonic moment
    since when nothing was asked for. `expected`: what the forecast said.
    """

    total: int
    need: float | None = None
    standby: int = 0
    dead: Mapping[str, int] = NO_DEAD
    asked: int = 0
    decided: int = 0
    cause: str = ""
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    bound_by: str | None = None
    panic_since_s: float | None = None
    idle_since_s: float | None = None
    backlog_units: float | None = None
    unknown_ticks: int = 0
    expected: Expected | None = None

    @property
    def shown(self) -> int:
        """The total as people see it: with what is ordered in place of dead supply."""
        return self.total + sum(self.dead.values())

    def stepped(
        self, name: str, total: int, why: str, dead: Mapping[str, int] | None = None, **changes: Any
    ) -> Proposal:
        """The proposal with `total` (and `dead` and other fields, if given), and a step that tells of it."""
        dead = self.dead if dead is None else dead
        step = Step(name=name, before=self.shown, after=total + sum(dead.values()), why=why)
        return replace(self, total=total, dead=dead, steps=(*self.steps, step), **changes)


def number(value: float) -> str:
    """A figure as people read it: whole above 10, three digits below."""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration as people read it: `41 s`, `0.8 s`."""
    return f"{number(value)} s"
