"""Sliding windows beside slow obvious references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecasting.series import Floats
from forecasting.windows import at_lag, horizon_steps, mean_of_known, trailing_means, window_maxima

LOADS = st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan)), max_size=30)


def slow_window_maxima(values: list[float], steps: int) -> list[float]:
    """Oracle: look at every window."""
    found = []
    for first in range(len(values)):
        window = values[first : first + steps]
        whole = len(window) == steps and not any(math.isnan(load) for load in window)
        found.append(max(window) if whole else math.nan)
    return found


def slow_trailing_means(values: list[float], steps: int) -> list[float]:
    """Oracle: add up what is known of every stretch."""
    found = []
    for last in range(len(values)):
        known = [load for load in values[max(0, last - steps + 1) : last + 1] if not math.isnan(load)]
        found.append(math.fsum(known) / len(known) if known else math.nan)
    return found


def same(fast: Floats, slow: list[float]) -> bool:
    return np.allclose(fast, slow, rtol=1e-9, atol=1e-6, equal_nan=True)


@given(LOADS, st.integers(1, 35))
def test_window_maxima(values: list[float], steps: int) -> None:
    assert same(window_maxima(np.array(values), steps), slow_window_maxima(values, steps))


@given(LOADS, st.integers(1, 35))
def test_trailing_means(values: list[float], steps: int) -> None:
    means = trailing_means(np.array(values), steps)
    assert same(means, slow_trailing_means(values, steps))
    assert not (means < 0).any()


@given(LOADS, st.integers(-35, 35))
def test_lags(values: list[float], lag: int) -> None:
    places = [place - lag for place in range(len(values))]
    assert same(at_lag(np.array(values), lag), [values[at] if 0 <= at < len(values) else math.nan for at in places])


def test_mean_of_known() -> None:
    rows = np.array([[1.0, math.nan, math.nan], [3.0, 4.0, math.nan]])
    assert same(mean_of_known(rows), [2.0, 4.0, math.nan])


@pytest.mark.parametrize(
    ("horizon_s", "step_s", "steps"), [(1.0, 1.0, 1), (0.2, 1.0, 1), (1.1, 1.0, 2), (0.3, 0.1, 3), (60.0, 15.0, 4)]
)
def test_horizons_in_steps(horizon_s: float, step_s: float, steps: int) -> None:
    assert horizon_steps(horizon_s, step_s) == steps
