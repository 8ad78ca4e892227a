"""How fast the total may change: tolerance, stabilization windows and rate policies, with the meaning they have in an
HPA.

Knows no load, only totals over time. In this order:

1. Tolerance: a need within a fraction of what the present total holds changes nothing.
2. Stabilization: down to the highest total asked for within scaleDown's window, up to the lowest within scaleUp's.
   What was asked for is remembered after tolerance and before the other rules.
3. Rates: at most so many replicas, or percent of them, of change within a period, counted from the lowest (going up)
   or highest (going down) total in force during the period.

The first tick after a start lowers nothing and begins the windows, so a restart of the controller cannot scale down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaler.decide.mix import capacity_of, spread
from autoscaler.decide.proposal import Proposal, Situation, number, seconds
from autoscaler.policy import RatePolicy, ScaleDown, ScaleUp

Trail = tuple[tuple[float, int], ...]


def stabilise(situation: Situation, proposal: Proposal) -> Proposal:
    """Delay and limit the change of the total."""
    current, behavior = situation.current, situation.policy.spec.behavior
    asked, reasons = proposal.total, list[str]()
    if situation.first_tick and asked < current:
        asked = current
        reasons.append("the first tick lowers nothing")
    tolerated = _within_tolerance(situation, proposal, asked)
    if tolerated:
        asked = current
        reasons.append(tolerated)
    trail = (*situation.state.recommendations, (situation.now.monotonic_s, asked))
    highest = max(_within(trail, behavior.scale_down.stabilization_window_seconds))
    lowest = min(_within(trail, behavior.scale_up.stabilization_window_seconds))
    total = min(max(current, lowest), highest)
    if total > asked:
        reasons.append(
            f"{total} was asked for within the last {seconds(behavior.scale_down.stabilization_window_seconds)}"
        )
    elif total < asked:
        reasons.append(
            f"{asked} not asked for throughout the last {seconds(behavior.scale_up.stabilization_window_seconds)}"
        )
    limited = _limited(situation, current, total)
    if limited != total:
        direction = "scaleUp" if total > current else "scaleDown"
        reasons.append(f"{direction} policies allow {limited} now, not {total}")
    why = "; ".join(reasons) or (f"{current} to {limited} at once" if limited != current else f"stays {current}")
    notes = (
        (f"{_verb(limited, proposal.total)} at {limited}: {'; '.join(reasons)}",) if limited != proposal.total else ()
    )
    return proposal.stepped("stabilise", limited, why, asked=asked, notes=(*proposal.notes, *notes))


def kept(trail: Trail, now_s: float, window_s: float) -> Trail:
    """The part of a trail that a window still needs: what lies within it, and the last entry before it (in force at
    its start)."""
    earlier = [entry for entry in trail if entry[0] <= now_s - window_s]
    return (*earlier[-1:], *(entry for entry in trail if entry[0] > now_s - window_s))


def longest_window_s(situation: Situation) -> float:
    """How far back what was asked for matters."""
    behavior = situation.policy.spec.behavior
    return max(behavior.scale_down.stabilization_window_seconds, behavior.scale_up.stabilization_window_seconds)


def longest_period_s(situation: Situation) -> float:
    """How far back totals in force matter."""
    behavior = situation.policy.spec.behavior
    return max(
        (rate.period_seconds for rate in (*behavior.scale_up.policies, *behavior.scale_down.policies)), default=0.0
    )


def _verb(after: int, before: int) -> str:
    return "held" if after > before else "limited"


def _within(trail: Trail, window_s: float) -> list[int]:
    """Totals asked for within the window that ends with the newest entry; the newest always."""
    now_s = trail[-1][0]
    return [total for moment_s, total in trail[:-1] if moment_s > now_s - window_s] + [trail[-1][1]]


def _within_tolerance(situation: Situation, proposal: Proposal, asked: int) -> str:
    """Why the change is too small to be made; empty when it is not."""
    current, behavior = situation.current, situation.policy.spec.behavior
    if proposal.need is None or asked == current or current == 0:
        return ""
    holds = capacity_of(situation.variants, spread(situation.variants, current))
    down, up = behavior.scale_down.tolerance, behavior.scale_up.tolerance
    words = f"{number(proposal.need)} is within"
    if asked < current and down > 0 and proposal.need >= (1 - down) * holds:
        return f"{words} {down:.0%} below the {number(holds)} that {current} hold"
    if asked > current and up > 0 and proposal.need <= (1 + up) * holds:
        return f"{words} {up:.0%} above the {number(holds)} that {current} hold"
    return ""


def _limited(situation: Situation, current: int, total: int) -> int:
    """The total after rate policies."""
    behavior, now_s = situation.policy.spec.behavior, situation.now.monotonic_s
    if total > current:
        limits = [
            _up(rate, min(_in_force(situation.state.totals, now_s, rate.period_seconds, current)))
            for rate in behavior.scale_up.policies
        ]
        return max(current, min(total, _selected(behavior.scale_up, limits, current, total)))
    if total < current:
        limits = [
            _down(rate, max(_in_force(situation.state.totals, now_s, rate.period_seconds, current)))
            for rate in behavior.scale_down.policies
        ]
        return min(current, max(total, _selected(behavior.scale_down, limits, current, total)))
    return total


def _in_force(totals: Trail, now_s: float, period_s: float, current: int) -> list[int]:
    """Totals that held at any moment of the period."""
    return [total for _, total in kept(totals, now_s, period_s)] + [current]


def _up(rate: RatePolicy, base: int) -> int:
    return base + (rate.value if rate.type == "Pods" else max(1, math.ceil(base * rate.value / 100)))


def _down(rate: RatePolicy, base: int) -> int:
    return base - (rate.value if rate.type == "Pods" else max(1, math.ceil(base * rate.value / 100)))


def _selected(rules: ScaleUp | ScaleDown, limits: Sequence[int], current: int, total: int) -> int:
    """Where selectPolicy says the total may go: Max is the furthest from the present, Min the nearest."""
    if rules.select_policy == "Disabled":
        return current
    if not limits:
        return total
    furthest = max if total > current else min
    nearest = min if total > current else max
    return furthest(limits) if rules.select_policy == "Max" else nearest(limits)
