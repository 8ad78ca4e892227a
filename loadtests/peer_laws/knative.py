"""Knative's KPA as a law: the mean concurrency of a stable and of a panic window.

Source: knative.dev "Additional autoscaling configuration for Knative Pod Autoscaler" (windows, panic mode, rates) and
"Configuring targets" (70% of a replica's concurrency); knative/serving `pkg/autoscaler/scaling/autoscaler.go`.

wanted = ceil(mean / (target x capacity)) of the stable window, between ready / 2 and ready x 1000, where ready counts as
1 at least; what is still loading is not known. When the panic window asks for twice what is ready, panic: wanted never
falls and is the larger of both windows, until a stable window has passed since the last cause. A law that begins with
more than one replica ready begins in panic. Queued requests count as concurrency, as at Knative's activator.

Unknown load: the windows are means of what is known of them; when all of the stable one is unknown, nothing changes.
The grace period of the step to zero (30 s for re-routing to the activator) has no counterpart here.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.peer_laws.frame import look, replicas_for

TICK_S = 2.0
MAX_SCALE_UP_RATE = 1000
MAX_SCALE_DOWN_RATE = 2


def knative(target: float = 0.7, stable_s: float = 60.0, panic_s: float = 6.0, panic_at: float = 2.0) -> Law:
    """KPA at `target` of capacity; panic when the window of `panic_s` asks for `panic_at` times what is ready."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view, memory = look("knative", policy, state, seen, now), dict(state.memory)
        if state.last_desired is None and view.ready > 1:
            view = replace(view, state=replace(state, panic_since_s=view.now_s))
            memory["panic_replicas"] = float(view.ready)
        since_s, most = view.state.panic_since_s, int(memory.get("panic_replicas", 0))
        view.sampled(memory, stable_s)
        stable = view.mean_load(memory, stable_s)
        if not view.due(memory, TICK_S) or stable is None:
            return view.held(memory, "between two ticks" if stable is not None else "no metrics, no change")
        aim, ready = target * view.variant.capacity, max(1, view.ready)
        asked = replicas_for(stable, aim)
        wanted = min(max(asked, ready // MAX_SCALE_DOWN_RATE), ready * MAX_SCALE_UP_RATE)
        trail = [("stable", wanted, f"ceil({stable:.1f} / {aim:g}) = {asked} with {view.ready} ready")]
        burst = replicas_for(view.mean_load(memory, panic_s) or 0.0, aim)
        if burst / ready >= panic_at:
            since_s = view.now_s
        elif since_s is not None and view.now_s - since_s > stable_s:
            since_s, most = None, 0
        if since_s is not None:
            within = min(max(burst, ready // MAX_SCALE_DOWN_RATE), ready * MAX_SCALE_UP_RATE)
            most = max(most, wanted, within)
            trail.append(("panic", most, f"panic since {view.now_s - since_s:g} s, {burst} asked: never down"))
        memory["panic_replicas"] = float(most)
        kept = replace(state, panic_since_s=since_s, memory=tuple(memory.items()))
        return view.decided(trail, kept, need=stable)

    return law
