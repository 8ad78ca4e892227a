"""When a forecast counts, how far ahead it is read, and what it never does."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.decide.decider import decide
from autoscaler.model import DeciderState, Decision, Expected, StartTime
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast
from tests.builders import a_forecast, a_policy, an_observation, at, ready, variant_document

NOW = at(100)
RISING = {"horizons_s": (10.0, 20.0, 40.0), "window_max": ((10.0, 20.0, 30.0), (20.0, 40.0, 60.0), (40.0, 80.0, 99.0))}
"""Quantiles 0.5, 0.9 and 0.99 of the maximum within 10, 20 and 40 s."""


def decided(policy: ScalingPolicy, forecast: Forecast | None, per_s: float = 5.0, **fields: Any) -> Decision:
    before = DeciderState(recommendations=((99, 2),), totals=((99, 2),), last_desired=2)
    return decide(policy, before, an_observation(NOW, per_s, ready(2), **fields), forecast, NOW)


def told(decision: Decision) -> str:
    return next(step.why for step in decision.steps if step.name == "predictive")


@pytest.mark.parametrize(
    ("p90_s", "tick_s", "quantile", "need"),
    [
        (9, 1, 0.5, 10.0),
        (9, 1, 0.9, 20.0),
        (19, 1, 0.9, 40.0),
        (18, 2, 0.5, 20.0),
        (14, 1, 0.9, 30.0),
        (99, 1, 0.99, 99.0),
    ],
)
def test_the_window_is_the_p90_of_the_start_time_and_a_tick_at_the_policys_quantile(
    p90_s: float, tick_s: float, quantile: float, need: float
) -> None:
    policy = a_policy(pollingIntervalSeconds=tick_s, prediction={"quantile": quantile})
    forecast = a_forecast(0.0, NOW, **RISING)
    decision = decided(policy, forecast, start_times={"gpu": StartTime(p50_s=1, p90_s=p90_s)})
    assert decision.need == pytest.approx(need)


def test_the_slowest_variant_decides_how_far_ahead_to_look() -> None:
    policy = a_policy([variant_document("a"), variant_document("b")], prediction={"quantile": 0.5})
    times = {"a": StartTime(p50_s=1, p90_s=9), "b": StartTime(p50_s=1, p90_s=19)}
    assert decided(policy, a_forecast(0.0, NOW, **RISING), start_times=times).need == pytest.approx(20.0)


def test_a_forecast_made_a_while_ago_is_read_that_much_further() -> None:
    policy = a_policy(prediction={"quantile": 0.5})
    times = {"gpu": StartTime(p50_s=1, p90_s=9)}
    earlier = a_forecast(0.0, at(90), **RISING)
    assert decided(policy, earlier, start_times=times).need == pytest.approx(20.0)


@pytest.mark.parametrize("mode", ["Auto", "Advise", "Observe", "Paused"])
def test_a_decision_tells_the_numbers_that_it_had(mode: str) -> None:
    """Of the same window, from now on, whoever shows them: in requests per second."""
    policy = a_policy(mode=mode, prediction={"quantile": 0.99})
    times = {"gpu": StartTime(p50_s=1, p90_s=9)}
    for made_s, rows in ((100, (10.0, 20.0, 30.0)), (90, (20.0, 40.0, 60.0))):
        decision = decided(policy, a_forecast(0.0, at(made_s), **RISING), service_s=2.0, start_times=times)
        p50, p90, need = rows
        assert decision.expected == Expected(horizon_s=10.0, p50=p50, p90=p90, need=need, quantile=0.99)
        assert mode not in ("Auto", "Advise") or decision.need == 2.0 * need


@pytest.mark.parametrize(
    ("spec", "forecast", "told_of"),
    [
        ({}, None, False),
        ({"prediction": {"enabled": False}}, a_forecast(90.0, NOW), False),
        ({}, a_forecast(90.0, at(-3_600)), False),
        ({}, a_forecast(90.0, NOW, trusted=False), True),
        ({"signal": {"type": "tokenRate"}}, a_forecast(90.0, NOW), True),
    ],
    ids=["none", "switched off", "older than it reaches", "advises only", "not in signal units"],
)
def test_a_forecast_that_does_not_count_may_still_be_told_of(
    spec: dict[str, Any], forecast: Forecast | None, told_of: bool
) -> None:
    assert (decided(a_policy(**spec), forecast).expected is not None) is told_of


def test_the_need_is_in_signal_units() -> None:
    assert decided(a_policy(), a_forecast(7.0, NOW), service_s=6.0, demand=5.0).need == pytest.approx(42.0)
    rate = a_policy(signal={"type": "requestRate"})
    assert decided(rate, a_forecast(7.0, NOW), service_s=6.0, demand=5.0).need == pytest.approx(7.0)


def test_a_forecast_only_raises() -> None:
    decision = decided(a_policy(), a_forecast(3.0, NOW), per_s=45.0)
    assert (decision.desired, decision.need) == (5, 45.0)
    assert told(decision) == "load up to 3 within 13 s at quantile 0.95 (flat) needs no more than 1"


@pytest.mark.parametrize(
    ("spec", "forecast", "words"),
    [
        ({}, None, "no forecast yet: too little history"),
        ({"prediction": {"enabled": False}}, a_forecast(90.0, NOW), "prediction is switched off"),
        (
            {},
            a_forecast(90.0, NOW, trusted=False),
            "the forecast is not trusted and only advises: the same for ever",
        ),
        ({}, a_forecast(90.0, at(-3_600)), "the forecast is 3700 s old, longer than it reaches"),
        ({"signal": {"type": "tokenRate"}}, a_forecast(90.0, NOW), "signal tokenRate is not forecast by this version"),
    ],
)
def test_a_forecast_that_does_not_count_says_why(spec: dict[str, Any], forecast: Forecast | None, words: str) -> None:
    decision = decided(a_policy(**spec), forecast)
    assert told(decision) == words
    assert decision.desired == 1


def test_a_held_request_is_a_reason_of_its_own() -> None:
    decision = decided(a_policy([variant_document(minReplicas=0)]), None, per_s=0.0, held_from_zero=1)
    assert decision.reason == "1 held for want of a replica needs 1 x 10; 2 ready"
