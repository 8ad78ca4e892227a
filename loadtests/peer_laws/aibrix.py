"""AIBrix's APA as a law: the ratio of use to target, outside a tolerance, in bounded steps.

Source: AIBrix documentation "Metric-based Autoscaling"; vllm-project/aibrix
`pkg/controller/podautoscaler/algorithm/apa.go` (the ratio and its bounds), `context/context.go` (defaults), issue
vllm-project/aibrix#2670 (the cascade) and pull request #2671 (the guard against it).

use = load / ready replicas, as only they report; wanted = ceil(current x use / target), where current includes what is
loading: so a long start is ordered again at each sync, doubling. The guard counts loading replicas as idle when going
up (wanted = load / target, at least current) and as at target when going down; it came late, so it is a knob. Down: to
the highest number wanted in the cooldown, which is what the option is documented for (the controller's code of 2026
takes the lowest). The last replica stays: scale to zero is off by default.

Unknown load, or nothing ready to report one: nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.laws import TARGET
from loadtests.peer_laws.frame import ROUNDING, look, replicas_for

SYNC_S = 10.0
RATE = 2.0
"""max-scale-up-rate and max-scale-down-rate: at most double, at least half, in one sync."""


def aibrix(
    target: float = TARGET, tolerance: float = 0.1, cooldown_s: float = 300.0, pending_guard: bool = True
) -> Law:
    """APA at `target` of capacity; `tolerance` both ways; `pending_guard` as since 2026."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view, memory = look("aibrix", policy, state, seen, now), dict(state.memory)
        if not view.due(memory, SYNC_S):
            return view.held(memory, "between two syncs")
        if view.load is None or not view.ready:
            return view.held(memory, "no replica reports, no change")
        aim, current = target * view.variant.capacity, max(1, view.present)
        ratio = view.load / view.ready / aim
        wanted, why = current, f"{view.load / view.ready:.2f} each is within {tolerance:.0%} of {aim:g}"
        if ratio > 1 + tolerance or ratio < 1 - tolerance:
            step = math.ceil(current * ratio - ROUNDING)
            wanted = max(min(step, math.ceil(current * RATE)), math.floor(current / RATE))
            why = f"{current} x {view.load / view.ready:.2f} / {aim:g} = {step}, at most {RATE:g} times"
        trail = [("ratio", max(1, wanted), why)]
        pending = current - view.ready
        if pending_guard and pending > 0 and wanted != current:
            likely = replicas_for(view.load if wanted > current else view.load + aim * pending, aim)
            wanted = sorted((wanted, likely, current))[1]
            trail.append(("pending", wanted, f"{pending} not ready: {likely} by what they will hold"))
        wanted = view.bounded(max(1, wanted))
        earlier = state.recommendations or ((view.now_s, view.present),)
        recent = (*(row for row in earlier if row[0] > view.now_s - cooldown_s), (view.now_s, wanted))
        held = wanted if wanted >= view.present else min(view.present, max(row[1] for row in recent))
        trail.append(("cooldown", held, f"{trail[-1][2]}; highest wanted in {cooldown_s:g} s"))
        return view.decided(trail, replace(state, recommendations=recent, memory=tuple(memory.items())), view.load)

    return law
