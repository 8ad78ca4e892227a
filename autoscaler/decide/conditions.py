"""Decision -> status conditions, in the manner of Kubernetes: a type, True / False / Unknown, a reason word, a
sentence.

Knows only values; the first matching row of a type counts.

| type | when | status | reason |
|---|---|---|---|
| Ready | nothing is desired | True | NothingDesired |
| | all desired replicas are ready | True | AllReady |
| | some are | True | SomeReady |
| | none is | False | NoneReady |
| Active | desired > 0, or a replica is ready | True | Scaled |
| | else | False | ScaledToZero |
| MetricsTrusted | the load is known and whole | True | Fresh |
| | only a part of it is known | False | Partial |
| | it is not known | False | Unknown |
| ForecastTrusted | prediction is off | False | Disabled |
| | there is no forecast yet | Unknown | TooLittleHistory |
| | the forecast says it only advises | False | AdviceOnly |
| | it is older than its own reach | False | Stale |
| | else | True | Trusted |
| ScalingLimited | bounds or delays had the last word | True | the step's name |
| | else | False | WithinBounds |
| CapacityPending | a replica is overdue, or none could be ordered for the need | True | Overdue, NoRoom |
| | else | False | None |
| Paused | mode Paused, Observe or Advise | True | the mode |
| | else | False | Auto |
"""

from __future__ import annotations

from autoscaler.decide.mix import capacity_of
from autoscaler.decide.predictive import age_s, usable
from autoscaler.decide.proposal import seconds
from autoscaler.model import Condition, Decision, Observation, ReplicaState
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast

_LIMITING = {"stabilise": "Stabilised", "bounds": "Bounded"}


def conditions(
    policy: ScalingPolicy, decision: Decision, observation: Observation, forecast: Forecast | None
) -> tuple[Condition, ...]:
    """All conditions of a policy, in the order of the table above."""
    ready = sum(
        item.state is ReplicaState.READY and not item.standby and not item.failed for item in observation.replicas
    )
    return (
        _ready(decision, ready),
        _active(decision, ready),
        _metrics_trusted(observation),
        _forecast_trusted(policy, decision, forecast),
        _scaling_limited(decision),
        _capacity_pending(policy, decision, observation),
        _paused(policy),
    )


def _condition(kind: str, status: bool | None, reason: str, message: str) -> Condition:
    return Condition(type=kind, status="Unknown" if status is None else str(status), reason=reason, message=message)


def _ready(decision: Decision, ready: int) -> Condition:
    words = f"{ready} of {decision.desired} desired replicas ready"
    if decision.desired == 0:
        return _condition("Ready", True, "NothingDesired", "no replica is wanted")
    if ready >= decision.desired:
        return _condition("Ready", True, "AllReady", words)
    return _condition("Ready", True, "SomeReady", words) if ready else _condition("Ready", False, "NoneReady", words)


def _active(decision: Decision, ready: int) -> Condition:
    if decision.desired or ready:
        return _condition("Active", True, "Scaled", f"{decision.desired} desired")
    return _condition("Active", False, "ScaledToZero", "scaled to zero; a request is held and wakes one replica")


def _metrics_trusted(observation: Observation) -> Condition:
    words = "; ".join(observation.gaps)
    if observation.trusted:
        return _condition("MetricsTrusted", True, "Fresh", words or "every router reports")
    reason = "Unknown" if observation.demand is None else "Partial"
    return _condition("MetricsTrusted", False, reason, f"{words or 'the load is not known'}: nothing is scaled down")


def _forecast_trusted(policy: ScalingPolicy, decision: Decision, forecast: Forecast | None) -> Condition:
    if not policy.spec.prediction.enabled:
        return _condition("ForecastTrusted", False, "Disabled", "prediction is switched off")
    if forecast is None:
        needed = policy.spec.prediction.min_history_seconds
        return _condition(
            "ForecastTrusted", None, "TooLittleHistory", f"no forecast yet; it needs {needed:g} s of load"
        )
    if not forecast.trusted:
        return _condition("ForecastTrusted", False, "AdviceOnly", forecast.why)
    if not usable(forecast, decision.at.epoch_s):
        old_s = age_s(forecast, decision.at.epoch_s)
        return _condition("ForecastTrusted", False, "Stale", f"{seconds(old_s)} old, longer than it reaches")
    return _condition("ForecastTrusted", True, "Trusted", f"{forecast.champion}: {forecast.why}")


def _scaling_limited(decision: Decision) -> Condition:
    reason = _LIMITING.get(decision.bound_by or "")
    if reason is None:
        return _condition("ScalingLimited", False, "WithinBounds", "the load had the last word")
    why = next(step.why for step in reversed(decision.steps) if step.name == decision.bound_by)
    return _condition("ScalingLimited", True, reason, why)


def _capacity_pending(policy: ScalingPolicy, decision: Decision, observation: Observation) -> Condition:
    overdue = [item.id for item in observation.replicas if item.overdue and not item.failed and item.ready_s is None]
    if overdue:
        return _condition(
            "CapacityPending", True, "Overdue", f"{', '.join(overdue)} should have been ready; not counted on"
        )
    variants = policy.spec.serving
    most = capacity_of(variants, {variant.name: variant.max_replicas for variant in variants})
    if decision.need is not None and decision.need > most:
        return _condition(
            "CapacityPending",
            True,
            "NoRoom",
            f"a need of {decision.need:g} is more than the {most:g} of all maxReplicas",
        )
    return _condition("CapacityPending", False, "None", "all that was ordered is ready or on its way")


def _paused(policy: ScalingPolicy) -> Condition:
    mode = policy.spec.mode
    acts = {
        "Auto": "decisions are acted on",
        "Advise": "decisions are published and not acted on",
        "Observe": "load is forecast and nothing is decided",
        "Paused": "the present number is held",
    }
    return _condition("Paused", mode != "Auto", mode, acts[mode])
