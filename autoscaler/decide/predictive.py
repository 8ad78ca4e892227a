"""What the forecast asks for: a quantile of the largest load until a replica ordered now would be ready.

The window is [now, now + P90 of the start time + one tick]: load within it can only be met by what is ordered now. The
same level is the one to keep when scaling down, because a replica stopped now would be missed just as long; so the
proposal never falls below it. A forecast only raises. One that is not trusted, or older than its own reach, advises
and does not act.
"""

from __future__ import annotations

from autoscaler.decide.mix import replicas_for
from autoscaler.decide.proposal import Proposal, Situation, number, seconds
from forecasting.forecast import Forecast


def age_s(forecast: Forecast, epoch_s: float) -> float:
    """Seconds since the last step that the forecast knew."""
    return max(0.0, epoch_s - forecast.made_at_s)


def usable(forecast: Forecast, epoch_s: float) -> bool:
    """Whether it still speaks of the future: younger than its longest horizon."""
    return age_s(forecast, epoch_s) < forecast.horizons_s[-1]


def predictive(situation: Situation, proposal: Proposal) -> Proposal:
    """Raise to what the forecast needs."""
    refused = _refusal(situation)
    forecast = situation.forecast
    if refused or forecast is None:
        return proposal.stepped("predictive", proposal.total, refused)
    signal, quantile = situation.policy.spec.signal, situation.policy.spec.prediction.quantile
    horizon_s = situation.horizon_s
    peak_per_s = forecast.maximum_within(age_s(forecast, situation.now.epoch_s) + horizon_s, quantile)
    need = signal.units(max(0.0, peak_per_s), situation.observation.service_s)
    if need is None:
        return proposal.stepped("predictive", proposal.total, f"signal {signal.type} is not forecast by this version")
    wanted = replicas_for(situation.variants, need)
    where = f"{number(need)} within {seconds(horizon_s)}"
    if need > (proposal.need or 0.0):
        why = f"load up to {where} at quantile {quantile:g} ({forecast.champion}) needs {wanted}"
        cause = f"load up to {where}" if proposal.need is not None else f"{proposal.cause}; forecast up to {where}"
        return proposal.stepped("predictive", max(proposal.total, wanted), why, need=need, cause=cause)
    why = f"load up to {where} at quantile {quantile:g} ({forecast.champion}) needs no more than {wanted}"
    return proposal.stepped("predictive", max(proposal.total, wanted), why)


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
