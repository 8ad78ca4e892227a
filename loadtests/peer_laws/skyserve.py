"""SkyServe's autoscaler as a law: request rate over a target rate, acted on after long agreement.

Source: SkyPilot documentation "Autoscaling" (SkyServe; ceil(qps / target), upscale_delay_seconds 300,
downscale_delay_seconds 1200); skypilot-org/skypilot `sky/serve/autoscalers.py` (counters of decisions in a row, at once
from zero) and `sky/serve/constants.py` (window 60 s, decisions every 20 s, every 5 s while there is none).

qps / target qps is demand / (target x capacity) in the policy's signal units, with the policy's stable window (60 s by
default) as SkyServe's. Queued requests are not in it. The delays are kept as counts of 20 s decisions: 15 up, 60 down;
the first decision that disagrees counts, so 300 s are over 280 s after it.

Unknown load: the balancer's timestamps are cut to the window only when it reports, so the last known rate stands.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.laws import TARGET
from loadtests.peer_laws.frame import look, replicas_for

DECISION_S = 20.0
DECISION_FROM_ZERO_S = 5.0


def skyserve(target: float = TARGET, up_s: float = 300.0, down_s: float = 1200.0) -> Law:
    """SkyServe at `target` of capacity, up after `up_s` and down after `down_s` of agreement."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view, memory = look("skyserve", policy, state, seen, now), dict(state.memory)
        if view.demand is not None:
            memory["demand"] = view.demand
        if not view.due(memory, DECISION_S if view.present else DECISION_FROM_ZERO_S):
            return view.held(memory, "between two decisions")
        if "demand" not in memory:
            return view.held(memory, "no rate was ever reported")
        demand, aim = memory["demand"], target * view.variant.capacity
        asked = replicas_for(demand, aim)
        wanted = view.bounded(asked)
        counted_s = view.agreed_s(memory, wanted) + (DECISION_S if wanted != view.present else 0.0)
        delay_s = up_s if wanted > view.present else down_s
        after = wanted if counted_s >= delay_s or view.present == 0 else view.present
        if after != view.present:
            view.forget_agreement(memory)
        why = f"ceil({demand:.1f} / {aim:g}) = {asked}" + ("" if view.demand is not None else ", as last reported")
        trail = [("rate", wanted, why), ("delay", after, f"{why}, for {counted_s:g} of {delay_s:g} s")]
        return view.decided(trail, replace(state, memory=tuple(memory.items())), demand)

    return law
