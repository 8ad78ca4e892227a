"""What is told of each tick: one structured log line when the decision changed (and once a minute), and metrics.

It knows ticks and nothing of how they came about. Labels are names out of policies, so their number is bounded by the
file. Gauges that are not known are absent, never 0: a policy's unknown series is removed until it is known again.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from autoscaler.controller.tick import Tick, applied_row, standby_wanted

LOG_EVERY_S = 60.0

log = structlog.get_logger(part="decision")


class DecisionLog:
    """Logs a decision when it says something new, what commands did, and otherwise once a minute."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[object, ...]] = {}
        self._said_s: dict[str, float] = {}

    def __call__(self, tick: Tick) -> None:
        """Take one tick in."""
        decision, key = tick.decision, tick.policy.key
        failed = tuple(row.detail for row in tick.applied if not row.done)
        said = (decision.desired, decision.targets, decision.bound_by, decision.valid, tick.held, bool(failed))
        acted = any(row.done for row in tick.applied)
        due = tick.at.monotonic_s - self._said_s.get(key, float("-inf")) >= LOG_EVERY_S
        if not (acted or due or said != self._said.get(key)):
            return
        self._said[key], self._said_s[key] = said, tick.at.monotonic_s
        log.info("decision", **line(tick))


def line(tick: Tick) -> dict[str, object]:
    """The fields of one log line."""
    decision, seen = tick.decision, tick.observation
    return {
        "policy": tick.policy.key,
        "law": tick.law,
        "desired": decision.desired,
        "standby": standby_wanted(decision),
        "reason": decision.reason,
        "bound_by": decision.bound_by,
        "need": _short(decision.need),
        "demand": _short(seen.demand),
        "arrivals_per_s": _short(seen.stable_per_s),
        "service_s": _short(seen.service_s),
        "queued": seen.backlog,
        **tick.counts(),
        "gaps": list(seen.gaps),
        "commands": [dict(applied_row(row)) for row in tick.applied],
        "held": tick.held,
    }


class Metrics:
    """Prometheus metrics of all policies, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge, policy = self._gauge, ("policy",)
        horizon = "largest load within the start-time horizon"
        self._desired = gauge("desired_replicas", "replicas to be routed, as decided", policy)
        self._replicas = gauge("replicas", "replicas by state", ("policy", "state"))
        self._demand = gauge("demand", "load in signal units", policy)
        self._need = gauge("need", "signal units that the decision answers", policy)
        self._arrivals = gauge("arrivals_per_second", "requests asked for, stable window", policy)
        self._queued = gauge("queued_requests", "requests waiting at the routers", policy)
        self._in_flight = gauge("in_flight_requests", "requests at the replicas", policy)
        self._trusted = gauge("load_trusted", "1 while the load is known", policy)
        self._forecast = gauge("forecast_per_second", horizon, ("policy", "quantile"))
        self._start_time = gauge("start_time_seconds", "command to ready", ("policy", "variant", "quantile"))
        self._ticks = Counter(
            "tidegate_ticks", "ticks by how they ended", ("policy", "outcome"), registry=self.registry
        )
        self._commands = Counter(
            "tidegate_commands",
            "commands by action and outcome",
            ("policy", "action", "outcome"),
            registry=self.registry,
        )

    def __call__(self, tick: Tick) -> None:
        """Take one tick in."""
        key, seen, decision = tick.policy.key, tick.observation, tick.decision
        self._ticks.labels(key, "done").inc()
        self._desired.labels(key).set(decision.desired)
        for state, number in tick.counts().items():
            self._replicas.labels(key, state).set(number)
        known: Mapping[Gauge, float | None] = {
            self._demand: seen.demand,
            self._need: decision.need,
            self._arrivals: seen.stable_per_s,
            self._queued: seen.backlog,
            self._in_flight: seen.in_flight,
            self._trusted: float(seen.trusted),
        }
        for gauge, value in known.items():
            _set(gauge, (key,), value)
        row = tick.forecast_row() or {}
        for quantile in ("p50", "p90", "need"):
            _set(self._forecast, (key, quantile), row.get(quantile))
        for variant, start_time in seen.start_times.items():
            self._start_time.labels(key, variant, "p50").set(start_time.p50_s)
            self._start_time.labels(key, variant, "p90").set(start_time.p90_s)
        for applied in tick.applied:
            self._commands.labels(key, applied.command.action.value, "done" if applied.done else "refused").inc()

    def failed(self, policy: str) -> None:
        """A tick that ended in an error."""
        self._ticks.labels(policy, "failed").inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, words: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"tidegate_{name}", words, labels, registry=self.registry)


def _set(gauge: Gauge, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        gauge.labels(*labels).set(value)
        return
    try:
        gauge.remove(*labels)
    except KeyError:
        return  # was not known before either


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
