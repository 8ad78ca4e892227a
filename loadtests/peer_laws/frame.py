"""What the laws share: what they look at, their own clock, what they remember, and the form of their answer.

Knows no law. All of them scale the first variant only, take requests in flight plus queued as the load, and keep their
state in `DeciderState.memory` as named numbers, so that equal inputs give equal decisions. A law works on a `dict` of
that memory and hands it back; a window of loads is kept in it as one entry per moment.

A law's own period need not divide the caller's tick: it runs at the first call at or after each due moment, and the
next one is due a period after that moment (not after that call). So 20 s on a 15 s tick runs at three of four calls, and
a period shorter than the tick at every call. In between the law holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.model import DeciderState, Decision, Now, Observation, ReplicaState, Step, VariantTarget
from autoscaler.policy import ScalingPolicy, Variant

Memory = dict[str, float]
Trail = Sequence[tuple[str, int, str]]
"""(name of the step, replicas after it, why), in order."""

ROUNDING = 1e-9
"""Arithmetic noise must not order a replica: 29 requests at 0.29 x 100 each are one."""

_LOAD = "load@"
_DUE = "due_s"
_ABOVE, _BELOW = "above_since_s", "below_since_s"
_COUNTED = (ReplicaState.REQUESTED, ReplicaState.STARTING, ReplicaState.READY)


def replicas_for(load: float, target: float) -> int:
    """Replicas that bring `load` down to `target` each."""
    return math.ceil(load / target - ROUNDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a law looks at in one tick.

    `present`: the total it decided last; at its first tick what is there or loading, at least the minimum. `ready`:
    routed and ready. `load`: in flight plus queued, None when unknown. `demand`: arrivals x service time over the
    policy's stable window, in signal units, None when unknown.
    """

    law: str
    now: Now
    variant: Variant
    state: DeciderState
    present: int
    ready: int
    load: int | None
    demand: float | None

    @property
    def now_s(self) -> float:
        """The monotonic moment of this tick."""
        return self.now.monotonic_s

    def bounded(self, wanted: int) -> int:
        """`wanted` within the variant's minReplicas and maxReplicas."""
        return max(self.variant.min_replicas, min(self.variant.max_replicas, wanted))

    def due(self, memory: Memory, period_s: float) -> bool:
        """Whether the law's own period is over; if so the next one has begun in `memory`."""
        due_s = memory.get(_DUE, self.now_s)
        if self.now_s < due_s:
            return False
        memory[_DUE] = max(due_s + period_s, self.now_s)
        return True

    def sampled(self, memory: Memory, length_s: float) -> None:
        """Put this moment's load into a window of `length_s`; nothing when it is unknown."""
        for name in [name for name in memory if _is_load(name) and _moment(name) <= self.now_s - length_s]:
            del memory[name]
        if self.load is not None:
            memory[f"{_LOAD}{self.now_s!r}"] = float(self.load)

    def mean_load(self, memory: Memory, length_s: float) -> float | None:
        """Mean of the known loads of the last `length_s` seconds, None when there is none."""
        since_s = self.now_s - length_s
        known = [value for name, value in memory.items() if _is_load(name) and _moment(name) > since_s]
        return sum(known) / len(known) if known else None

    def agreed_s(self, memory: Memory, wanted: int) -> float:
        """For how long the law has wanted to go from `present` towards `wanted` without a break; 0 when it just began,
        or wants no change."""
        towards, away = (_ABOVE, _BELOW) if wanted > self.present else (_BELOW, _ABOVE)
        memory.pop(away, None)
        if wanted == self.present:
            memory.pop(towards, None)
            return 0.0
        return self.now_s - memory.setdefault(towards, self.now_s)

    def forget_agreement(self, memory: Memory) -> None:
        """Begin to count again: the law has acted."""
        memory.pop(_ABOVE, None)
        memory.pop(_BELOW, None)

    def held(self, memory: Memory, why: str) -> Decision:
        """The decision to change nothing."""
        return self.decided([("hold", self.present, why)], replace(self.state, memory=tuple(memory.items())))

    def decided(self, trail: Trail, kept: DeciderState, need: float | None = None) -> Decision:
        """The decision at the end of `trail`, within bounds; `kept` is what the law remembers, `need` the load it
        answers."""
        variant, wanted = self.variant, trail[-1][1]
        desired = self.bounded(wanted)
        steps: list[Step] = []
        before = self.present
        for name, after, why in (*trail, ("bounds", desired, f"{variant.min_replicas} to {variant.max_replicas}")):
            steps.append(Step(name=name, before=before, after=after, why=why))
            before = after
        return Decision(
            at=self.now,
            desired=desired,
            targets=(VariantTarget(variant=variant.name, active=desired),),
            steps=tuple(steps),
            next_state=replace(kept, last_desired=desired),
            reason=f"{self.law}: {trail[-1][2]}; desired {desired}",
            bound_by=next((step.name for step in reversed(steps[1:]) if step.before != step.after), None),
            need=need,
        )


def look(law: str, policy: ScalingPolicy, state: DeciderState, seen: Observation, now: Now) -> View:
    """The view of the law of that name."""
    variant = policy.spec.variants[0]
    routed = [item for item in seen.replicas if item.variant == variant.name and not item.standby and not item.failed]
    present = state.last_desired
    if present is None:
        present = max(variant.min_replicas, sum(item.state in _COUNTED for item in routed))
    return View(
        law=law,
        now=now,
        variant=variant,
        state=state,
        present=present,
        ready=sum(item.state is ReplicaState.READY for item in routed),
        load=None if seen.in_flight is None or seen.backlog is None else seen.in_flight + seen.backlog,
        demand=seen.demand,
    )


def _is_load(name: str) -> bool:
    return name.startswith(_LOAD)


def _moment(name: str) -> float:
    return float(name[len(_LOAD) :])
