"""How fast the number of replicas may change, in the words of the HPA, and panic in the words of Knative."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from autoscaler.policy_values import CountFromOne, NotNegative, Part, Positive, Seconds, SecondsOrZero


class RatePolicy(Part):
    """At most `value` replicas, or percent of replicas, of change within `periodSeconds`."""

    type: Literal["Percent", "Pods"]
    """Percent of what there was at the start of the period (at least one replica), or replicas."""
    value: CountFromOne
    """How many or how much."""
    period_seconds: Seconds
    """Length of the sliding period."""


class ScaleUp(Part):
    """Bounds of growth. Fast by default: a late replica costs answers, a replica too many costs minutes."""

    stabilization_window_seconds: SecondsOrZero = 0
    """Grow only to what was asked for throughout this window; 0 = at once."""
    policies: tuple[RatePolicy, ...] = (
        RatePolicy.model_validate({"type": "Percent", "value": 200, "periodSeconds": 15}),
        RatePolicy.model_validate({"type": "Pods", "value": 4, "periodSeconds": 15}),
    )
    """Rate limits; empty = none. The default triples, or adds 4, within 15 s."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    """Max = the policy that allows most; Min = least; Disabled = never grow."""
    tolerance: NotNegative = 0
    """Do not grow for a need this fraction above the present capacity; 0 = any need counts, as requests would queue."""


class ScaleDown(Part):
    """Bounds of shrinking."""

    stabilization_window_seconds: SecondsOrZero = 300
    """Shrink only to the highest number asked for within this window; 0 = at once. Default as in HPA."""
    policies: tuple[RatePolicy, ...] = (
        RatePolicy.model_validate({"type": "Percent", "value": 100, "periodSeconds": 15}),
    )
    """Rate limits; empty = none. Default as in HPA: no limit but the window."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    """Max = the policy that allows most; Min = least; Disabled = never shrink."""
    tolerance: NotNegative = 0.1
    """Do not shrink while the need is within this fraction of the present capacity; as HPA's 10%."""


class Panic(Part):
    """A short window beside the long one. It only ever raises."""

    threshold_percent: Positive = 200
    """Panic when the short window's demand is at least this percent of the ready capacity. As in Knative."""
    window_seconds: Seconds = 6
    """The short window; a tenth of the long one, as in Knative."""
    stable_window_seconds: Seconds = 60
    """The long window, and how long a panic outlives its last cause."""

    @field_validator("stable_window_seconds")
    @classmethod
    def _longer(cls, value: float, info: ValidationInfo) -> float:
        short = info.data.get("window_seconds")
        if short is not None and value < short:
            raise ValueError(f"must be at least windowSeconds ({short:g})")
        return value


class Behavior(Part):
    """Rate limits, stabilization, tolerance and panic."""

    scale_up: ScaleUp = ScaleUp()
    """Bounds of growth."""
    scale_down: ScaleDown = ScaleDown()
    """Bounds of shrinking."""
    panic: Panic = Panic()
    """The short window."""
