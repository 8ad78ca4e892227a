"""What one tick of one policy saw, decided and did, as a value: everything that is told about it is made from this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.model import (
    LOADING,
    Applied,
    Command,
    Condition,
    Decision,
    DecisionRecord,
    Now,
    Observation,
    Replica,
    ReplicaState,
    Sample,
)
from autoscaler.policy import ScalingPolicy, Variant
from forecasting.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """`replicas`: after the commands. `held`: why commands were not carried out, or empty."""

    policy: ScalingPolicy
    law: str
    at: Now
    sample: Sample | None
    observation: Observation
    forecast: Forecast | None
    decision: Decision
    applied: tuple[Applied, ...]
    replicas: tuple[Replica, ...]
    conditions: tuple[Condition, ...]
    held: str = ""

    def counts(self) -> dict[str, int]:
        """Replicas by what they are to the traffic; standby ones are counted apart from ready ones."""
        return counts(self.replicas)

    def forecast_row(self) -> dict[str, Any] | None:
        """The numbers that the decision had of the forecast: quantiles of the largest load within its horizon, in
        requests per second. None without a forecast, and under a law that looks at none.
        """
        expected = self.decision.expected
        if self.forecast is None or expected is None:
            return None
        return {
            "horizon_s": expected.horizon_s,
            "p50": expected.p50,
            "p90": expected.p90,
            "need": expected.need,
            "quantile": expected.quantile,
            "unit": "requests/s",
            "trusted": self.forecast.trusted,
            "champion": self.forecast.champion,
            "why": self.forecast.why,
            "age_s": self.at.epoch_s - self.forecast.made_at_s,
        }

    def record(self, complete: bool) -> DecisionRecord:
        """The row of the history: everything, or (when nothing changed) the numbers only."""
        decision = self.decision
        numbers: dict[str, object] = {
            "desired": decision.desired,
            "standby": standby_wanted(decision),
            "need": decision.need,
            "valid": decision.valid,
        }
        if not complete:
            return DecisionRecord(policy=self.policy.key, epoch_s=self.at.epoch_s, decision=numbers)
        numbers |= {
            "reason": decision.reason,
            "bound_by": decision.bound_by,
            "targets": [
                {"variant": t.variant, "active": t.active, "standby": t.standby, "dead": t.dead}
                for t in decision.targets
            ],
            "steps": [{"name": s.name, "before": s.before, "after": s.after, "why": s.why} for s in decision.steps],
        }
        return DecisionRecord(
            policy=self.policy.key,
            epoch_s=self.at.epoch_s,
            decision=numbers,
            inputs=self.inputs(),
            commands=tuple(applied_row(applied) for applied in self.applied),
        )

    def inputs(self) -> dict[str, object]:
        """What the decision was made from, JSON-ready."""
        seen = self.observation
        return {
            "mode": self.policy.spec.mode,
            "law": self.law,
            "tick_s": self.policy.tick_s,
            "held": self.held,
            "arrivals_per_s": seen.stable_per_s,
            "panic_per_s": seen.panic_per_s,
            "service_s": seen.service_s,
            "demand": seen.demand,
            "panic_demand": seen.panic_demand,
            "in_flight": seen.in_flight,
            "queued": seen.backlog,
            "oldest_s": seen.oldest_s,
            "gaps": list(seen.gaps),
            "trusted": seen.trusted,
            "forecast": self.forecast_row(),
            "counts": counts(seen.replicas),
            "variants": [self._variant_row(variant) for variant in self.policy.spec.variants],
            "starting": [
                {"id": r.id, "age_s": self.at.monotonic_s - r.started_s, "overdue": r.overdue}
                for r in seen.replicas
                if r.state is ReplicaState.STARTING
            ],
            "conditions": [condition_row(condition) for condition in self.conditions],
        }

    def _variant_row(self, variant: Variant) -> dict[str, object]:
        start_time = self.observation.start_times.get(variant.name, variant.prior)
        return {
            "name": variant.name,
            "capacity": variant.capacity,
            "min": variant.min_replicas,
            "max": variant.max_replicas,
            "start_p50_s": start_time.p50_s,
            "start_p90_s": start_time.p90_s,
            "start_samples": start_time.samples,
        }


def counts(replicas: tuple[Replica, ...]) -> dict[str, int]:
    """Replicas by state, as the status shows them."""
    found = dict.fromkeys(("ready", "starting", "standby", "draining", "sleeping"), 0)
    for replica in replicas:
        match replica.state:
            case ReplicaState.READY:
                found["standby" if replica.standby else "ready"] += 1
            case state if state in LOADING:
                found["starting"] += 1
            case ReplicaState.DRAINING | ReplicaState.STOPPING:
                found["draining"] += 1
            case ReplicaState.SLEEPING:
                found["sleeping"] += 1
            case ReplicaState.GONE:
                pass
    return found


def standby_wanted(decision: Decision) -> int:
    """Loaded replicas that are to wait unrouted."""
    return sum(target.standby for target in decision.targets)


def command_text(command: Command) -> str:
    """`start h100 (standby)`, `drain llama-h100-3`."""
    return f"{command.action} {command.replica or command.variant}{' (standby)' if command.standby else ''}"


def applied_row(applied: Applied) -> Mapping[str, object]:
    """One command and what became of it, JSON-ready."""
    return {
        "command": command_text(applied.command),
        "why": applied.command.why,
        "done": applied.done,
        "detail": applied.detail,
    }


def condition_row(condition: Condition) -> dict[str, str]:
    """JSON-ready."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
    }
