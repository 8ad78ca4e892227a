"""The law that most others are compared with: HPA as a `ports.Law`, so the same controller can be told to follow it.

`hpa` is the HorizontalPodAutoscaler on an external average-value metric, as documented by Kubernetes ("Horizontal Pod
Autoscaling": algorithm details, default behavior, stabilization window) and done in kubernetes/kubernetes
`pkg/controller/podautoscaler` (`GetExternalPerPodMetric`, `stabilizeRecommendationWithBehaviors`,
`calculateScaleUpLimitWithScalingRules`). The metric is what a router would give it: requests in flight plus queued; the
target is a share of one replica's capacity, `TARGET` unless asked. External metrics ignore loading replicas. Other
people's laws are in `peer_laws`.
"""

from __future__ import annotations

import math

from autoscaler.model import DeciderState, Decision, Now, Observation, Step, VariantTarget
from autoscaler.policy import ScaleUp, ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast

TARGET = 0.8
"""Share of a replica's capacity that HPA aims at: room for what comes while a new replica loads."""
TOLERANCE = 0.1
"""HPA's default: no change while total / (target x replicas) is within 10% of 1."""


def hpa(target: float = TARGET) -> Law:
    """HPA that aims at `target` of each replica's capacity, in (0, 1]; on the caller's tick (HPA's own: 15 s)."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        total = None if seen.in_flight is None or seen.backlog is None else seen.in_flight + seen.backlog
        return hpa_sync(policy, state, total, target, now)

    return law


def hpa_sync(policy: ScalingPolicy, state: DeciderState, total: float | None, target: float, now: Now) -> Decision:
    """desired = ceil(total / target), held while unknown or within the tolerance, then stabilised, rate limited and
    bounded.

    `total`: the metric's value, requests in flight plus queued, None = unknown. Down: to the highest recommendation of
    `behavior.scaleDown.stabilizationWindowSeconds`. Up: at most what `behavior.scaleUp.policies` allow (HPA's own: 100%
    or 4 replicas in 15 s, whichever is more). HPA has one target, so only the first variant is scaled.
    """
    variant, behavior = policy.spec.variants[0], policy.spec.behavior
    target = target * variant.capacity
    present = variant.min_replicas if state.last_desired is None else state.last_desired
    if total is None:
        wanted, why = present, "metric unknown, no change"
    elif present and abs(total / (target * present) - 1) <= TOLERANCE:
        wanted, why = present, f"{total:g} is within {TOLERANCE:.0%} of {present} x {target:g}"
    else:
        wanted, why = math.ceil(total / target), f"ceil({total:g} / {target:g})"
    steps = [Step(name="ratio", before=present, after=wanted, why=why)]

    window_s = behavior.scale_down.stabilization_window_seconds
    earlier = state.recommendations or ((now.monotonic_s, present),)
    recent = (*(row for row in earlier if row[0] > now.monotonic_s - window_s), (now.monotonic_s, wanted))
    held = wanted if wanted >= present else min(present, max(row[1] for row in recent))
    steps.append(Step(name="stabilise", before=wanted, after=held, why=f"highest wanted in {window_s:g} s"))

    limited = min(held, _growth_limit(behavior.scale_up, state.memory, present, now)) if held > present else held
    steps.append(Step(name="rate", before=held, after=limited, why="behavior.scaleUp.policies"))

    desired = max(variant.min_replicas, min(variant.max_replicas, limited))
    steps.append(
        Step(name="bounds", before=limited, after=desired, why=f"{variant.min_replicas} to {variant.max_replicas}")
    )

    longest_s = max((rate.period_seconds for rate in behavior.scale_up.policies), default=0.0)
    memory = [(at, change) for at, change in state.memory if float(at) > now.monotonic_s - longest_s]
    memory += [(repr(now.monotonic_s), float(desired - present))] if desired != present else []
    return Decision(
        at=now,
        desired=desired,
        targets=(VariantTarget(variant=variant.name, active=desired),),
        steps=tuple(steps),
        next_state=DeciderState(recommendations=recent, last_desired=desired, memory=tuple(memory)),
        reason=f"hpa: {why}; desired {desired}",
        bound_by=next((step.name for step in reversed(steps[1:]) if step.before != step.after), None),
        need=None if total is None else float(total),
    )


def _growth_limit(scale_up: ScaleUp, memory: tuple[tuple[str, float], ...], present: int, now: Now) -> int:
    """The most replicas allowed now. `memory` holds (moment, change); the limit counts from what there was a period
    ago.
    """
    limits = []
    for rate in scale_up.policies:
        start = present - sum(change for at, change in memory if float(at) > now.monotonic_s - rate.period_seconds)
        limits.append(start + rate.value if rate.type == "Pods" else math.ceil(start * (1 + rate.value / 100)))
    if scale_up.select_policy == "Disabled":
        return present
    return int((max if scale_up.select_policy == "Max" else min)(limits, default=10**9))
