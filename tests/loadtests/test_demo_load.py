"""What the demo plays, and the two policies it is played under."""

from __future__ import annotations

import argparse
from array import array
from pathlib import Path

import pytest

from autoscaler.policy import ScalingPolicy
from loadtests import demo_load
from loadtests.demo_load import CYCLE_S, CYCLES, FACTOR, DemoLoad, generated, load_from, traced
from loadtests.demo_policy import MODEL, policy_document
from loadtests.errors import BadInput
from loadtests.trace import RateTrace, Trace


def trace(per_s: float = 8.0, seconds: int = 4000, output: int = 200) -> Trace:
    """Even arrivals of equal requests, on the load's own clock."""
    count = int(per_s * seconds)
    return Trace(
        arrival_s=array("d", [row / per_s for row in range(count)]),
        input_tokens=array("q", [900] * count),
        output_tokens=array("q", [output] * count),
        source="/somewhere/my.csv",
        form="azure",
    )


def arguments(**given: object) -> argparse.Namespace:
    usual = {"trace": None, "trace_format": None, "skip_bad_rows": False, "seconds": None, "seed": 1}
    return argparse.Namespace(**{**usual, **given})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_generated_load_fits_the_machine_and_is_the_same_each_time(seed: int) -> None:
    load = generated(seed)
    assert load == generated(seed) or load.planned == generated(seed).planned
    assert load.end_s == CYCLE_S * CYCLES == 192
    assert load.warm_up_s == CYCLE_S
    assert 5 <= load.most_needed() <= 8
    assert 1 <= load.need(0.0) <= 2
    assert 2500 < len(load.planned) < 5000
    assert len(load.history) == demo_load.SEEDED_CYCLES * CYCLE_S
    assert 8 <= sum(request.output_tokens for request in load.planned) / len(load.planned) <= 14


def test_seeds_differ() -> None:
    assert generated(1).planned != generated(2).planned


def test_a_trace_is_thinned_to_what_the_machine_can_emulate_and_sized_to_a_few_replicas() -> None:
    load = traced(trace(), seed=1)
    assert load.end_s == 200.0
    assert load.warm_up_s == 36.0
    assert len(load.planned) / load.end_s == pytest.approx(demo_load.TRACE_MEAN_PER_S, rel=0.1)
    assert {request.output_tokens for request in load.planned} == {round(200 / FACTOR)}
    assert {request.input_tokens for request in load.planned} == {60}
    assert load.need(100.0) == pytest.approx(demo_load.MEAN_REPLICAS, rel=0.4)
    assert load.history == ()
    assert "my.csv" in load.title
    assert "/somewhere" not in " ".join((load.title, *load.notes))
    assert "thinned by seed 1" in load.notes[0]
    assert "Nothing is pre-seeded" in load.notes[1]


def test_a_sparse_trace_of_short_requests_gets_slower_replicas_instead_of_fewer() -> None:
    load = traced(trace(per_s=1.0, output=40), seed=1)
    assert load.slowness > 1
    assert load.slots == demo_load.SLOTS_MIN
    assert load.need(100.0) == pytest.approx(demo_load.MEAN_REPLICAS, rel=0.5)
    assert "slower than usual" in " ".join(load.notes)


def test_answers_too_long_for_the_demo_are_cut_and_counted() -> None:
    load = traced(trace(per_s=0.1, output=10_000), seed=1)
    assert {request.output_tokens for request in load.planned} == {demo_load.TRACE_OUTPUT_MAX}
    assert "answers were cut" in load.notes[-1]


def test_a_trace_of_rates_is_drawn_from() -> None:
    steps = 60
    rates = RateTrace(
        step_s=60.0,
        t_s=array("d", [60.0 * row for row in range(steps)]),
        rate_per_s=array("d", [0.5] * steps),
        valid=bytearray([1] * steps),
        source="rates.csv",
    )
    load = traced(rates, seed=1, running_s=100.0)
    assert (load.warm_up_s, load.end_s) == (36.0, 136.0)
    assert len(load.planned) == pytest.approx(1020, rel=0.2)


@pytest.mark.parametrize(("seconds", "warm_up_s"), [(361, 24.0), (600, 36.0), (3000, 36.0)])
def test_the_beginning_of_a_trace_is_played_once_before_as_warm_up(seconds: int, warm_up_s: float) -> None:
    """Ten minutes are 40 s on the demo's clock; scored from second 0 they would be little else than a cold start."""
    load = traced(trace(seconds=seconds), seed=1, running_s=seconds / FACTOR)
    assert load.warm_up_s == pytest.approx(warm_up_s, abs=0.1)
    warm_up_s = load.warm_up_s
    assert load.end_s == pytest.approx(warm_up_s + seconds / FACTOR, abs=0.1)
    moments = [request.at_s for request in load.planned]
    assert moments == sorted(moments)
    again = [request.at_s - warm_up_s for request in load.planned if warm_up_s <= request.at_s < 2 * warm_up_s]
    assert again == pytest.approx([at_s for at_s in moments if at_s < warm_up_s])
    assert load.need(5.0) == load.need(warm_up_s + 5.0)


@pytest.mark.parametrize(("seconds", "running_s"), [(None, 192.0), (720.0, 48.0)])
def test_the_length_is_on_the_loads_own_clock(seconds: float | None, running_s: float) -> None:
    assert load_from(arguments(seconds=seconds)).end_s == running_s


@pytest.mark.parametrize("seconds", [0.0, -5.0, 100.0, float("nan"), 1e9])
def test_an_impossible_length_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(BadInput, match="--seconds"):
        load_from(arguments(seconds=seconds))


def test_a_trace_too_short_or_empty_at_its_beginning_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 360 s"):
        traced(trace(seconds=300), seed=1)
    late = Trace(arrival_s=array("d", [9000.0]), input_tokens=array("q", [1]), output_tokens=array("q", [1]))
    with pytest.raises(BadInput, match="no request in its first"):
        traced(late, seed=1)


@pytest.fixture(params=["generated", "trace"])
def load(request: pytest.FixtureRequest) -> DemoLoad:
    return generated(1) if request.param == "generated" else traced(trace(), seed=1)


@pytest.mark.parametrize("law", ["tidegate", "hpa"])
def test_the_policies_are_valid_and_differ_only_in_what_a_law_is(load: DemoLoad, law: str, tmp_path: Path) -> None:
    document = policy_document(law, load, tmp_path, bound_s=300.0)
    policy = ScalingPolicy.model_validate(document)
    assert policy.key == policy.spec.model == MODEL
    assert policy.tick_s == 1.0
    assert policy.spec.prediction.enabled == (law == "tidegate")
    other = policy_document("hpa", load, tmp_path, bound_s=300.0)["spec"]
    for same in ("model", "slo", "signal", "variants", "routing", "drain"):
        assert document["spec"][same] == other[same]
    [variant] = policy.spec.variants
    assert variant.capacity == load.slots
    assert variant.max_replicas > load.most_needed()
    assert variant.process is not None
    assert "--exit-after-s" in variant.process.command
    assert str(tmp_path) in " ".join(variant.process.command)


def test_the_hpa_policy_is_hpas_defaults_on_the_demos_clock(tmp_path: Path) -> None:
    behavior = ScalingPolicy.model_validate(policy_document("hpa", generated(1), tmp_path, bound_s=9.0)).spec.behavior
    assert behavior.scale_down.stabilization_window_seconds == 300 / FACTOR
    assert {(rate.type, rate.value, rate.period_seconds) for rate in behavior.scale_up.policies} == {
        ("Percent", 100, 15 / FACTOR),
        ("Pods", 4, 15 / FACTOR),
    }
