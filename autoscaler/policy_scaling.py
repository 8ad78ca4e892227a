"""What is aimed at and what load means: SLO, signal, prediction, warm pool, limits in time and money.

Part of the ScalingPolicy document; pure values. `Signal.units` is the one place that turns a rate into signal units.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from autoscaler.policy_values import (
    Count,
    CountFromOne,
    Flag,
    Fraction,
    Name,
    Part,
    Percent,
    Positive,
    Seconds,
    SecondsOrZero,
    Standby,
    Text,
)


class Slo(Part):
    """What a request may expect."""

    queue_seconds: Seconds = 5
    """A request that waits longer counts as late, and a backlog is sized to drain within this time."""
    attainment_percent: Percent = 99.5
    """Share of requests that should not be late."""
    ttft_seconds: Seconds | None = None
    """Time to the first token above which a request is late as well; None = only the queue counts."""


class PrometheusSignal(Part):
    """A signal of the user's own."""

    query: Text
    """PromQL that gives one number."""
    target: Positive
    """What one replica should have of it."""


class Signal(Part):
    """The unit of load and capacity."""

    type: Literal["concurrency", "requestRate", "tokenRate", "prometheus"] = "concurrency"
    """concurrency = requests at a time (arrivals x service time); requestRate = requests per second."""
    service_seconds: Seconds = 10
    """Prior of the mean time a request holds its slot; measured ones take over. Default: a chat answer of a few
    hundred tokens."""
    service_window_seconds: Seconds = 600
    """How long a measured service time counts: its weight falls by e in this time. Longer than any burst of odd
    requests."""
    prometheus: PrometheusSignal | None = None
    """Needed for type prometheus."""

    @model_validator(mode="after")
    def _has_query(self) -> Signal:
        if self.type == "prometheus" and self.prometheus is None:
            raise PydanticCustomError("policy", "must have prometheus {query, target}, because type is prometheus")
        return self

    def units(self, per_s: float | None, service_s: float) -> float | None:
        """Signal units for `per_s` arrivals a second that hold a slot `service_s` each (Little's law); None = not
        known.

        Token and Prometheus signals are not read by this version, so their demand is unknown, which never lowers
        anything.
        """
        if per_s is None or self.type in ("tokenRate", "prometheus"):
            return None
        return per_s * service_s if self.type == "concurrency" else per_s


class PrometheusHistory(Part):
    """Where older load is read from."""

    url: Text
    """Base URL of the server."""
    query: Text
    """PromQL of arrivals per second."""


class Prediction(Part):
    """Forecasting of load."""

    enabled: Flag = True
    """False = react only."""
    seasons_seconds: tuple[Seconds, ...] = (86400, 604800)
    """Seasons to look for, longest last; default a day and a week; empty = none."""
    history_window_seconds: Seconds = 2419200
    """How much history a fit may use; default four weeks."""
    min_history_seconds: SecondsOrZero = 7200
    """React only until there is this much history; 0 = forecast from the start. At most historyWindowSeconds."""
    step_seconds: Seconds = 15
    """Grid of the series and of the forecast; start times well below it need a smaller one."""
    quantile: Fraction = 0.95
    """Capacity must cover this quantile of the largest load until a replica ordered now would be ready. Higher is
    dearer and safer."""
    source: Literal["router", "prometheus"] = "router"
    """router = what the routers counted and the controller kept."""
    prometheus: PrometheusHistory | None = None
    """Needed for source prometheus."""

    @field_validator("min_history_seconds")
    @classmethod
    def _fits(cls, value: float, info: ValidationInfo) -> float:
        longest = info.data.get("history_window_seconds")
        if longest is not None and value > longest:
            raise ValueError(f"must be at most historyWindowSeconds ({longest:g})")
        return value

    @model_validator(mode="after")
    def _has_server(self) -> Prediction:
        if self.source == "prometheus" and self.prometheus is None:
            raise PydanticCustomError("policy", "must have prometheus {url, query}, because source is prometheus")
        return self


class Sleeping(Part):
    """Replicas whose weights wait in host memory."""

    max: Count = 0
    """How many at most; 0 = none."""
    level: Literal[1, 2] = 1
    """1 = weights offloaded to host memory; 2 = weights dropped."""
    gpu_fraction: Fraction = 0.1
    """Share of the GPU's price that a sleeper costs."""
    wake_seconds: Seconds = 5
    """Prior of the time to wake."""


class Cached(Part):
    """Weights kept on the node."""

    paths: tuple[Text, ...] = ()
    """Files or folders to keep there; empty = none."""


class WarmPool(Part):
    """Replicas that wait loaded, so that a surge finds them."""

    standby: Standby = 0
    """Loaded but not routed: a number, a percentage of desired (rounded up), or auto (1 while anything is desired).
    Default 0, as a waiting GPU costs as much as a busy one."""
    sleeping: Sleeping = Sleeping()
    """The cheaper tier of seconds."""
    cached: Cached = Cached()
    """The cheapest tier."""


class ScaleToZero(Part):
    """Giving up the last replica."""

    enabled: Flag = False
    """True needs minReplicas 0 on every variant. Off: at least one replica stays, as the first request would wait a
    whole start."""
    retention_seconds: SecondsOrZero = 1800
    """How long there must have been no request at all; 0 = at once."""


class Drain(Part):
    """How a replica leaves."""

    timeout_seconds: Seconds = 600
    """Stop a draining replica after this long even if a stream still runs on it."""


class Schedule(Part):
    """A floor at fixed times."""

    name: Name
    """Shown when it binds."""
    timezone: Text = "UTC"
    """IANA name, such as Europe/Berlin."""
    days_of_week: tuple[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ...] = ()
    """Empty = every day."""
    from_: str = Field(alias="from", pattern=r"^([01]\d|2[0-3]):[0-5]\d$", strict=True)
    """Local time, "HH:MM" in quotes."""
    to: str = Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", strict=True)
    """Local time; before `from` = the next day."""
    min_replicas: CountFromOne
    """Floor of the policy's total within it."""


class BudgetPeriod(Part):
    """A sum over a longer time."""

    amount: Positive
    """In the currency of costPerHour."""
    window_seconds: Seconds
    """Over how long."""


class Budget(Part):
    """What all replicas together may take; None = no bound."""

    max_gpus: Positive | None = Field(default=None, alias="maxGPUs")
    """GPUs at a time; a MIG slice counts its sevenths."""
    max_cost_per_hour: Positive | None = None
    """Cost per hour at a time."""
    period: BudgetPeriod | None = None
    """Cost over a longer time."""


class Fallback(Part):
    """What to do when the load has been unknown for a while. Behaviours of KEDA that could lower are not offered."""

    failure_threshold: CountFromOne = 3
    """Ticks in a row without a trusted load."""
    behavior: Literal["currentReplicas", "currentReplicasIfHigher"] = "currentReplicasIfHigher"
    """Keep what there is, or raise it to `replicas` if it is less."""
    replicas: CountFromOne = 1
    """The floor for currentReplicasIfHigher."""
