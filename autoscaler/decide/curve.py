"""The supply curve: capacity that is ready, at hand, and on its way with an ETA.

Knows replicas, capacities and start times, nothing of load or decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.model import Now, Replica, ReplicaState, StartTime
from autoscaler.policy import ScalingPolicy

LOADING = (ReplicaState.REQUESTED, ReplicaState.STARTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A loading replica: `capacity` signal units from `eta_s` seconds from now on."""

    eta_s: float
    capacity: float
    replica: str
    variant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyCurve:
    """Capacity in signal units: routed and ready now, at hand (standby, draining: no start needed), and arriving,
    soonest first.

    `overdue`: ids of replicas that are not counted on.
    """

    ready: float
    at_hand: float
    arrivals: tuple[Arrival, ...]
    overdue: tuple[str, ...] = ()

    def at(self, after_s: float) -> float:
        """Capacity that is ready `after_s` seconds from now, without what is at hand."""
        return self.ready + sum(arrival.capacity for arrival in self.arrivals if arrival.eta_s <= after_s)


def eta_s(age_s: float, start_time: StartTime) -> float | None:
    """Seconds until a replica that has been loading for `age_s` is expected: to the P50 of its start time, once past
    it to the P90, then to the P99; None when it is overdue."""
    for quantile_s in (start_time.p50_s, start_time.p90_s, start_time.p99_s):
        if age_s <= quantile_s:
            return quantile_s - age_s
    return None


def supply_curve(
    policy: ScalingPolicy, replicas: Sequence[Replica], start_times: Mapping[str, StartTime], now: Now
) -> SupplyCurve:
    """The supply that `replicas` are. Failed and leaving ones are none; variants the policy does not know hold
    nothing."""
    capacities = {variant.name: variant.capacity for variant in policy.spec.variants}
    priors = {
        variant.name: StartTime(p50_s=variant.start_time.p50_seconds, p90_s=variant.start_time.p90_seconds)
        for variant in policy.spec.variants
    }
    ready, at_hand = 0.0, 0.0
    arrivals: list[Arrival] = []
    overdue: list[str] = []
    for item in replicas:
        capacity = capacities.get(item.variant, 0.0)
        if item.failed:
            continue
        if item.state is ReplicaState.READY and not item.standby:
            ready += capacity
        elif item.state in (ReplicaState.READY, ReplicaState.DRAINING):
            at_hand += capacity
        elif item.state in LOADING and item.variant in priors:
            start_time = start_times.get(item.variant, priors[item.variant])
            due_s = None if item.overdue else eta_s(now.monotonic_s - item.started_s, start_time)
            if due_s is None:
                overdue.append(item.id)
            else:
                arrivals.append(Arrival(eta_s=due_s, capacity=capacity, replica=item.id, variant=item.variant))
    arrivals.sort(key=lambda arrival: (arrival.eta_s, arrival.replica))
    return SupplyCurve(ready=ready, at_hand=at_hand, arrivals=tuple(arrivals), overdue=tuple(overdue))
