"""A variant: one kind of replica, its hardware and engine settings, and how to start one.

Part of the ScalingPolicy document. Knows nothing of processes or pods; adapters read `process` or `scale_target_ref`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from autoscaler.model import StartTime
from autoscaler.policy_values import Count, CountFromOne, Devices, Name, NotNegative, Part, Positive, Seconds, Text

Engine = Literal["vllm", "sglang", "tgi", "triton", "llamacpp", "generic"]

_MIG = re.compile(r"nvidia\.com/mig-(\d+)g\..+")
_MIG_SLICES = 7


class ScaleTargetRef(Part):
    """The Kubernetes object whose `/scale` is set; the same three fields as in an HPA."""

    api_version: Text = "apps/v1"
    """Group and version of the object."""
    kind: Text = "Deployment"
    """Kind of the object."""
    name: Text
    """Its name, in the policy's namespace."""


class Readiness(Part):
    """How to see that a replica has loaded."""

    path: Text = "/health"
    """Path that answers 200 once the model is loaded; every known engine has /health."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("must start with /")
        return value


class Process(Part):
    """A replica as a process on this machine."""

    command: tuple[Text, ...]
    """Program and arguments. `{port}` is chosen by the controller, `{device}` comes from `devices`, `{python}` is the
    current interpreter."""
    env: dict[str, str] = {}
    """Variables added to the controller's own, with the same words replaced; empty = nothing added."""
    devices: Devices = ()
    """One replica per entry, given as `{device}`; empty = replicas need no device; auto = ask the driver."""
    readiness: Readiness = Readiness()
    """How to see that it has loaded."""

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("must name a program")
        return value

    @model_validator(mode="after")
    def _words(self) -> Process:
        """A replica on a port nobody knows cannot be routed to; `{device}` without devices would reach the engine as
        it stands."""
        words = " ".join((*self.command, *self.env.values()))
        if "{port}" not in words:
            raise PydanticCustomError(
                "policy", "must contain {port} in command or env: the controller chooses the port"
            )
        if "{device}" in words and not self.devices:
            raise PydanticCustomError("policy", "must list devices, because {device} is used")
        return self


class Resource(Part):
    """What one replica takes of a node, by Kubernetes resource name."""

    name: Text = "nvidia.com/gpu"
    """`nvidia.com/gpu` for whole GPUs, `nvidia.com/mig-3g.40gb` and the like for slices."""
    count: CountFromOne = 1
    """How many of them one replica takes."""


class StartTimePrior(Part):
    """Command to ready, before any start was measured. Two quantiles, because the tail decides when a start is
    overdue."""

    p50_seconds: Seconds = 60
    """Half of the starts are faster."""
    p90_seconds: Seconds = 120
    """Nine in ten are faster; at least p50Seconds. How far ahead load is forecast."""
    timeout_seconds: Seconds = 1800
    """A replica that runs this long without becoming ready has failed and is replaced. Not learned, and far above any
    honest weight load: giving up too early would start over for ever."""

    @field_validator("p90_seconds")
    @classmethod
    def _ordered(cls, value: float, info: ValidationInfo) -> float:
        p50 = info.data.get("p50_seconds")
        if p50 is not None and value < p50:
            raise ValueError(f"must be at least p50Seconds ({p50:g})")
        return value

    @field_validator("timeout_seconds")
    @classmethod
    def _longest(cls, value: float, info: ValidationInfo) -> float:
        p90 = info.data.get("p90_seconds")
        if p90 is not None and value <= p90:
            raise ValueError(f"must be more than p90Seconds ({p90:g})")
        return value


class Variant(Part):
    """One kind of replica. At least one of `scaleTargetRef` and `process` is needed."""

    name: Name
    """Unique in the policy; part of replica ids."""
    version: Text = "v1"
    """What an upgrade changes; a rollout moves traffic from one version to another."""
    scale_target_ref: ScaleTargetRef | None = None
    """Replicas as pods; None = not on Kubernetes."""
    process: Process | None = None
    """Replicas as processes on this machine; None = not here."""
    resource: Resource | None = None
    """What a replica takes; None = one whole GPU, so that a budget never counts too little."""
    capacity: Positive = 8
    """Signal units (requests at a time, or per second) one replica holds within the SLO. Default 8: nearly every
    engine on one GPU holds that; a guess too low costs replicas up to maxReplicas, one too high costs latency."""
    cost_per_hour: NotNegative | None = None
    """Any currency. None = the share of a GPU, so that the mix prefers the variant with most capacity per GPU."""
    start_time: StartTimePrior = StartTimePrior()
    """Prior of the start time; measured starts take over."""
    min_replicas: Count = 1
    """Routed replicas kept at all times; 0 = may be empty. At most maxReplicas."""
    max_replicas: Count = 4
    """Bound of routed plus standby; 0 = never started. Default 4: a mistake in a new policy stays affordable."""
    served_model: Text | None = None
    """The model's name inside the engine; None = as requests ask for it."""
    max_input_tokens: CountFromOne | None = None
    """Longer prompts go to other variants; None = no bound."""
    engine: Engine = "generic"
    """Which metrics to read and how to sleep and wake; generic = none of it, own counts only."""

    @field_validator("max_replicas")
    @classmethod
    def _room(cls, value: int, info: ValidationInfo) -> int:
        lowest = info.data.get("min_replicas")
        if lowest is not None and value < lowest:
            raise ValueError(f"must be at least minReplicas ({lowest})")
        return value

    @model_validator(mode="after")
    def _startable(self) -> Variant:
        if self.scale_target_ref is None and self.process is None:
            raise PydanticCustomError(
                "policy", "must have scaleTargetRef or process: there is no way to start a replica"
            )
        return self

    @property
    def prior(self) -> StartTime:
        """The start time to go by before any was measured."""
        return StartTime(p50_s=self.start_time.p50_seconds, p90_s=self.start_time.p90_seconds)

    @property
    def gpu_share(self) -> float:
        """GPUs one replica takes: a MIG slice of N compute slices is N/7."""
        if self.resource is None:
            return 1.0
        slices = _MIG.fullmatch(self.resource.name)
        return self.resource.count * (int(slices[1]) / _MIG_SLICES if slices else 1.0)

    @property
    def price(self) -> float:
        """Cost of a replica-hour, in the policy's currency or in GPUs."""
        return self.gpu_share if self.cost_per_hour is None else self.cost_per_hour
