"""Ticks -> the rows of the HTTP API. Pure; `None` where something is not known.

Moments are wall-clock seconds, worked out from a tick's two clocks; ages and ETAs are in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Protocol

from autoscaler.controller.tick import Tick, condition_row, standby_wanted
from autoscaler.model import LOADING, Now, Replica
from autoscaler.policy import ScalingPolicy

TIMELINE_ROWS = 5_000

Row = dict[str, Any]


class Life(Protocol):
    """One replica from start to end, as the target remembers it."""

    id: str
    policy: str
    variant: str
    started: Now
    ready: Now | None
    draining: Now | None
    gone: Now | None
    exit_code: int | None
    why: str


def status_row(tick: Tick, pids: Mapping[str, int]) -> Row:
    """One policy of `/api/v1/status`."""
    decision, seen, forecast = tick.decision, tick.observation, tick.forecast_row()
    return {
        "name": tick.policy.key,
        "model": tick.policy.spec.model,
        "mode": tick.policy.spec.mode,
        "law": tick.law,
        "desired": decision.desired,
        "standby_wanted": standby_wanted(decision),
        "reason": decision.reason,
        "bound_by": decision.bound_by,
        "need": decision.need,
        "valid": decision.valid,
        "held": tick.held,
        "champion": forecast["champion"] if forecast else None,
        "steps": [{"name": s.name, "before": s.before, "after": s.after, "why": s.why} for s in decision.steps],
        "forecast": forecast,
        "counts": tick.counts(),
        "load": {
            "arrivals_per_s": seen.stable_per_s,
            "demand": seen.demand,
            "service_s": seen.service_s,
            "in_flight": seen.in_flight,
            "queued": seen.backlog,
        },
        "gaps": list(seen.gaps),
        "conditions": [condition_row(condition) for condition in tick.conditions],
        "start_times": {
            name: {"p50_s": time.p50_s, "p90_s": time.p90_s, "samples": time.samples}
            for name, time in seen.start_times.items()
        },
        "replicas": [replica_row(tick, replica, pids.get(replica.id)) for replica in tick.replicas],
    }


def replica_row(tick: Tick, replica: Replica, pid: int | None) -> Row:
    """One replica of the status."""
    age_s = tick.at.monotonic_s - replica.started_s
    start_time = tick.observation.start_times.get(replica.variant)
    starting = replica.state in LOADING
    return {
        "id": replica.id,
        "variant": replica.variant,
        "version": replica.version,
        "state": replica.state.value,
        "standby": replica.standby,
        "url": replica.url,
        "pid": pid,
        "age_s": age_s,
        "eta_s": start_time.eta_s(age_s) if starting and start_time is not None else None,
        "overdue": replica.overdue,
        "in_flight": replica.in_flight,
        "why": replica.why,
    }


def life_row(life: Life, shares: Mapping[tuple[str, str], float]) -> Row:
    """One replica of `/api/v1/replicas`."""
    return {
        "id": life.id,
        "policy": life.policy,
        "variant": life.variant,
        "gpu_share": shares.get((life.policy, life.variant), 1.0),
        "started_epoch_s": life.started.epoch_s,
        "ready_epoch_s": _epoch(life.ready),
        "draining_epoch_s": _epoch(life.draining),
        "gone_epoch_s": _epoch(life.gone),
        "exit": life.exit_code,
        "why": life.why,
    }


class Timeline:
    """The newest rows, one a tick, each with a sequence number that grows by one."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=TIMELINE_ROWS)
        self._numbers = count(1)

    def __call__(self, tick: Tick) -> None:
        """Take one tick in."""
        seen, forecast, counts = tick.observation, tick.forecast_row() or {}, tick.counts()
        self._rows.append(
            {
                "seq": next(self._numbers),
                "epoch_s": tick.at.epoch_s,
                "policy": tick.policy.key,
                "arrivals_per_s": seen.stable_per_s,
                "demand": seen.demand,
                "need": tick.decision.need,
                "forecast_p50": forecast.get("p50"),
                "forecast_p90": forecast.get("p90"),
                "forecast_need": forecast.get("need"),
                "desired": tick.decision.desired,
                "ready": counts["ready"],
                "starting": counts["starting"],
                "standby": counts["standby"],
                "draining": counts["draining"],
                "queued": seen.backlog,
                "in_flight": seen.in_flight,
            }
        )

    def after(self, seq: int) -> list[Row]:
        """Rows with a greater number, oldest first."""
        return [row for row in self._rows if row["seq"] > seq]


def gpu_shares(policies: Iterable[ScalingPolicy]) -> dict[tuple[str, str], float]:
    """(policy, variant) -> GPUs that one replica takes."""
    return {(policy.key, variant.name): variant.gpu_share for policy in policies for variant in policy.spec.variants}


def _epoch(moment: Now | None) -> float | None:
    return None if moment is None else moment.epoch_s
