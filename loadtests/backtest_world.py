"""The fluid world of a backtest: load as a flow in replicas, a queue of work, and replicas that take their time to load.

Knows no law. Demand D of a step is the number of replicas that just carry it; one replica carries `unit_per_s` requests
a second of the trace, chosen so that the judged span needs a given mean. Laws are shown the same load in the policy's
own signal units (`shown_per_s`): a policy's capacity stays as it is written, the load is brought to it.

Queue, first in first out, with C replicas ready and b replica-seconds of work waiting, within a step of dt seconds:

    b(u) = b + (D - C) u, never below 0          wait(u) = b(u) / C          late: wait(u) > queueSeconds
    b(u) <= C queue.timeoutSeconds: the rest is evicted, and late (with C = 0: no more than came within that time)

so the late part of a step's requests is the part of the step during which b(u) > C queueSeconds, exactly. Requests that
were evicted because capacity fell after they came become late then, once. Draining takes no time in a world of flows.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autoscaler.model import StartTime
from autoscaler.policy import Budget, ScalingPolicy, Variant
from loadtests.backtest_load import Floats, Load
from loadtests.clairvoyant import clairvoyant_gpu_hours
from loadtests.trace import TraceError

DAY_S = 86400.0
REPLICAS_MEAN = 20.0
JUDGE_FROM_DAY = 2.0
START_TIME_S = 300.0
"""Of the built-in policy: a model of some ten GB from a warm disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a world is made of besides load and policy.

    `start_time_s`: of every variant, None = each variant's P90 in the policy. `replicas_mean`: of the judged span, None
    = what the policy's capacity makes of the load. `judge_from_day`: days from the beginning, None = 2, or a third of a
    trace shorter than three. `load_factor`: the load is this many times what the capacity was chosen for.
    """

    start_time_s: float | None = None
    replicas_mean: float | None = REPLICAS_MEAN
    judge_from_day: float | None = None
    load_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """Load and policy brought together.

    `policy`: with the world's tick and start times. `demand`: replicas of the first variant that just carry each step,
    shape (n,). `unit_per_s`: requests per second of the trace that one such replica carries; `shown_per_s`: the same in
    the requests that laws see. Steps from `judged` on are scored. `notes`: what was changed in the policy, in words.
    """

    load: Load
    policy: ScalingPolicy
    demand: Floats
    unit_per_s: float
    shown_per_s: float
    judged: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.demand)

    @property
    def step_s(self) -> float:
        """Length of a step, and the tick of every law."""
        return self.load.step_s

    @property
    def start_times(self) -> dict[str, StartTime]:
        """What laws know of start times: exactly how long a start takes."""
        return {
            variant.name: StartTime(
                p50_s=variant.start_time.p50_seconds, p90_s=variant.start_time.p90_seconds, samples=100
            )
            for variant in self.policy.spec.variants
        }

    @property
    def start_time_s(self) -> float:
        """Of the first variant."""
        return self.policy.spec.serving[0].start_time.p90_seconds

    @property
    def peak(self) -> int:
        """Replicas that the highest step of the judged span needs."""
        return math.ceil(float(self.demand[self.judged :].max()) - 1e-9)

    def clairvoyant_gpu_hours(self) -> float:
        """The least that any scaler could have used for the judged span, in GPU-hours of the first variant."""
        first = self.policy.spec.serving[0]
        judged = self.demand[self.judged :].tolist()
        return clairvoyant_gpu_hours(judged, self.step_s, self.start_time_s, gpu_share=first.gpu_share)

    def shown(self) -> Floats:
        """Requests per second of each step as laws see them, shape (n,)."""
        return self.demand * self.shown_per_s

    def before(self, steps: int) -> World:
        """The same world cut off after `steps` steps: for asking what the future changes."""
        return replace(self, load=self.load.part(0, steps), demand=self.demand[:steps])


def world_of(load: Load, policy: ScalingPolicy, setting: Setting) -> World:
    """The world of a load and a policy. Raises `TraceError` when nothing would be judged or the judged span has no
    load.
    """
    judged = _judged_from(load, setting.judge_from_day)
    mean_per_s = float(load.rate_per_s[judged:].mean())
    if not mean_per_s > 0:
        raise TraceError(
            f"{load.source}: there is no load in the judged span, from day {judged * load.step_s / DAY_S:g} on"
        )
    first = policy.spec.serving[0]
    per_request = policy.spec.signal.units(1.0, policy.spec.signal.service_seconds)
    if per_request is None:
        raise TraceError(
            f"signal type {policy.spec.signal.type} is not read by this version; a backtest takes concurrency or requestRate"
        )
    shown_per_s = first.capacity / per_request
    unit_per_s = shown_per_s if setting.replicas_mean is None else mean_per_s / setting.replicas_mean
    demand = load.rate_per_s * (setting.load_factor / unit_per_s)
    adapted, notes = _adapted(policy, load.step_s, setting, float(demand[judged:].mean()))
    return World(
        load=load,
        policy=adapted,
        demand=demand,
        unit_per_s=unit_per_s,
        shown_per_s=shown_per_s,
        judged=judged,
        notes=notes,
    )


def default_policy(start_time_s: float = START_TIME_S) -> ScalingPolicy:
    """What a backtest takes without `--policy`: one variant with room for any load, everything else at its default.

    100 requests a replica, so that counting in whole requests moves no total by more than a twentieth of a percent.
    """
    variant: dict[str, Any] = {
        "name": "gpu",
        "scaleTargetRef": {"name": "backtest"},
        "capacity": 100,
        "minReplicas": 1,
        "maxReplicas": 2000,
        "startTime": {"p50Seconds": start_time_s, "p90Seconds": start_time_s, "timeoutSeconds": 10 * start_time_s},
    }
    document = {"metadata": {"name": "default"}, "spec": {"model": "backtest", "variants": [variant]}}
    return ScalingPolicy.model_validate(document)


def _judged_from(load: Load, day: float | None) -> int:
    if day is None:
        day = JUDGE_FROM_DAY if load.duration_s >= 3 * DAY_S else load.duration_s / 3 / DAY_S
    judged = math.ceil(day * DAY_S / load.step_s - 1e-9)
    if not 0 <= judged < len(load):
        raise TraceError(
            f"{load.source}: judging from day {day:g} leaves nothing of a trace of {load.duration_s / DAY_S:.2f} days; "
            "--judge-from-day takes 0 and above, below the length of the trace"
        )
    return judged


def _adapted(
    policy: ScalingPolicy, step_s: float, setting: Setting, mean: float
) -> tuple[ScalingPolicy, tuple[str, ...]]:
    """The policy with the world's tick and start times, and what else had to be changed."""
    notes: list[str] = []
    spec = policy.spec
    changes: dict[str, Any] = {"polling_interval_seconds": step_s}
    if spec.mode != "Auto":
        changes["mode"] = "Auto"
        notes.append(f"mode {spec.mode} is played as Auto")
    variants = tuple(_with_start_time(variant, setting.start_time_s) for variant in spec.variants)
    room = sum(variant.max_replicas * variant.capacity for variant in spec.serving) / spec.serving[0].capacity
    if setting.replicas_mean is not None and room < mean:
        most = math.ceil(10 * mean)
        variants = tuple(variant.model_copy(update={"max_replicas": most}) for variant in variants)
        changes["budget"] = Budget()
        notes.append(
            f"maxReplicas hold {room:g} replicas and the load was scaled to {mean:g}, so they are {most} here and the "
            "budget is not applied; '--replicas-mean policy' keeps both and takes the load as it is"
        )
    changes["variants"] = variants
    return policy.model_copy(update={"spec": spec.model_copy(update=changes)}), tuple(notes)


def _with_start_time(variant: Variant, start_time_s: float | None) -> Variant:
    taken_s = variant.start_time.p90_seconds if start_time_s is None else start_time_s
    prior = variant.start_time.model_copy(
        update={
            "p50_seconds": taken_s,
            "p90_seconds": taken_s,
            "timeout_seconds": max(variant.start_time.timeout_seconds, 10 * taken_s),
        }
    )
    return variant.model_copy(update={"start_time": prior})


@dataclass(slots=True)
class FluidQueue:
    """The queue of the module's docstring; work in replica-seconds. What waits is kept in order of arrival, in pieces
    that are late already or not, so that nothing turns late twice.
    """

    step_s: float
    queue_s: float
    timeout_s: float
    backlog: float = 0.0
    pieces: deque[tuple[float, bool]] = field(default_factory=deque)

    def step(self, demand: float, capacity: float, recent: float) -> tuple[float, float]:
        """One step; returns (work that turned late, work evicted). `recent`: work that came within `timeout_s` until
        the end of this step, which is all that can still wait.
        """
        before = self.backlog
        if before == 0.0 and demand <= capacity:
            return 0.0, 0.0
        came = demand * self.step_s
        if capacity <= 0.0:
            return self._nobody(came, recent)
        most, late, evicted = capacity * self.timeout_s, 0.0, 0.0
        if before > most:
            evicted = before - most
            late = self._leave(evicted, newest=True)
            before = most
        end = before + (demand - capacity) * self.step_s
        after = min(max(end, 0.0), most)
        overflow = max(0.0, end - most)
        patient = capacity * self.queue_s
        # A queue shorter than the patience evicts before a wait can count as late.
        turned = came * _share_above(before, end, patient) if self.timeout_s > self.queue_s else overflow
        kept = [(came - turned, False), (turned - overflow, True)]
        self.pieces.extend(kept if end >= before else reversed(kept))
        self._leave(before + came - overflow - after)
        if after == 0.0:
            self.pieces.clear()
        self.backlog = after
        return late + turned, evicted + overflow

    def _nobody(self, came: float, recent: float) -> tuple[float, float]:
        """No replica is ready: all that comes is late, and what waits too long leaves, the oldest first."""
        waiting = self.backlog + came
        self.pieces.append((came, True))
        self.backlog = min(waiting, recent)
        evicted = waiting - self.backlog
        return came + self._leave(evicted), evicted

    def _leave(self, amount: float, newest: bool = False) -> float:
        """Take work out of the queue, from its head unless `newest`; returns how much of it was not late."""
        on_time = 0.0
        while amount > 1e-12 and self.pieces:
            size, late = self.pieces.pop() if newest else self.pieces.popleft()
            taken = min(size, amount)
            amount -= taken
            on_time += 0.0 if late else taken
            if size > taken:
                rest = (size - taken, late)
                if newest:
                    self.pieces.append(rest)
                else:
                    self.pieces.appendleft(rest)
        return on_time


def _share_above(start: float, end: float, bound: float) -> float:
    """The part of a straight line from `start` to `end` that lies above `bound`."""
    low, high = (start, end) if start <= end else (end, start)
    if high <= bound:
        return 0.0
    return 1.0 if low > bound or high == low else (high - bound) / (high - low)


def recent_work(demand: Floats, step_s: float, timeout_s: float) -> Floats:
    """Replica-seconds of work that came within `timeout_s` until the end of each step, shape (n,)."""
    sums = np.concatenate([[0.0], np.cumsum(demand * step_s)])
    ends = np.arange(1, len(demand) + 1) * step_s
    earlier = np.interp(np.maximum(0.0, ends - timeout_s), np.arange(len(sums)) * step_s, sums)
    return np.asarray(sums[1:] - earlier)
