"""Ray Serve's autoscaler as a law: mean ongoing requests over a target, acted on after a delay of agreement.

Source: Ray documentation "Ray Serve Autoscaling" and "Advanced Ray Serve Autoscaling" (look_back_period_s 30,
upscale_delay_s 30, downscale_delay_s 600, aggregation by mean); ray-project/ray `python/ray/serve/autoscaling_policy.py`
(delays count agreement without a break; from zero at once, one replica; to zero only from one).

wanted = ceil(mean ongoing / (target x capacity)), queued requests included, against the last target: replicas that are
still starting count as present. The newest wanted number is taken when the delay is over, not the mildest of it.

Unknown load: reports that stop are dropped after 20 s (ray-project/ray#44045), so what is not reported counts as no
requests, and after the down delay replicas go. Here: when nothing of the look-back is known.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.laws import TARGET
from loadtests.peer_laws.frame import look, replicas_for


def ray_serve(target: float = TARGET, look_back_s: float = 30.0, up_s: float = 30.0, down_s: float = 600.0) -> Law:
    """Ray Serve at `target` of capacity (target_ongoing_requests), up after `up_s` and down after `down_s`; no period of
    its own, as Ray's is 0.1 s."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view, memory = look("ray_serve", policy, state, seen, now), dict(state.memory)
        view.sampled(memory, look_back_s)
        known = view.mean_load(memory, look_back_s)
        ongoing, aim = known or 0.0, target * view.variant.capacity
        asked = replicas_for(ongoing, aim)
        wanted = view.bounded(asked)
        if view.present == 0:
            wanted = min(1, wanted)
        elif view.present > 1:
            wanted = max(1, wanted)
        agreed_s, delay_s = view.agreed_s(memory, wanted), up_s if wanted > view.present else down_s
        after = wanted if agreed_s >= delay_s or view.present == 0 else view.present
        if after != view.present:
            view.forget_agreement(memory)
        why = f"ceil({ongoing:.1f} / {aim:g}) = {asked}" + ("" if known is not None else ", as nothing is reported")
        trail = [("ongoing", wanted, why), ("delay", after, f"{why}, for {agreed_s:g} of {delay_s:g} s")]
        return view.decided(trail, replace(state, memory=tuple(memory.items())), known)

    return law
