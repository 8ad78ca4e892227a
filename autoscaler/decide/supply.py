"""What is there and what is on its way: the supply curve, and dead supply.

A loading replica is future supply with an ETA, so the need it was ordered for is not ordered again: `desired` is a
total, and the plan starts only what is neither ready nor loading. A replica that loads for longer than the P99 of its
start time is dead supply: it is not counted, another is ordered in its place (of another variant when its own has no
room), and it is kept until enough are ready, as it may still arrive. Dead supply never blocks scaling down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.decide.mix import replicas_for, rooms
from autoscaler.decide.proposal import LOADING, Proposal, Situation, number
from autoscaler.model import Now, Replica, ReplicaState, StartTime
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


def curve_of(situation: Situation) -> SupplyCurve:
    """The supply curve of a decision's situation."""
    observation = situation.observation
    return supply_curve(situation.policy, observation.replicas, observation.start_times, situation.now)


def supply_in_words(situation: Situation) -> str:
    """`3 ready, 1 due in 41 s`: what there is, as the reason of a decision ends."""
    curve = curve_of(situation)
    routed = sum(not item.standby for item in situation.ready)
    waiting = len(situation.ready) - routed
    parts = [f"{routed} ready"]
    if waiting:
        parts.append(f"{waiting} standby")
    if curve.arrivals:
        first, last = number(curve.arrivals[0].eta_s), number(curve.arrivals[-1].eta_s)
        parts.append(f"{len(curve.arrivals)} due in {first if first == last else f'{first} to {last}'} s")
    if curve.overdue:
        parts.append(f"{len(curve.overdue)} overdue and not counted on")
    draining = sum(item.state is ReplicaState.DRAINING for item in situation.replicas)
    if draining:
        parts.append(f"{draining} draining")
    return ", ".join(parts)


def supply(situation: Situation, proposal: Proposal) -> Proposal:
    """Order in place of dead supply while it is missed, and only then."""
    words = supply_in_words(situation)
    overdue = Counter(item.variant for item in situation.overdue)
    missed = len(situation.ready) < proposal.total
    if not overdue or not missed:
        return proposal.stepped("supply", proposal.total, f"{words}; loading replicas are not ordered again")
    known = rooms(situation.variants)
    dead = {name: min(count, known[name]) for name, count in overdue.items() if name in known}
    total = proposal.total
    if proposal.need is not None:
        total = max(total, replicas_for(situation.variants, proposal.need, dead))
    why = f"{words}; longer than 99% of starts, so {sum(dead.values())} more wanted in their place"
    return proposal.stepped("supply", total, why, dead)
