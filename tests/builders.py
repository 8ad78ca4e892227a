"""Builders of the control plane's values for tests: each gives a whole, valid value, and a test names only what it is
about.

Times are monotonic seconds from 0; the wall clock runs `EPOCH_S` ahead, so that a mix-up of the two shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoscaler.model import Now, Observation, Replica, ReplicaState, Sample, StartTime
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast

EPOCH_S = 1_700_000_000.0


def at(seconds: float) -> Now:
    """The moment `seconds` after the start of the story."""
    return Now(monotonic_s=seconds, epoch_s=EPOCH_S + seconds)


def variant_document(name: str = "gpu", **fields: Any) -> dict[str, Any]:
    """One variant in the file's own words: capacity 10, starts in 10 s (90% within 12), 1 to 10 replicas, emulated
    process."""
    return {
        "name": name,
        "process": {"command": ["{python}", "-m", "tidegate", "engine", "--port", "{port}"]},
        "capacity": 10,
        "startTime": {"p50Seconds": 10, "p90Seconds": 12},
        "minReplicas": 1,
        "maxReplicas": 10,
        **fields,
    }


def policy_document(variants: Sequence[Mapping[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    """A policy document: model m, 1 s ticks, service 1 s, no rate limits, no stabilization and no tolerance unless
    given in `spec`."""
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "chat"},
        "spec": {
            "model": "m",
            "pollingIntervalSeconds": 1,
            "signal": {"type": "concurrency", "serviceSeconds": 1},
            "variants": list(variants) if variants is not None else [variant_document()],
            "behavior": {
                "scaleUp": {"policies": []},
                "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [], "tolerance": 0},
            },
            **spec,
        },
    }


def a_policy(variants: Sequence[Mapping[str, Any]] | None = None, **spec: Any) -> ScalingPolicy:
    """`policy_document` as a value; `spec` takes camelCase keys."""
    return ScalingPolicy.model_validate(policy_document(variants, **spec))


def a_replica(id: str, state: ReplicaState | str = ReplicaState.READY, **fields: Any) -> Replica:
    """A replica of variant gpu that started at 0; a ready one was ready at 10."""
    state = ReplicaState(state)
    defaults: dict[str, Any] = {"variant": "gpu", "version": "v1", "started_s": 0.0, "url": f"http://127.0.0.1:1/{id}"}
    if state in (ReplicaState.READY, ReplicaState.DRAINING):
        defaults["ready_s"] = 10.0
        defaults["in_flight"] = 0
    if state is ReplicaState.DRAINING:
        defaults["draining_s"] = 20.0
    return Replica(id=id, state=state, **{**defaults, **fields})


def ready(count: int, **fields: Any) -> tuple[Replica, ...]:
    """`count` ready replicas named r0, r1, ..."""
    return tuple(a_replica(f"r{number}", **fields) for number in range(count))


def starting(count: int, started_s: float = 0.0, **fields: Any) -> tuple[Replica, ...]:
    """`count` loading replicas named s0, s1, ..."""
    return tuple(a_replica(f"s{number}", "starting", started_s=started_s, **fields) for number in range(count))


def a_sample(now: Now, arrivals: Sequence[float | None] = (5.0,), **fields: Any) -> Sample:
    """A report with `arrivals` new seconds; nothing in flight, nothing queued, no request finished."""
    defaults: dict[str, Any] = {
        "in_flight": 0,
        "queued": 0,
        "oldest_s": 0.0,
        "held_from_zero": 0,
        "service_count": 0,
        "service_sum_s": 0.0,
    }
    return Sample(at=now, arrivals=tuple(arrivals), **{**defaults, **fields})


def an_observation(
    now: Now, per_s: float | None = 5.0, replicas: Sequence[Replica] = (), service_s: float = 1.0, **fields: Any
) -> Observation:
    """What is known at `now` under a steady `per_s` with a concurrency signal; None = the load is unknown and not
    trusted."""
    demand = None if per_s is None else per_s * service_s
    defaults: dict[str, Any] = {
        "panic_per_s": per_s,
        "demand": demand,
        "panic_demand": demand,
        "in_flight": None if per_s is None else 0,
        "backlog": None if per_s is None else 0,
        "oldest_s": None,
        "held_from_zero": 0,
        "start_times": {"gpu": StartTime(p50_s=10, p90_s=12)},
        "gaps": () if per_s is not None else ("no report for 9 s",),
        "trusted": per_s is not None,
    }
    return Observation(
        at=now, stable_per_s=per_s, service_s=service_s, replicas=tuple(replicas), **{**defaults, **fields}
    )


def a_forecast(maximum: float, now: Now, **fields: Any) -> Forecast:
    """A forecast made at `now` that expects `maximum` requests per second in every window, at every quantile, for the
    next hour."""
    row = (maximum,) * 3
    defaults: dict[str, Any] = {
        "made_at_s": now.epoch_s,
        "step_s": 1.0,
        "horizons_s": (1.0, 60.0, 3600.0),
        "quantiles": (0.5, 0.9, 0.99),
        "values": (row,) * 3,
        "window_max": (row,) * 3,
        "champion": "flat",
        "why": "the same for ever",
    }
    return Forecast(**{**defaults, **fields})
