"""The last word on the total: minima, maxima, budgets, and zero. Never optional.

Knows no load but one fact: whether nothing at all has been asked for. Rules:

- At least the sum of minReplicas, and at least 1 unless scale-to-zero holds.
- Scale-to-zero: no arrival, nothing in flight, queued or held, on a trusted load, for `retentionSeconds`, and a
  forecast whose median expects no request within a start time. Then the total is 0, whatever delays would say.
- At most the sum of maxReplicas; standby takes what room is left, and is the first to go when a budget (GPUs, cost per
  hour) binds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.decide.mix import floors, rooms, spread
from autoscaler.decide.proposal import NO_DEAD, Proposal, Situation, seconds

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounded:
    total: int
    standby: int
    reasons: tuple[str, ...] = ()


def bounds(situation: Situation, proposal: Proposal) -> Proposal:
    """Bring total and standby within all bounds."""
    idle_since_s = _idle_since(situation)
    zero = _may_be_zero(situation, proposal, idle_since_s)
    floor = 0 if zero else max(1, sum(floors(situation.variants).values()))
    ceiling = sum(rooms(situation.variants).values())
    bounded = _Bounded(total=proposal.total, standby=proposal.standby)
    if zero:
        bounded = _Bounded(total=0, standby=0, reasons=(zero,) if proposal.total else ())
    elif proposal.total < floor:
        bounded = replace(bounded, total=floor, reasons=(f"raised to the minimum of {floor}",))
    if bounded.total > ceiling:
        bounded = replace(bounded, total=ceiling, reasons=(f"limited to the maximum of {ceiling}",))
    if bounded.standby > ceiling - bounded.total:
        bounded = replace(bounded, standby=ceiling - bounded.total)
    bounded = _within_budget(situation, proposal.dead, bounded)
    why = "; ".join(bounded.reasons) or f"{bounded.total} is within {floor} to {ceiling}"
    dead = NO_DEAD if zero else proposal.dead
    living = min(bounded.total, sum(rooms(situation.variants, dead).values()))
    moved = living + sum(dead.values()) != proposal.shown
    return proposal.stepped(
        "bounds",
        living,
        why,
        dead,
        standby=bounded.standby,
        decided=bounded.total,
        idle_since_s=idle_since_s,
        bound_by="bounds" if moved else _bound_earlier(proposal),
        notes=(*proposal.notes, *bounded.reasons),
    )


def _bound_earlier(proposal: Proposal) -> str | None:
    """The step that last moved the total away from what the load asked for."""
    after_load = [step for step in proposal.steps if step.name not in ("reactive", "predictive")]
    changed = [step.name for step in after_load if step.before != step.after]
    return changed[-1] if changed else None


def _idle_since(situation: Situation) -> float | None:
    """Since when nothing has been asked for; None while something is, or while that is not known."""
    observation = situation.observation
    asked_for = observation.demand or observation.panic_demand or observation.in_flight or observation.backlog
    if asked_for or observation.held_from_zero or not observation.trusted:
        return None
    since_s = situation.remembered("idle_since_s")
    return situation.now.monotonic_s if since_s is None else since_s


def _may_be_zero(situation: Situation, proposal: Proposal, idle_since_s: float | None) -> str:
    """Why no replica is needed; empty when one is."""
    rule, forecast = situation.policy.spec.scale_to_zero, situation.forecast
    if not rule.enabled or idle_since_s is None or situation.first_tick:
        return ""
    idle_s = situation.now.monotonic_s - idle_since_s
    if idle_s < rule.retention_seconds:
        return ""
    expected = proposal.expected
    if forecast is not None and forecast.trusted and expected is not None and expected.p50 * expected.horizon_s >= 1:
        return ""
    return f"no request for {seconds(idle_s)}: scaled to zero"


def _within_budget(situation: Situation, dead: Mapping[str, int], bounded: _Bounded) -> _Bounded:
    """Give up standby, then replicas, until GPUs and cost fit; minima always fit, the policy was refused otherwise."""
    budget, variants = situation.policy.spec.budget, situation.variants
    if budget.max_gpus is None and budget.max_cost_per_hour is None:
        return bounded
    total, standby = bounded.total, bounded.standby

    def fits() -> bool:
        counts = spread(variants, total + standby, dead)
        taken = {variant.name: counts[variant.name] + dead.get(variant.name, 0) for variant in variants}
        gpus = sum(variant.gpu_share * taken[variant.name] for variant in variants)
        cost = sum(variant.price * taken[variant.name] for variant in variants)
        gpus_fit = budget.max_gpus is None or gpus <= budget.max_gpus + _ROUNDING
        return gpus_fit and (budget.max_cost_per_hour is None or cost <= budget.max_cost_per_hour + _ROUNDING)

    while not fits() and total + standby > 0:
        standby, total = (standby - 1, total) if standby else (0, total - 1)
    floor = sum(floors(variants).values())
    total = max(total, min(floor, bounded.total))
    if (total, standby) == (bounded.total, bounded.standby):
        return bounded
    reason = f"limited by the budget to {total}" + (f" and {standby} standby" if standby else "")
    return _Bounded(total=total, standby=standby, reasons=(*bounded.reasons, reason))
