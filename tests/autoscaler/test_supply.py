"""The supply curve: when what is loading will be there, and what is not counted on."""

from __future__ import annotations

import pytest

from autoscaler.decide.curve import Arrival, SupplyCurve, slowest_start, supply_curve
from autoscaler.model import StartTime
from tests.builders import a_policy, a_replica, at, ready, variant_document

TIME = StartTime(p50_s=90, p90_s=140)


@pytest.mark.parametrize(
    ("age_s", "eta"), [(0, 90), (49, 41), (90, 0), (91, 49), (140, 0), (150, 50.5), (201, None), (1e9, None)]
)
def test_a_start_is_expected_at_its_next_quantile(age_s: float, eta: float | None) -> None:
    assert TIME.eta_s(age_s) == (None if eta is None else pytest.approx(eta, abs=0.5))


def test_the_curve_counts_what_is_routed_at_hand_and_due() -> None:
    policy = a_policy([variant_document("gpu", capacity=24), variant_document("mig", capacity=9)])
    replicas = (
        *ready(2),
        a_replica("b", standby=True),
        a_replica("d", "draining"),
        a_replica("s0", "starting", started_s=70),
        a_replica("s1", "requested", started_s=95, variant="mig"),
        a_replica("late", "starting", started_s=0),
        a_replica("told", "starting", started_s=99, overdue=True),
        a_replica("dead", failed=True),
        a_replica("x", "stopping"),
        a_replica("y", "gone"),
        a_replica("stranger", "starting", variant="old"),
    )
    curve = supply_curve(policy, replicas, {"gpu": TIME}, at(300))
    assert curve.overdue == ("s0", "s1", "late", "told")
    curve = supply_curve(policy, replicas, {"gpu": TIME}, at(100))
    assert curve == SupplyCurve(
        ready=48.0,
        at_hand=48.0,
        arrivals=(
            Arrival(eta_s=5.0, capacity=9.0, replica="s1", variant="mig"),
            Arrival(eta_s=40.0, capacity=24.0, replica="late", variant="gpu"),
            Arrival(eta_s=60.0, capacity=24.0, replica="s0", variant="gpu"),
        ),
        overdue=("told",),
    )
    assert [curve.at(after_s) for after_s in (0, 5, 40, 100)] == [48.0, 57.0, 81.0, 105.0]


@pytest.mark.parametrize(
    ("times", "slowest"),
    [
        ({}, (10, 12)),
        ({"a": TIME}, (90, 140)),
        ({"b": StartTime(p50_s=1, p90_s=13)}, (1, 13)),
        ({"off": TIME}, (10, 12)),
    ],
    ids=["the priors", "a measured one", "a longer tail", "one that may not grow does not count"],
)
def test_whichever_is_started_must_be_there_in_time(times: dict[str, StartTime], slowest: tuple[float, float]) -> None:
    off = variant_document("off", minReplicas=0, maxReplicas=0)
    policy = a_policy([variant_document("a"), variant_document("b"), off])
    found = slowest_start(policy, times)
    assert (found.p50_s, found.p90_s) == slowest
