"""The truth table of the conditions, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.decide.conditions import conditions
from autoscaler.decide.decider import decide
from autoscaler.model import Condition, DeciderState, Observation
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast
from tests.builders import a_forecast, a_policy, a_replica, an_observation, at, ready, variant_document

NOW = at(100)


def told(
    kind: str,
    *,
    observation: Observation | None = None,
    policy: ScalingPolicy | None = None,
    forecast: Forecast | None = None,
    last: int = 2,
) -> Condition:
    policy = policy or a_policy()
    observation = observation or an_observation(NOW, 20.0, ready(2))
    state = DeciderState(recommendations=((99, last),), totals=((99, last),), last_desired=last)
    decision = decide(policy, state, observation, forecast, NOW)
    return next(item for item in conditions(policy, decision, observation, forecast) if item.type == kind)


ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("Ready", {}, "True", "AllReady"),
    ("Ready", {"observation": an_observation(NOW, 20.0, ready(1))}, "True", "SomeReady"),
    ("Ready", {"observation": an_observation(NOW, 20.0)}, "False", "NoneReady"),
    ("Ready", {"observation": an_observation(NOW, 20.0, [a_replica("b", standby=True)])}, "False", "NoneReady"),
    ("Active", {}, "True", "Scaled"),
    ("MetricsTrusted", {}, "True", "Fresh"),
    ("MetricsTrusted", {"observation": an_observation(NOW, 20.0, trusted=False)}, "False", "Partial"),
    ("MetricsTrusted", {"observation": an_observation(NOW, None)}, "False", "Unknown"),
    ("ForecastTrusted", {}, "Unknown", "TooLittleHistory"),
    ("ForecastTrusted", {"policy": a_policy(prediction={"enabled": False})}, "False", "Disabled"),
    ("ForecastTrusted", {"forecast": a_forecast(1.0, NOW)}, "True", "Trusted"),
    ("ForecastTrusted", {"forecast": a_forecast(1.0, NOW, trusted=False)}, "False", "AdviceOnly"),
    ("ForecastTrusted", {"forecast": a_forecast(1.0, at(-3_600))}, "False", "Stale"),
    ("ScalingLimited", {}, "False", "WithinBounds"),
    ("ScalingLimited", {"observation": an_observation(NOW, 500.0)}, "True", "Bounded"),
    ("CapacityPending", {}, "False", "None"),
    ("CapacityPending", {"observation": an_observation(NOW, 500.0)}, "True", "NoRoom"),
    (
        "CapacityPending",
        {"observation": an_observation(NOW, 20.0, [a_replica("s", "starting", overdue=True)])},
        "True",
        "Overdue",
    ),
    ("Paused", {}, "False", "Auto"),
    ("Paused", {"policy": a_policy(mode="Paused")}, "True", "Paused"),
    ("Paused", {"policy": a_policy(mode="Advise")}, "True", "Advise"),
    ("Paused", {"policy": a_policy(mode="Observe")}, "True", "Observe"),
]


@pytest.mark.parametrize(("kind", "given", "status", "reason"), ROWS)
def test_truth_table(kind: str, given: dict[str, Any], status: str, reason: str) -> None:
    found = told(kind, **given)
    assert (found.status, found.reason) == (status, reason)
    assert found.message


def test_delays_limit_scaling_too() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 300}}
    found = told("ScalingLimited", policy=a_policy(behavior=behavior), last=5)
    assert (found.status, found.reason) == ("True", "Stabilised")
    assert found.message == "5 was asked for within the last 300 s"


def test_nothing_desired_is_ready_and_not_active() -> None:
    policy = a_policy([variant_document(minReplicas=0)], scaleToZero={"enabled": True, "retentionSeconds": 0})
    observation = replace(an_observation(NOW, 0.0))
    found = [told(kind, policy=policy, observation=observation, last=0) for kind in ("Ready", "Active")]
    assert [(item.status, item.reason) for item in found] == [("True", "NothingDesired"), ("False", "ScaledToZero")]


def test_all_conditions_come_in_one_order() -> None:
    policy, observation = a_policy(), an_observation(NOW, 5.0)
    decision = decide(policy, DeciderState(), observation, None, NOW)
    assert [item.type for item in conditions(policy, decision, observation, None)] == [
        "Ready",
        "Active",
        "MetricsTrusted",
        "ForecastTrusted",
        "ScalingLimited",
        "CapacityPending",
        "Paused",
    ]
