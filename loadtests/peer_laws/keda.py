"""KEDA as a law: HPA on a metric that is polled every 30 s, and a last replica that goes and comes by polls alone.

Source: KEDA's "ScaledObject specification" (pollingInterval, cooldownPeriod, fallback) and "Scaling Deployments"
(caching metrics); kedacore/keda `pkg/scaling/executor/scale_scaledobjects.go`, `pkg/fallback/fallback.go`; issues
kedacore/keda#3921 and kedacore/keda-docs#1482 (what the polling interval does and does not slow down).

Between polls the HPA goes on with the value of the last poll, which is `useCachedMetrics`; without it only 0 to 1 and
back follow the poll. cooldownPeriod concerns the step to zero alone, 1 to N and back are HPA's. A poll without a value
is a failure: HPA then changes nothing, and after more than `fallback.failureThreshold` failures in a row the policy's
own fallback holds, in KEDA's words for it (none given: nothing changes).
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoscaler.model import DeciderState, Decision, Now, Observation, Step, VariantTarget
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.laws import TARGET, hpa_sync
from loadtests.peer_laws.frame import Memory, View, look

OWN = frozenset({"due_s", "polled", "failures", "active_s"})
"""Names of KEDA's own memory; the rest is HPA's."""
SLIGHT = 1e-9
"""KEDA gives its HPA a minimum of 1: an idle metric asks for one replica, not for none."""


def keda(target: float = TARGET, poll_s: float = 30.0, cooldown_s: float = 300.0) -> Law:
    """HPA at `target` of capacity, polled every `poll_s`; with minReplicas 0 to zero after `cooldown_s` without load,
    and from zero to one at the first poll that finds load."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view = look("keda", policy, state, seen, now)
        memory = {name: value for name, value in state.memory if name in OWN}
        if view.due(memory, poll_s):
            _poll(view, memory)
        total = _metric(view, policy, memory, target)
        hpas = replace(state, last_desired=view.present, memory=tuple(row for row in state.memory if row[0] not in OWN))
        decision = hpa_sync(policy, hpas, total, target, now)
        desired, kept, why = decision.desired, decision.next_state, decision.steps[0].why
        if view.present == 0:
            active = total is not None and total > SLIGHT
            desired, kept, why = view.bounded(int(active)), hpas, "load found" if active else "no load found"
        elif view.variant.min_replicas == 0 and not memory["failures"] and memory["polled"] == 0:
            idle_s = view.now_s - memory.get("active_s", -math.inf)
            idle = "no load yet" if idle_s == math.inf else f"no load for {idle_s:.0f} of {cooldown_s:g} s"
            desired, why = 0 if idle_s >= cooldown_s else desired, idle
        return replace(
            decision,
            desired=desired,
            targets=(VariantTarget(variant=view.variant.name, active=desired),),
            steps=(*decision.steps, Step(name="zero", before=decision.desired, after=desired, why=why)),
            next_state=replace(kept, last_desired=desired, memory=(*kept.memory, *memory.items())),
            reason=f"keda: {why}; desired {desired}",
            need=0.0 if total == SLIGHT else total,
            bound_by="zero" if desired != decision.desired else decision.bound_by,
        )

    return law


def _poll(view: View, memory: Memory) -> None:
    memory["failures"] = 0.0 if view.load is not None else memory.get("failures", 0.0) + 1
    memory["polled"] = float(view.load or 0)
    if view.load:
        memory["active_s"] = view.now_s


def _metric(view: View, policy: ScalingPolicy, memory: Memory, target: float) -> float | None:
    """What HPA is told: the polled value; None after a failed poll; what stands for the fallback's number after too
    many."""
    if not memory["failures"]:
        return max(memory["polled"], SLIGHT)
    fallback = policy.spec.fallback
    if fallback is None or fallback.behavior == "currentReplicas" or memory["failures"] <= fallback.failure_threshold:
        return None
    return max(fallback.replicas, view.present) * target * view.variant.capacity
