"""The supply curve: capacity that is ready, at hand, and on its way with an ETA.

Knows replicas, capacities and start times, nothing of load or decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.model import LOADING, Now, Replica, ReplicaState, StartTime
from autoscaler.policy import ScalingPolicy


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


def slowest_start(policy: ScalingPolicy, start_times: Mapping[str, StartTime]) -> StartTime:
    """Of the variants that may grow the slowest one's start time, as whichever is started must be there in time.
    Variants without an entry in `start_times` have the policy's prior.
    """
    variants = [variant for variant in policy.spec.serving if variant.max_replicas] or policy.spec.variants
    times = [start_times.get(item.name) or item.prior for item in variants]
    return max(times, key=lambda time: (time.p90_s, time.p50_s))


def supply_curve(
    policy: ScalingPolicy, replicas: Sequence[Replica], start_times: Mapping[str, StartTime], now: Now
) -> SupplyCurve:
    """The supply that `replicas` are. Failed and leaving ones are none; variants the policy does not know hold
    nothing."""
    variants = {variant.name: variant for variant in policy.spec.variants}
    ready, at_hand = 0.0, 0.0
    arrivals: list[Arrival] = []
    overdue: list[str] = []
    for item in replicas:
        variant = variants.get(item.variant)
        if item.failed or variant is None:
            continue
        capacity = variant.capacity
        if item.state is ReplicaState.READY and not item.standby:
            ready += capacity
        elif item.state in (ReplicaState.READY, ReplicaState.DRAINING):
            at_hand += capacity
        elif item.state in LOADING:
            start_time = start_times.get(item.variant) or variant.prior
            due_s = None if item.overdue else start_time.eta_s(now.monotonic_s - item.started_s)
            if due_s is None:
                overdue.append(item.id)
            else:
                arrivals.append(Arrival(eta_s=due_s, capacity=capacity, replica=item.id, variant=item.variant))
    arrivals.sort(key=lambda arrival: (arrival.eta_s, arrival.replica))
    return SupplyCurve(ready=ready, at_hand=at_hand, arrivals=tuple(arrivals), overdue=tuple(overdue))
