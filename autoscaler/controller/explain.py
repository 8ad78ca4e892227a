"""A decision of the history as text: what it saw, what it expected, each step, what bound, what was done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from autoscaler.model import DecisionRecord
from autoscaler.settings import DEFAULT_LAW

SILENT_TICKS = 3
"""As many missed ticks as make a load report stale."""

Row = Mapping[str, Any]


def explanation(
    record: DecisionRecord, newest: DecisionRecord, asked_epoch_s: float | None = None, *, past: bool = False
) -> str:
    """`record`: the newest one kept in full; `newest`: the newest of all, which confirms it with numbers only.
    `asked_epoch_s`: the moment it is asked for, now or (`past`) an earlier one; None = do not say how old it is.
    """
    decision, inputs = record.decision, record.inputs or {}
    clock = datetime.fromtimestamp(record.epoch_s, UTC).strftime("%H:%M:%S")
    then = f" at the time of the decision ({clock})"
    blocks = [
        "\n".join([_headline(record, newest), *_silence(inputs, newest, asked_epoch_s, past)]),
        _seen(inputs, then),
        _expected(inputs.get("forecast")),
        _there(inputs, then),
        _steps(decision),
        _change(decision, inputs),
        _done(record, inputs),
    ]
    return "\n\n".join(block for block in blocks if block)


def _headline(record: DecisionRecord, newest: DecisionRecord) -> str:
    decision, inputs = record.decision, record.inputs or {}
    standby = decision.get("standby")
    wanted = _replicas(decision["desired"]) + (f" and {standby} standby" if standby else "")
    lines = [
        f"{record.policy}: {wanted}, decided {_moment(record.epoch_s)} by {inputs.get('law', 'an unknown law')}",
        f"  {decision.get('reason', '')}",
        f"  bound by {decision['bound_by']}"
        if decision.get("bound_by")
        else "  bound by nothing: the load itself decides",
    ]
    if newest.epoch_s > record.epoch_s:
        same = newest.decision.get("desired") == decision.get("desired")
        numbers = "unchanged" if same else f"{newest.decision.get('desired')} by then"
        lines.append(
            f"  last confirmed {_moment(newest.epoch_s)}: {numbers}, need {_number(newest.decision.get('need'))}"
        )
    if inputs.get("held"):
        lines.append(f"  not acted on: {inputs['held']}")
    return "\n".join(lines)


def _silence(inputs: Row, newest: DecisionRecord, asked_epoch_s: float | None, past: bool) -> list[str]:
    """A line when a controller that runs would have said something since."""
    if asked_epoch_s is None or "tick_s" not in inputs:
        return []
    silent_s = asked_epoch_s - newest.epoch_s
    if silent_s <= SILENT_TICKS * inputs["tick_s"]:
        return []
    if past:
        when = f"for {silent_s:.0f} s by then; it may not have been running"
        return [f"  the controller had not confirmed this {when}"]
    return [f"  the controller has not confirmed this for {silent_s:.0f} s; it may not be running"]


def _seen(inputs: Mapping[str, Any], then: str) -> str:
    rows = (
        ("arrivals", "arrivals_per_s", "requests/s"),
        ("arrivals, panic window", "panic_per_s", "requests/s"),
        ("service time", "service_s", "s"),
        ("demand", "demand", "signal units"),
        ("in flight", "in_flight", "requests"),
        ("queued", "queued", "requests"),
    )
    lines = [f"  {title:<24}{_number(inputs.get(key))} {unit}" for title, key, unit in rows]
    lines += [f"  not known: {gap}" for gap in inputs.get("gaps", ())]
    return "\n".join([f"load{then}", *lines])


def _expected(forecast: Any) -> str:
    if not forecast:
        return "forecast\n  none"
    trust = "" if forecast["trusted"] else ", not trusted: it only advises"
    horizon, p50, p90, need = (_number(forecast[key]) for key in ("horizon_s", "p50", "p90", "need"))
    lines = [
        "forecast",
        f"  largest load within {horizon} s, the time until a replica ordered now is ready, in {forecast['unit']}:",
        f"  half the time at most {p50}, nine times in ten {p90}, at quantile {forecast['quantile']:g} {need}",
        f"  by {forecast['champion']}{trust}: {forecast['why']}",
    ]
    return "\n".join(lines)


def _there(inputs: Mapping[str, Any], then: str) -> str:
    counts = inputs.get("counts") or {}
    lines = ["  " + ", ".join(f"{number} {state}" for state, number in counts.items())] if counts else []
    for replica in inputs.get("starting", ()):
        late = ", overdue and not counted on" if replica["overdue"] else ""
        lines.append(f"  {replica['id']} has been starting for {_number(replica['age_s'])} s{late}")
    for variant in inputs.get("variants", ()):
        measured = f"{variant['start_samples']} measured" if variant["start_samples"] else "the policy's prior"
        p50, p90 = _number(variant["start_p50_s"]), _number(variant["start_p90_s"])
        bounds = f"{variant['min']} to {_replicas(variant['max'])} of {_number(variant['capacity'])} units"
        lines.append(f"  {variant['name']}: {bounds}, start time P50 {p50} s, P90 {p90} s ({measured})")
    return "\n".join([f"replicas{then}", *lines]) if lines else ""


def _steps(decision: Row) -> str:
    rows = decision.get("steps") or []
    lines = [f"  {row['name']:<14}{row['before']:>4} -> {row['after']:<4} {row['why']}".rstrip() for row in rows]
    return "\n".join(["steps", *lines]) if lines else ""


def _change(decision: Row, inputs: Mapping[str, Any]) -> str:
    """What the wanted replicas hold, which is where the decision tips: the load alone, without delays and bounds. Only of
    our own law, as others tip elsewhere; overdue replicas are not counted on, so they hold nothing.
    """
    if inputs.get("law") != DEFAULT_LAW:
        return ""
    capacities = {variant["name"]: variant["capacity"] for variant in inputs.get("variants", ())}
    targets = decision.get("targets", ())
    if not targets or any(target["variant"] not in capacities for target in targets):
        return ""
    active = [
        (int(target["active"]) - int(target.get("dead", 0)), float(capacities[target["variant"]])) for target in targets
    ]
    whole = sum((count * capacity for count, capacity in active), start=0.0)
    smallest = min((capacity for count, capacity in active if count), default=0.0)
    lines = ["what would change it", f"  a need above {_number(whole)} signal units wants more replicas"]
    if smallest:
        lines.append(f"  a need of {_number(whole - smallest)} or less wants fewer")
    return "\n".join(lines)


def _done(record: DecisionRecord, inputs: Mapping[str, Any]) -> str:
    lines = []
    for row in record.commands:
        outcome = "done" if row["done"] else "refused"
        lines.append(f"  {row['command']}: {outcome} {row['detail']} ({row['why']})")
    for row in inputs.get("conditions", ()):
        lines.append(f"  {row['type']} {row['status']} ({row['reason']}): {row['message']}")
    return "\n".join(["commands and conditions", *lines]) if lines else ""


def _replicas(count: object) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _moment(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _number(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
