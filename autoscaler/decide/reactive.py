"""What the load that is seen now asks for: the stable window, panic, a backlog, and what to do when the load is
unknown.

Knows no future. Four rules, in this order:

1. need = demand of the stable window. When the load is unknown or only partly known, the present total is held at
   least; after `fallback.failureThreshold` such ticks the fallback may raise it.
2. Panic: when the short window's demand, or what is in flight and queued, is at least `thresholdPercent` of the ready
   capacity, the short window's demand counts as well, and nothing is lowered until a stable window has passed without
   cause. Panic only raises.
3. A backlog of B requests is work, not rate: B x service_s / queueSeconds units drain it within the queue target. It
   counts once: while anything is loading it counts no more than when that was ordered, however long the queue grows
   meanwhile (a slow start must not look like ever more demand). Only requests that would still wait when a replica
   ordered now could help are ordered for; beyond that a backlog may use what is at hand without a start (standby,
   draining).
4. A request held for want of any replica needs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from autoscaler.decide.curve import SupplyCurve
from autoscaler.decide.mix import replicas_for
from autoscaler.decide.proposal import Proposal, Situation, number, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backlog:
    """Units to add now, and the most that may be added while replicas are loading (None = not counted yet)."""

    units: float = 0.0
    cap: float | None = None


def reactive(situation: Situation, proposal: Proposal) -> Proposal:
    """The least total that the present load asks for."""
    observation = situation.observation
    if observation.demand is None:
        return _unknown(situation, proposal, "load is unknown")
    panic_since_s = _panic_since(situation)
    need, cause = observation.demand, f"load of {number(observation.demand)}"
    if panic_since_s is not None and (observation.panic_demand or 0.0) > need:
        need = observation.panic_demand or 0.0
        cause = f"load of {number(need)} in the last {seconds(situation.policy.spec.behavior.panic.window_seconds)}"
    backlog = _backlog(situation)
    if backlog.units > 0:
        need += backlog.units
        cause = f"{cause} and {observation.backlog} queued ({number(backlog.units)} to drain them in time)"
    if observation.held_from_zero and need <= 0:
        need = min(float(observation.held_from_zero), min(variant.capacity for variant in situation.variants))
        cause = f"{observation.held_from_zero} held for want of a replica"
    total = replicas_for(situation.variants, need)
    why = f"{cause} needs {total}"
    if panic_since_s is not None and total < situation.current:
        total, why = situation.current, f"{why}; panic never lowers, {total} becomes {situation.current}"
    found: dict[str, Any] = {
        "need": need,
        "cause": cause,
        "panic_since_s": panic_since_s,
        "backlog_units": backlog.cap,
    }
    if not observation.trusted:
        return _unknown(situation, replace(proposal, total=total, **found), f"{cause} at least")
    return proposal.stepped("reactive", total, why, **found)


def _unknown(situation: Situation, proposal: Proposal, cause: str) -> Proposal:
    """Hold at least the present total, and after a while the fallback's."""
    ticks = int(situation.remembered("unknown_ticks") or 0) + 1
    gaps = "; ".join(situation.observation.gaps) or "no report"
    total = max(proposal.total, situation.current)
    why = f"{cause} ({gaps}): holding {total}"
    fallback = situation.policy.spec.fallback
    raises = fallback is not None and fallback.behavior == "currentReplicasIfHigher"
    if fallback is not None and raises and ticks >= fallback.failure_threshold and fallback.replicas > total:
        total, why = fallback.replicas, f"{why}; unknown for {ticks} ticks, so the fallback of {fallback.replicas}"
    held = replace(
        proposal,
        total=situation.current,
        cause=why,
        unknown_ticks=ticks,
        panic_since_s=proposal.panic_since_s or situation.state.panic_since_s,
        backlog_units=proposal.backlog_units or situation.remembered("backlog_units"),
    )
    return held.stepped("reactive", total, why)


def _panic_since(situation: Situation) -> float | None:
    """The last moment that had a cause for panic; None when that is a stable window ago."""
    observation, panic = situation.observation, situation.policy.spec.behavior.panic
    peak = max(observation.panic_demand or 0.0, float((observation.in_flight or 0) + (observation.backlog or 0)))
    smallest = min(variant.capacity for variant in situation.variants)
    ready = max(situation.curve.ready, smallest)
    if peak >= panic.threshold_percent / 100 * ready:
        return situation.now.monotonic_s
    since_s = situation.state.panic_since_s
    if since_s is not None and situation.now.monotonic_s - since_s < panic.stable_window_seconds:
        return since_s
    return None


def _backlog(situation: Situation) -> _Backlog:
    """Rule 3 of the module's docstring."""
    observation = situation.observation
    cap = situation.remembered("backlog_units")
    waiting = observation.backlog or 0
    if not waiting:
        return _Backlog(cap=cap if situation.loading else None)
    per_request = observation.service_s if situation.policy.spec.signal.type == "concurrency" else 1.0
    queue_s = situation.policy.spec.slo.queue_seconds
    curve = situation.curve
    ordered = _still_waiting(situation, curve, per_request) * per_request / queue_s
    if situation.loading and cap is not None:
        ordered = min(ordered, cap)
    else:
        cap = ordered or None
    return _Backlog(units=max(ordered, min(waiting * per_request / queue_s, curve.at_hand)), cap=cap)


def _still_waiting(situation: Situation, curve: SupplyCurve, per_request: float) -> float:
    """Of the requests that wait now, those that would still wait when a replica ordered now is ready (its P50).

    What is ready or due works off (capacity - demand) / per_request requests a second from the moment it is ready;
    never more than wait now, so that the deficit which is being made up for does not count as backlog too.
    """
    waiting = float(situation.observation.backlog or 0)
    demand = situation.observation.demand or 0.0
    reach_s = situation.start_time.p50_s
    worked = curve.ready * reach_s + sum(item.capacity * max(0.0, reach_s - item.eta_s) for item in curve.arrivals)
    return min(waiting, max(0.0, waiting - (worked - demand * reach_s) / max(per_request, 1e-9)))
