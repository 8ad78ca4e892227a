"""No law at all: the number that the highest load needs, at all times. What many run who do not trust an autoscaler.

Source: practice; the yardstick of `docs/benchmarks.md`. The number is a knob, as it takes hindsight to know it.
"""

from __future__ import annotations

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.peer_laws.frame import look


def static_peak(replicas: int | None = None) -> Law:
    """Always `replicas`, within the policy's bounds; None = its maxReplicas. Load, known or unknown, plays no part."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view = look("static_peak", policy, state, seen, now)
        wanted = view.variant.max_replicas if replicas is None else replicas
        return view.decided([("static", wanted, f"{wanted} at all times")], state)

    return law
