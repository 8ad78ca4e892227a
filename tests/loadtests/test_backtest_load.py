"""From traces to the grid of a backtest: means over steps, gaps, joined files, slices and shifts."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest

from loadtests.backtest_load import Load, load_of, shift_s
from loadtests.trace import Trace, TraceError
from tests.loadtests.backtest_loads import daily, rates

NAN = math.nan


def test_rates_are_linear_between_the_centres_of_their_bins() -> None:
    load = load_of([rates([0.0, 60.0])])
    # Centres at 30 and 90 s: flat, flat, then up by one a second, flat again; means over 15 s.
    assert load.rate_per_s.tolist() == pytest.approx([0, 0, 7.5, 22.5, 37.5, 52.5, 60, 60])
    assert load.seen.all()


def test_a_bin_of_any_width_keeps_the_integral_of_the_line() -> None:
    values = np.random.default_rng(3).uniform(1.0, 9.0, 200).tolist()
    for step_s in (7.0, 15.0, 47.0, 600.0):
        load = load_of([rates(values, step_s=step_s)])
        at_s = np.arange(0.0, len(load) * 15.0, 0.01) + 0.005
        line = np.interp(at_s, (np.arange(200) + 0.5) * step_s, values).reshape(len(load), -1).mean(axis=1)
        assert load.rate_per_s == pytest.approx(line, rel=1e-3)


def test_flat_rates_are_those_of_their_bins() -> None:
    assert load_of([rates([3.0, 5.0])], step_s=60.0, flat=True).rate_per_s.tolist() == [3.0, 5.0]
    assert load_of([rates([3.0, NAN, 5.0])], step_s=60.0, flat=True).rate_per_s.tolist() == [3.0, 4.0, 5.0]


def test_a_missed_bin_is_bridged_for_the_world_and_missing_for_the_laws() -> None:
    load = load_of([rates([10.0, NAN, NAN, 40.0])], step_s=60.0)
    assert load.seen.tolist() == [True, False, False, True]
    assert load.rate_per_s.tolist() == pytest.approx([11.25, 20.0, 30.0, 38.75])


def test_a_step_is_seen_when_half_of_it_was() -> None:
    load = load_of([rates([1.0, NAN, NAN, 1.0, 1.0, NAN, 1.0, 1.0], step_s=5.0)])
    assert load.seen.tolist() == [False, True]


def test_requests_are_counted() -> None:
    trace = Trace(
        arrival_s=array("d", [31.0, 32.0, 44.9, 46.0, 91.0]),
        input_tokens=array("q", [1] * 5),
        output_tokens=array("q", [1] * 5),
    )
    load = load_of([trace])
    assert load.start_s == 30.0
    assert (load.rate_per_s * 15).tolist() == pytest.approx([3, 1, 0, 0])


def test_files_follow_each_other_with_a_hole_that_nobody_saw() -> None:
    first, second = rates([4.0, 4.0]), rates([8.0, 8.0], start_s=180.0, source="second")
    load = load_of([second, first], step_s=60.0)
    assert load.seen.tolist() == [True, True, False, True, True]
    assert load.rate_per_s.tolist() == pytest.approx([4, 4, 6, 8, 8])


def test_a_relative_trace_is_put_at_its_own_time() -> None:
    first, second = rates([4.0, 4.0]), replace(rates([8.0, 8.0]), origin_s=120.0)
    assert load_of([first, second], step_s=60.0).rate_per_s.tolist() == pytest.approx([4, 4, 8, 8])


def test_overlapping_files_are_named() -> None:
    first, second = rates([4.0, 4.0], source="a.csv"), rates([8.0, 8.0], start_s=60.0, source="b.csv")
    with pytest.raises(TraceError, match=r"b\.csv: begins at 60 s, before a\.csv ends at 120 s"):
        load_of([first, second])


@pytest.mark.parametrize("count", [0, 1])
def test_a_request_alone_is_no_load(count: int) -> None:
    ones = array("q", [1] * count)
    trace = Trace(arrival_s=array("d", [5.0] * count), input_tokens=ones, output_tokens=ones)
    with pytest.raises(TraceError, match="request; a backtest needs a load over time"):
        load_of([trace])


def test_a_trace_of_one_step_is_too_short() -> None:
    with pytest.raises(TraceError, match="needs two steps"):
        load_of([rates([4.0, 4.0], step_s=10.0)])


def test_a_slice_keeps_its_own_times() -> None:
    load = daily(2.0)
    part = load.between(600.0, 1200.0)
    assert (part.start_s, len(part)) == (600.0, 40)
    assert part.rate_per_s.tolist() == load.rate_per_s[40:80].tolist()
    with pytest.raises(TraceError, match="leaves less than two steps"):
        load.between(7200.0, 9000.0)


def test_a_seed_leaves_out_some_of_the_beginning() -> None:
    values = np.linspace(1.0, 300.0, 300).tolist()
    plain, shifted = load_of([rates(values)]), load_of([rates(values)], seed=7)
    assert shift_s(1) == 0
    assert 0 < shift_s(7) <= 3600
    assert shifted.start_s == shift_s(7)
    expected = np.interp(shifted.start_s + 7.5, plain.start_s + np.arange(len(plain)) * 15 + 7.5, plain.rate_per_s)
    assert shifted.rate_per_s[0] == pytest.approx(float(expected), rel=1e-6)
    assert load_of([rates(values)], seed=7).rate_per_s.tolist() == shifted.rate_per_s.tolist()


def test_a_part_is_the_same_load_cut_off() -> None:
    load = daily(1.0, gaps=True)
    part = load.part(0, 100)
    assert isinstance(part, Load)
    assert part.rate_per_s.tolist() == load.rate_per_s[:100].tolist()
    assert part.seen.tolist() == load.seen[:100].tolist()
