"""ScalingPolicy: the document that says what is scaled, within which bounds, and how.

The names are those of the file that users write (camelCase there, snake_case here); defaults stand next to their
fields with their unit and reason. The parts live in `policy_variants`, `policy_scaling`, `policy_behavior`,
`policy_routing` and `policy_rollout` and are all importable from here. Reading files and wording problems is
`policy_file`'s job.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from autoscaler.policy_behavior import Behavior, Panic, RatePolicy, ScaleDown, ScaleUp
from autoscaler.policy_rollout import Analysis, Rollout
from autoscaler.policy_routing import Priorities, Queue, Retries, Routing, Tenants, Timeouts
from autoscaler.policy_scaling import (
    Budget,
    Drain,
    Fallback,
    Prediction,
    ScaleToZero,
    Schedule,
    Signal,
    Slo,
    WarmPool,
)
from autoscaler.policy_values import Name, Part, Seconds, Text, Whole
from autoscaler.policy_variants import Process, Readiness, Resource, ScaleTargetRef, StartTimePrior, Variant

__all__ = [
    "Analysis",
    "Behavior",
    "Budget",
    "Drain",
    "Fallback",
    "Metadata",
    "Panic",
    "PolicySpec",
    "Prediction",
    "Priorities",
    "Process",
    "Queue",
    "RatePolicy",
    "Readiness",
    "Resource",
    "Retries",
    "Rollout",
    "Routing",
    "ScaleDown",
    "ScaleTargetRef",
    "ScaleToZero",
    "ScaleUp",
    "ScalingPolicy",
    "Schedule",
    "Signal",
    "Slo",
    "StartTimePrior",
    "Tenants",
    "Timeouts",
    "Variant",
    "WarmPool",
]

LOCAL_TICK_S = 2.0
KUBERNETES_TICK_S = 5.0


class Metadata(Part):
    """Name of the policy, as of any Kubernetes object."""

    name: Name
    """Unique in its namespace; first part of replica ids."""
    namespace: Name | None = None
    """None = the only one, or the file's."""
    labels: dict[str, str] = {}
    """Not read."""
    annotations: dict[str, str] = {}
    """Not read."""


class PolicySpec(Part):
    """All that a user decides."""

    model: Text
    """The model name that requests ask for."""
    aliases: tuple[Text, ...] = ()
    """Other names for it."""
    mode: Literal["Observe", "Advise", "Auto", "Paused"] = "Auto"
    """Auto = act; Advise = decide in full, act on nothing; Observe = forecast only; Paused = hold the present
    number."""
    actuation: Literal["Scale", "External"] = "Scale"
    """Scale = set the number; External = publish it for another scaler."""
    priority: Whole = 0
    """Who yields when a budget or quota binds: the lower number."""
    slo: Slo = Slo()
    """What a request may expect."""
    polling_interval_seconds: Seconds | None = None
    """The tick; None = 2 s where replicas are processes, 5 s on Kubernetes."""
    signal: Signal = Signal()
    """The unit of load and capacity."""
    variants: tuple[Variant, ...]
    """Kinds of replicas, at least one, names unique. Ties in price are broken in this order."""
    prediction: Prediction = Prediction()
    """Forecasting."""
    warm_pool: WarmPool = WarmPool()
    """Replicas that wait loaded."""
    scale_to_zero: ScaleToZero = ScaleToZero()
    """Giving up the last replica."""
    behavior: Behavior = Behavior()
    """How fast the number may change."""
    drain: Drain = Drain()
    """How a replica leaves."""
    schedules: tuple[Schedule, ...] = ()
    """Floors at fixed times."""
    budget: Budget = Budget()
    """What all replicas together may take."""
    fallback: Fallback | None = None
    """What to do when the load stays unknown; None = hold the present number."""
    rollout: Rollout | None = None
    """Hot upgrade; None = all variants serve."""
    routing: Routing = Routing()
    """What the routers do."""

    @field_validator("variants")
    @classmethod
    def _consistent(cls, value: tuple[Variant, ...]) -> tuple[Variant, ...]:
        if not value:
            raise ValueError("must have at least one variant")
        twice = [name for name, times in Counter(variant.name for variant in value).items() if times > 1]
        if twice:
            raise ValueError(f"names must be unique; used more than once: {', '.join(twice)}")
        priced = [variant.cost_per_hour is not None for variant in value]
        if any(priced) and not all(priced):
            missing = ", ".join(variant.name for variant in value if variant.cost_per_hour is None)
            raise ValueError(f"costPerHour must be set on all variants or on none; missing on: {missing}")
        return value

    @model_validator(mode="after")
    def _possible(self) -> PolicySpec:
        """Bounds that contradict each other are refused, not resolved in silence."""
        serving = self.serving
        if not serving:
            raise PydanticCustomError(
                "policy", "rollout.to must leave at least one variant of another version to serve"
            )
        if self.scale_to_zero.enabled and any(variant.min_replicas for variant in serving):
            raise PydanticCustomError("policy", "scaleToZero.enabled needs minReplicas 0 on every variant")
        gpus = sum(variant.min_replicas * variant.gpu_share for variant in serving)
        if self.budget.max_gpus is not None and gpus > self.budget.max_gpus:
            raise PydanticCustomError("policy", f"budget.maxGPUs must hold all minReplicas, which take {gpus:g} GPUs")
        cost = sum(variant.min_replicas * variant.price for variant in serving)
        if self.budget.max_cost_per_hour is not None and cost > self.budget.max_cost_per_hour:
            raise PydanticCustomError(
                "policy", f"budget.maxCostPerHour must pay for all minReplicas, which cost {cost:g}"
            )
        return self

    @property
    def serving(self) -> tuple[Variant, ...]:
        """Variants that scaling may use: all but those of the version that a rollout has yet to bring in."""
        return tuple(variant for variant in self.variants if self.rollout is None or variant.version != self.rollout.to)


class ScalingPolicy(Part):
    """One policy document. `status` is written by the controller and ignored when read."""

    api_version: Literal["tidegate.dev/v1alpha1"] = "tidegate.dev/v1alpha1"
    kind: Literal["ScalingPolicy"] = "ScalingPolicy"
    metadata: Metadata
    spec: PolicySpec
    status: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """Identity of the policy: its name, after its namespace if it has one."""
        return (
            self.metadata.name if self.metadata.namespace is None else f"{self.metadata.namespace}/{self.metadata.name}"
        )

    @property
    def tick_s(self) -> float:
        """Seconds between two decisions."""
        if self.spec.polling_interval_seconds is not None:
            return self.spec.polling_interval_seconds
        return LOCAL_TICK_S if any(variant.process for variant in self.spec.variants) else KUBERNETES_TICK_S

    def variant(self, name: str) -> Variant:
        """The variant of that name. Raises `KeyError` with the name."""
        for variant in self.spec.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)
