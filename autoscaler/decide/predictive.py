"""What the forecast asks for: a quantile of the largest load until a replica ordered now would be ready.

The window is [now, now + P90 of the start time + one tick]: load within it can only be met by what is ordered now. The
same level is the one to keep when scaling down, because a replica stopped now would be missed just as long; so the
proposal never falls below it. A forecast only raises. One that is not trusted, or older than its own reach, advises
and does not act.
"""

from __future__ import annotations

from autoscaler.decide.mix import replicas_for
from autoscaler.decide.proposal import Proposal, Situation, number, seconds
from autoscaler.model import Expected
from forecasting.forecast import Forecast


def age_s(forecast: Forecast, epoch_s: float) -> float:
    """Seconds since the last step that the forecast knew."""
    return max(0.0, epoch_s - forecast.made_at_s)


def usable(forecast: Forecast, epoch_s: float) -> bool:
    """Whether it still speaks of the future: younger than its longest horizon."""
    return age_s(forecast, epoch_s) < forecast.horizons_s[-1]


def expected(situation: Situation) -> Expected | None:
    """What the forecast says of the window, from now on whenever it was made; None when there is none that still speaks
    of the future.
    """
    forecast, epoch_s = situation.forecast, situation.now.epoch_s
    prediction, horizon_s = situation.policy.spec.prediction, situation.horizon_s
    if forecast is None or not prediction.enabled or not usable(forecast, epoch_s):
        return None
    reach_s = age_s(forecast, epoch_s) + horizon_s
    return Expected(
        horizon_s=horizon_s,
        p50=max(0.0, forecast.maximum_within(reach_s, 0.5)),
        p90=max(0.0, forecast.maximum_within(reach_s, 0.9)),
        need=max(0.0, forecast.maximum_within(reach_s, prediction.quantile)),
        quantile=prediction.quantile,
    )


def predictive(situation: Situation, proposal: Proposal) -> Proposal:
    """Raise to what the forecast needs."""
    refused, found = _refusal(situation), expected(situation)
    forecast = situation.forecast
    if refused or forecast is None or found is None:
        return proposal.stepped("predictive", proposal.total, refused, expected=found)
    signal = situation.policy.spec.signal
    need = signal.units(found.need, situation.observation.service_s)
    if need is None:
        why = f"signal {signal.type} is not forecast by this version"
        return proposal.stepped("predictive", proposal.total, why, expected=found)
    wanted = replicas_for(situation.variants, need)
    where = f"{number(need)} within {seconds(found.horizon_s)}"
    load = f"load up to {where} at quantile {found.quantile:g} ({forecast.champion})"
    total = max(proposal.total, wanted)
    if need > (proposal.need or 0.0):
        cause = f"load up to {where}" if proposal.need is not None else f"{proposal.cause}; forecast up to {where}"
        return proposal.stepped("predictive", total, f"{load} needs {wanted}", need=need, cause=cause, expected=found)
    return proposal.stepped("predictive", total, f"{load} needs no more than {wanted}", expected=found)


def _refusal(situation: Situation) -> str:
    """Why the forecast does not count; empty when it does."""
    forecast = situation.forecast
    if not situation.policy.spec.prediction.enabled:
        return "prediction is switched off"
    if forecast is None:
        return "no forecast yet: too little history"
    if not forecast.trusted:
        return f"the forecast is not trusted and only advises: {forecast.why}"
    if not usable(forecast, situation.now.epoch_s):
        return f"the forecast is {seconds(age_s(forecast, situation.now.epoch_s))} old, longer than it reaches"
    return ""
