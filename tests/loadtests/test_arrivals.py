"""Generated load: its shape, its randomness, and that a cycle is the same whoever asks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from itertools import pairwise
from random import Random
from statistics import fmean, median

import pytest

from loadtests.arrivals import DayShape, Lengths, day_shape, from_rates, poisson_arrivals, thin
from loadtests.trace import RateTrace, TraceError

DAY = day_shape(48.0, trough_per_s=10.0, peak_per_s=80.0, seed=3)


def test_a_cycle_has_the_shape_of_a_day() -> None:
    flat = DayShape(period_s=24.0, trough_per_s=10.0, peak_per_s=80.0, level_sigma=0.0)
    night, ramp, noon, evening, late = (flat.rate_per_s(hour) for hour in (2.0, 7.7, 12.0, 16.8, 23.0))
    assert night == pytest.approx(10.0, abs=0.5)
    assert night < ramp < noon
    assert noon == pytest.approx(10.0 + 0.72 * 70.0, abs=1.0)
    assert evening == pytest.approx(80.0, abs=0.5)
    assert late < 12.0
    rates = [flat.rate_per_s(hour / 10) for hour in range(240)]
    assert max(later - earlier for earlier, later in pairwise(rates)) > 0.05 * 70.0  # of the range, in 6 of its minutes


def test_history_and_load_come_from_one_generator() -> None:
    wide = list(DAY.arrivals_s(-96.0, 48.0))
    assert wide == sorted(wide)
    assert [at for at in wide if at >= 0] == list(DAY.arrivals_s(0.0, 48.0))
    assert DAY.history(2) == DAY.counts(-96.0, 0.0)
    assert sum(DAY.history(2)) == sum(at < 0 for at in wide)
    assert len(DAY.history(2)) == 96
    played = DAY.requests(12.0, 60.0)
    assert list(played.arrival_s) == [at - 12.0 for at in DAY.arrivals_s(12.0, 60.0)]


def test_equal_seeds_are_equal_and_others_differ() -> None:
    again = day_shape(48.0, trough_per_s=10.0, peak_per_s=80.0, seed=3)
    other = day_shape(48.0, trough_per_s=10.0, peak_per_s=80.0, seed=4)
    assert again.requests(0, 48).arrival_s == DAY.requests(0, 48).arrival_s
    assert again.requests(0, 48).output_tokens == DAY.requests(0, 48).output_tokens
    assert other.requests(0, 48).arrival_s != DAY.requests(0, 48).arrival_s


def test_counts_are_poisson_around_the_rate() -> None:
    """Sum of (n - rate)^2 / rate over 40 cycles of 48 steps is chi-square with 1920 degrees: 1920 +- 62."""
    counts = DAY.counts(0.0, 40 * 48.0)
    rates = [fmean(DAY.rate_per_s(second + part / 10 + 0.05) for part in range(10)) for second in range(len(counts))]
    surprise = sum((count - rate) ** 2 / rate for count, rate in zip(counts, rates, strict=True))
    assert surprise == pytest.approx(1920, abs=5 * 62)


def test_levels_vary_mildly_from_cycle_to_cycle() -> None:
    levels = [DAY.level(cycle) for cycle in range(-50, 50)]
    assert 0.75 < min(levels) < 0.95
    assert 1.05 < max(levels) < 1.3
    assert len(set(levels)) == 100


def test_token_lengths_are_lognormal_within_bounds() -> None:
    rng, lengths = (
        Random("lengths"),
        Lengths(input_median=100, input_sigma=1.0, input_max=1000, output_median=20, output_max=30),
    )
    drawn = [lengths.draw(rng) for _ in range(4000)]
    assert median(tokens for tokens, _ in drawn) == pytest.approx(100, rel=0.07)
    assert max(tokens for tokens, _ in drawn) == 1000
    assert min(tokens for _, tokens in drawn) >= 1
    assert max(tokens for _, tokens in drawn) == 30


def test_arrivals_from_rates_fill_gaps_with_lines() -> None:
    rates = RateTrace(
        step_s=10.0,
        t_s=array("d", range(0, 60, 10)),
        rate_per_s=array("d", [math.nan, 100.0, math.nan, 200.0, 0.0, math.nan]),
        valid=bytearray([0, 1, 0, 1, 1, 0]),
    )
    trace = from_rates(rates, seed=1)
    counts = [sum(place * 10 <= at < place * 10 + 10 for at in trace.arrival_s) for place in range(6)]
    expected = [1000, 1000, 1500, 2000, 0, 0]
    assert all(abs(count - mean) <= 5 * math.sqrt(mean) for count, mean in zip(counts, expected, strict=True))
    assert list(trace.arrival_s) == sorted(trace.arrival_s)
    assert from_rates(rates, seed=1).arrival_s == trace.arrival_s
    assert from_rates(rates, seed=1, limit=7).arrival_s == trace.arrival_s[:7]
    dead = RateTrace(step_s=1.0, t_s=array("d", [0, 1]), rate_per_s=array("d", [math.nan] * 2), valid=bytearray(2))
    with pytest.raises(TraceError, match="no step has a value"):
        from_rates(dead, seed=1)


def test_thinning_keeps_the_asked_share_in_order() -> None:
    trace = DAY.requests(0.0, 96.0)
    kept = thin(trace, 0.25, seed=5)
    assert len(kept) == pytest.approx(len(trace) / 4, rel=0.1)
    assert set(kept.arrival_s) <= set(trace.arrival_s)
    assert list(kept.arrival_s) == sorted(kept.arrival_s)
    assert thin(trace, 1.0, seed=5).arrival_s == trace.arrival_s
    with pytest.raises(TraceError, match=r"keep: 1\.5"):
        thin(trace, 1.5, seed=5)


def test_no_rate_no_arrivals() -> None:
    assert poisson_arrivals(lambda _: 0.0, end_s=10.0, rate_max=0.0, rng=Random("none")) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: day_shape(0.0, trough_per_s=1, peak_per_s=2), "period_s: 0.0"),
        (lambda: day_shape(48.0, trough_per_s=3, peak_per_s=2), "trough_per_s: 3"),
        (lambda: day_shape(48.0, trough_per_s=0, peak_per_s=math.inf), "peak_per_s: inf"),
        (lambda: DayShape(period_s=1, trough_per_s=0, peak_per_s=1, level_sigma=-1), "level_sigma: -1"),
    ],
)
def test_what_is_out_of_range_is_named(make: Callable[[], DayShape], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
