"""A load series: what it refuses, and that it cannot be changed behind a member's back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from forecasting import LoadSeries
from forecasting.series import NegativeLoad, NonFiniteLoad, SeriesError, WrongShape

NAN = math.nan


@pytest.mark.parametrize(
    ("start_s", "step_s", "values", "error", "message"),
    [
        (0.0, 1.0, [[1.0], [2.0]], WrongShape, r"shape \(2, 1\); one dimension is allowed"),
        (0.0, 1.0, [1.0, [2.0]], WrongShape, "not a flat list of numbers"),
        (0.0, 1.0, ["a"], WrongShape, "not a flat list of numbers"),
        (0.0, 1.0, [1.0, -0.5], NegativeLoad, r"values\[1\]: -0.5; allowed is 0 or more"),
        (0.0, 1.0, [1.0, math.inf], NonFiniteLoad, r"values\[1\]: inf; allowed is a finite number, or NaN for a gap"),
        (0.0, 0.0, [1.0], NonFiniteLoad, "step_s: 0.0; allowed"),
        (0.0, NAN, [1.0], NonFiniteLoad, "step_s: nan; allowed"),
        (math.inf, 1.0, [1.0], NonFiniteLoad, "start_s: inf; allowed"),
    ],
)
def test_what_is_no_series_is_refused(
    start_s: float, step_s: float, values: Any, error: type[SeriesError], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        LoadSeries(start_s, step_s, values)
    assert isinstance(refused.value, ValueError)


def test_parts_keep_their_place_on_the_clock() -> None:
    series = LoadSeries(100.0, 15.0, np.array([1.0, NAN, 3.0]))
    longer = series.append([4.0, 5.0])
    assert (len(longer), longer.end_s, longer.known) == (5, 175.0, 4)
    tail = longer.tail(31.0)
    assert (tail.start_s, list(tail.values)) == (130.0, [3.0, 4.0, 5.0])
    assert list(longer.tail(30.0).values) == [4.0, 5.0]
    assert len(longer.tail(1e9)) == 5
    assert len(longer.tail(0.0)) == 0
    assert list(longer.head(1).values) == [1.0]
    with pytest.raises(NegativeLoad):
        series.append([-1.0])


def test_values_are_a_copy_and_cannot_be_written() -> None:
    mine = np.array([1.0, 2.0])
    series = LoadSeries(0.0, 1.0, mine)
    mine[0] = 9.0
    assert series.values[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        series.values[0] = 9.0
