"""NVIDIA Dynamo's planner as a law: a floor from a forecast of the rate, and single steps by load above it.

Source: NVIDIA Dynamo documentation "Planner Guide" and "Planner Design" (throughput-based and load-based scaling used
together); ai-dynamo/dynamo `components/src/dynamo/planner/core/{throughput_scaling,load_scaling,state_machine}.py` and
`config/defaults.py` (180 s, 5 s, scale-down sensitivity 80%), `core/load/predictors.py` (predictors and their constants).

Every 180 s: floor = ceil(forecast of the next 180 s / (target x capacity)), where target x capacity stands for the most
that a replica serves within its SLA. Every 5 s: one more when every replica is past that; one fewer when the others,
after taking over its load, would be below 80% of it; never below the floor. While a start is pending nothing changes,
the floor included. The rate of an interval is the mean of the short window at each tick. The forecast is the planner's
own Kalman filter of a level and a trend (it is linear, so signal units serve as well as requests), not ours; its
default, ARIMA, does not fit into a pure law of this size. Each of them begins with the last value.

Unknown load: no step; an interval without any known demand leaves filter and floor as they are.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from forecasting.forecast import Forecast
from loadtests.peer_laws.frame import Memory, look, replicas_for

PLAN_S = 180.0
STEP_S = 5.0
SENSITIVITY = 0.8
Q_LEVEL, Q_TREND, R, P_FIRST = 1.0, 0.1, 10.0, 1000.0


def dynamo(target: float = 1.0) -> Law:
    """The planner with both kinds of scaling; `target`: share of capacity that a replica serves within its SLA."""

    def law(
        policy: ScalingPolicy, state: DeciderState, seen: Observation, forecast: Forecast | None, now: Now
    ) -> Decision:
        view, memory = look("dynamo", policy, state, seen, now), dict(state.memory)
        aim = target * view.variant.capacity
        plan_due_s = memory.setdefault("plan_due_s", view.now_s + PLAN_S)
        if seen.panic_demand is not None:
            memory["sum"] = memory.get("sum", 0.0) + seen.panic_demand
            memory["count"] = memory.get("count", 0.0) + 1
        if view.now_s >= plan_due_s:
            memory["plan_due_s"] = max(plan_due_s + PLAN_S, view.now_s)
            if memory.get("count"):
                expected = filtered(memory, memory.pop("sum") / memory.pop("count"))
                memory["floor"] = float(max(1, replicas_for(expected, aim)))
        if not view.due(memory, STEP_S):
            return view.held(memory, "between two steps")
        if view.ready != view.present:
            return view.held(memory, f"{view.ready} of {view.present} ready: observing only")
        if view.load is None:
            return view.held(memory, "no metrics, no step")
        wanted, why = view.present, f"{view.load} on {view.ready} x {aim:g}"
        if view.load > view.ready * aim:
            wanted, why = wanted + 1, f"{why}: past the SLA"
        elif view.ready > 1 and view.load / (view.ready - 1) < SENSITIVITY * aim:
            wanted, why = wanted - 1, f"{why}: the others can take it"
        floor = int(memory.get("floor", 1.0))
        trail = [("load", wanted, why), ("floor", max(wanted, floor), f"{why}; forecast needs {floor}")]
        return view.decided(trail, replace(state, memory=tuple(memory.items())), view.load)

    return law


def filtered(memory: Memory, value: float) -> float:
    """Tell the filter one interval's mean; gives its forecast of the next one, at least 0.

    Local linear trend: level' = level + trend + noise (variance 1), trend' = trend + noise (0.1), value = level + noise
    (10). The state (level, trend and their covariance) is kept in `memory`; the first value is taken as the level.
    """
    if "level" not in memory:
        memory.update(level=value, trend=0.0, p_ll=P_FIRST, p_lt=0.0, p_tt=P_FIRST)
        return value
    level = memory["level"] + memory["trend"]
    p_ll = memory["p_ll"] + 2 * memory["p_lt"] + memory["p_tt"] + Q_LEVEL
    p_lt, p_tt = memory["p_lt"] + memory["p_tt"], memory["p_tt"] + Q_TREND
    gain_level, gain_trend, error = p_ll / (p_ll + R), p_lt / (p_ll + R), value - level
    memory.update(
        level=level + gain_level * error,
        trend=memory["trend"] + gain_trend * error,
        p_ll=(1 - gain_level) * p_ll,
        p_lt=(1 - gain_level) * p_lt,
        p_tt=p_tt - gain_trend * p_lt,
    )
    return max(0.0, memory["level"] + memory["trend"])
