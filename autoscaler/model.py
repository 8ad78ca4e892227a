"""The values that travel through one tick: sample -> observation -> decision -> commands.

All are frozen; time is always an argument (`Now`). Unknown is a value: None means "not known", which is neither 0 nor
NaN, and absence never lowers anything. Units: seconds (`_s`), requests per second (`_per_s`), replicas; demand and
capacity are in the policy's signal unit (concurrency: requests in flight plus queued).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Read once a tick. Durations use `monotonic_s`; calendars use `epoch_s`; never mixed."""

    monotonic_s: float
    epoch_s: float


class ReplicaState(StrEnum):
    """requested -> starting -> ready -> draining (-> ready: resurrected) -> stopping -> gone. Standby is an intent on
    a ready replica."""

    REQUESTED = "requested"
    STARTING = "starting"
    READY = "ready"
    SLEEPING = "sleeping"
    DRAINING = "draining"
    STOPPING = "stopping"
    GONE = "gone"


LOADING = (ReplicaState.REQUESTED, ReplicaState.STARTING)
"""On its way to ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of the model, from its start command to its exit.

    `started_s`, `ready_s`, `draining_s`: monotonic moments, None = not yet. `standby`: ready but not routed.
    `drained`: every router said so. `failed`: the process or pod died or never became ready; `why` says how. `url`
    None until a port is known.
    """

    id: str
    variant: str
    version: str
    state: ReplicaState
    started_s: float
    ready_s: float | None = None
    draining_s: float | None = None
    standby: bool = False
    drained: bool = False
    failed: bool = False
    overdue: bool = False
    in_flight: int | None = None
    url: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One policy's load, summed over the routers that answered.

    `arrivals`: requests per second for each second that is new since the last sample, oldest first; None = the second
    is missing. Gauges are of now. `service_count`, `service_sum_s`: growth since the last sample. `routers_missing`
    names those that did not answer; `age_s` is the age of the oldest part. `unhealthy`: endpoints, of any policy, that
    every router has ejected and not taken back.
    """

    at: Now
    arrivals: tuple[float | None, ...]
    in_flight: int | None
    queued: int | None
    oldest_s: float | None
    held_from_zero: int
    service_count: int
    service_sum_s: float
    shed: int = 0
    routers_missing: tuple[str, ...] = ()
    age_s: float = 0.0
    unhealthy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTime:
    """Start time of a variant, command to ready. `samples` = 0 means the policy's prior."""

    p50_s: float
    p90_s: float
    samples: int = 0

    @property
    def p99_s(self) -> float:
        """What 99% of starts take at most: a lognormal through both quantiles. Later than this is overdue.

        ln T is normal with mean ln P50 and sigma = ln(P90 / P50) / 1.2816, so P99 = P50 exp(2.3263 sigma). Sigma is at
        least 0.15 (P99 >= 1.42 P50): starts that all took the same time so far must not make the next one overdue for
        being a little slower.
        """
        sigma = max(0.15, math.log(max(self.p90_s / self.p50_s, 1.0)) / 1.2816) if self.p50_s > 0 else 0.0
        return max(self.p90_s, self.p50_s * math.exp(2.3263 * sigma))

    def eta_s(self, age_s: float) -> float | None:
        """Seconds until a replica that has been loading for `age_s` is expected: to the P50, once past it to the P90,
        then to the P99; None beyond, when it is overdue and not to be counted on.
        """
        for quantile_s in (self.p50_s, self.p90_s, self.p99_s):
            if age_s <= quantile_s:
                return quantile_s - age_s
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known at a tick, and what is not.

    `stable_per_s`, `panic_per_s`: mean arrivals per second over the two windows, None when unknown. `service_s`: mean
    service time (EWMA, prior from the policy). `demand`, `panic_demand`: the same in signal units. `backlog`: requests
    queued at the routers, None when unknown. `gaps` says in words what is missing, stale or absurd; `trusted` is False
    when the load is unknown, or known only as a lower bound.
    """

    at: Now
    stable_per_s: float | None
    panic_per_s: float | None
    service_s: float
    demand: float | None
    panic_demand: float | None
    in_flight: int | None
    backlog: int | None
    oldest_s: float | None
    held_from_zero: int
    replicas: tuple[Replica, ...]
    start_times: Mapping[str, StartTime]
    gaps: tuple[str, ...] = ()
    trusted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One named step of a decision: the total desired before and after it, and why in a sentence with the numbers."""

    name: str
    before: int
    after: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTarget:
    """How many replicas of one variant are to be routed (`active`) and loaded but not routed (`standby`). `dead`: how
    many of the active ones are overdue and only kept in case they still arrive; others were ordered in their place.
    """

    variant: str
    active: int
    standby: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a decision expects: quantiles of the largest load, in requests per second, within `horizon_s` from its own
    moment (not from when the forecast was made). `need` is the one at `quantile`, which capacity must cover.
    """

    horizon_s: float
    p50: float
    p90: float
    need: float
    quantile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeciderState:
    """What a law remembers between ticks: recent recommendations as (monotonic_s, desired) for stabilization, totals
    decided as (monotonic_s, total since then) for rate limits, the last total, panic since when (the last moment that
    had a cause for it); `memory` is free for other laws (hashable values)."""

    recommendations: tuple[tuple[float, int], ...] = ()
    totals: tuple[tuple[float, int], ...] = ()
    last_desired: int | None = None
    panic_since_s: float | None = None
    memory: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A value with reasons, not a call. `valid` False means: act on nothing. `desired` is the total to be routed,
    standby apart.

    `bound_by` names the step that had the last word, None when the load itself had. `need` is the demand in signal
    units that `desired` answers, None when unknown. `expected`: what the forecast said of the time that the decision
    looks ahead, None when there was none to ask; a forecast that is not trusted is told of and not followed.
    """

    at: Now
    desired: int
    targets: tuple[VariantTarget, ...]
    steps: tuple[Step, ...]
    next_state: DeciderState
    reason: str
    bound_by: str | None = None
    need: float | None = None
    expected: Expected | None = None
    valid: bool = True


class Action(StrEnum):
    """What the controller can do to one replica."""

    START = "start"
    PROMOTE = "promote"
    DEMOTE = "demote"
    RESURRECT = "resurrect"
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One action. START names a variant and, in `standby`, what it is for; all others name a replica. `why` in a
    sentence."""

    action: Action
    variant: str
    replica: str | None = None
    standby: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A Kubernetes-style condition; `status` is True, False or Unknown as text."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of one command."""

    command: Command
    done: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision with the inputs it was made from, as the history keeps it and `tidegate why` prints it. JSON-ready
    mappings."""

    policy: str
    epoch_s: float
    decision: Mapping[str, object]
    inputs: Mapping[str, object] | None = None
    commands: tuple[Mapping[str, object], ...] = field(default=())
