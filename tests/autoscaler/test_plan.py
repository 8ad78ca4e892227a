"""From a decision to commands: whom to start, promote, call back, drain and stop, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.actuate.plan import plan
from autoscaler.model import DeciderState, Decision, Replica, VariantTarget
from tests.builders import a_policy, a_replica, at

POLICY = a_policy(drain={"timeoutSeconds": 60})


def wanted(active: int, standby: int = 0, second: float = 30, **fields: object) -> Decision:
    decision = Decision(
        at=at(second),
        desired=active,
        targets=(VariantTarget(variant="gpu", active=active, standby=standby),),
        steps=(),
        next_state=DeciderState(),
        reason="",
    )
    return replace(decision, **fields)  # type: ignore[arg-type]  # any field of a decision


def planned(decision: Decision, *replicas: Replica) -> list[str]:
    """Commands as words: `drain r1`, `start gpu`, `start gpu standby`."""
    return [
        " ".join([command.action, command.replica or command.variant, *(["standby"] if command.standby else [])])
        for command in plan(POLICY, decision, replicas)
    ]


def busy(id: str, in_flight: int | None, **fields: Any) -> Replica:
    return a_replica(id, in_flight=in_flight, **fields)


DRAINING = a_replica("d", "draining", in_flight=3)
STANDBY = a_replica("b", standby=True)
LOADING = a_replica("s", "starting", started_s=20)

Row = tuple[str, Decision, Sequence[Replica], list[str]]

TABLE: list[Row] = [
    ("nothing there: start", wanted(2), [], ["start gpu", "start gpu"]),
    ("standby is started as such", wanted(1, 1), [], ["start gpu", "start gpu standby"]),
    ("what is wanted is there", wanted(1, 1), [a_replica("a"), STANDBY], []),
    ("a loading one is not ordered again", wanted(2), [a_replica("a"), LOADING], []),
    ("a loading one counts as standby too", wanted(1, 1), [a_replica("a"), LOADING], []),
    ("call back before all else", wanted(2), [a_replica("a"), STANDBY, DRAINING], ["resurrect d", "drain b"]),
    ("promote before a start is ordered", wanted(2, 1), [a_replica("a"), STANDBY], ["promote b", "start gpu standby"]),
    ("promote at once even if a start is due", wanted(2, 1), [a_replica("a"), STANDBY, LOADING], ["promote b"]),
    ("call back, then promote, then start", wanted(4), [a_replica("a"), STANDBY, DRAINING], ["resurrect d", "promote b", "start gpu"]),
    ("surplus becomes standby first", wanted(1, 1), [a_replica("a"), a_replica("c")], ["demote a"]),
    ("a draining one may come back as standby", wanted(1, 1), [a_replica("a"), DRAINING], ["resurrect d", "demote a"]),
    ("starting before ready", wanted(1), [a_replica("a"), LOADING], ["stop s"]),
    ("overdue first, then newest", wanted(1, 1), [
        a_replica("a"), a_replica("s0", "starting", overdue=True), a_replica("s1", "starting", started_s=5),
        a_replica("s2", "starting", started_s=9)], ["stop s0", "stop s2"]),
    ("fewest in flight", wanted(2), [busy("a", 4), busy("b", 1), busy("c", 7)], ["drain b"]),
    ("newest on ties", wanted(2), [busy("a", 1), busy("b", 1, started_s=5), busy("c", 1, started_s=3)], ["drain b"]),
    ("unknown in flight is not the cheapest", wanted(1), [busy("a", None), busy("b", 9)], ["drain b"]),
    ("surplus standby leaves before routed ones", wanted(1), [busy("a", 0), replace(STANDBY, in_flight=None)], ["drain b"]),
    ("a failed one is stopped and replaced", wanted(2), [a_replica("a"), a_replica("f", failed=True)], ["stop f", "start gpu"]),
    ("a failed one is no surplus", wanted(1), [a_replica("a"), a_replica("f", "starting", failed=True)], ["stop f"]),
    ("draining goes on while streams run", wanted(1), [a_replica("a"), DRAINING], []),
    ("drained: stop", wanted(1), [a_replica("a"), replace(DRAINING, drained=True)], ["stop d"]),
    ("drain timeout: stop", wanted(1, second=80), [a_replica("a"), DRAINING], ["stop d"]),
    ("a drained one can still come back", wanted(2), [a_replica("a"), replace(DRAINING, drained=True)], ["resurrect d"]),
    ("one that was on standby is promoted as well", wanted(1), [replace(DRAINING, standby=True)], ["resurrect d", "promote d"]),
    ("and before another standby", wanted(2), [a_replica("a"), STANDBY, replace(DRAINING, standby=True)],
        ["resurrect d", "promote d", "drain b"]),
    ("or comes back as what it was", wanted(1, 1), [a_replica("a"), replace(DRAINING, standby=True)], ["resurrect d"]),
    ("the busiest comes back", wanted(1), [replace(DRAINING, id="e", in_flight=1), DRAINING], ["resurrect d"]),
    ("stopping and gone are over", wanted(1), [a_replica("x", "stopping"), a_replica("y", "gone")], ["start gpu"]),
    ("not valid: act on nothing", wanted(5, valid=False), [a_replica("f", failed=True)], []),
    ("a variant that left the policy", wanted(0), [a_replica("o", variant="old")], ["drain o"]),
    ("to zero", wanted(0), [a_replica("a"), LOADING], ["drain a", "stop s"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("decision", "replicas", "commands"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_plan(decision: Decision, replicas: Sequence[Replica], commands: list[str]) -> None:
    assert planned(decision, *replicas) == commands


def test_every_command_says_why() -> None:
    for _, decision, replicas, _ in TABLE:
        assert all(command.why for command in plan(POLICY, decision, replicas))


def test_each_variant_is_planned_for_itself() -> None:
    targets = (VariantTarget(variant="gpu", active=1), VariantTarget(variant="mig", active=1))
    decision = wanted(2, targets=targets)
    assert planned(decision, a_replica("a"), a_replica("b")) == ["drain a", "start mig"]
