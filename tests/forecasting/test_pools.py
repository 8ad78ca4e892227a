"""From pairs to quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forecasting.pools import ErrorPool, prior_log_ratio
from tests.forecasting.loads import seasonal

LEVELS = (0.05, 0.5, 0.8, 0.95, 0.99, 0.999)


def pool(base: list[float], outcome: list[float], *, floor: float = 1e-6, span: int = 1) -> ErrorPool:
    return ErrorPool(np.array(base), np.array(outcome), floor=floor, span=span)


def test_quantiles_are_those_of_the_ratio() -> None:
    rng = np.random.default_rng(1)
    ratios = np.exp(rng.normal(0.0, 0.2, size=20000))
    found = pool([10.0] * 20000, list(10.0 * ratios)).quantiles(10.0, LEVELS)
    near = np.quantile(ratios, LEVELS[:5])
    assert np.allclose(np.array(found[:5]) / 10.0, near, rtol=0.05)
    assert found[5] == pytest.approx(10.0 * math.exp(3.09 * 0.2), rel=0.15)


def test_no_pairs_is_the_prior_and_many_are_not() -> None:
    bare = pool([], []).quantiles(10.0, LEVELS)
    assert bare == pytest.approx([10.0 * math.exp(prior_log_ratio(level)) for level in LEVELS], abs=1e-5)
    assert pool([10.0] * 300, [10.0] * 300).quantiles(10.0, LEVELS) == pytest.approx([10.0] * 6)


def test_gaps_are_not_pairs() -> None:
    assert len(pool([1.0, math.nan, 3.0], [math.nan, 2.0, 3.0])) == 1


def test_overlapping_windows_count_for_less_so_the_tail_is_wider() -> None:
    values = list(seasonal(6))
    levels = [10.0] * len(values)
    narrow = pool(levels, values, span=1).quantiles(10.0, (0.99,))[0]
    wide = pool(levels, values, span=40).quantiles(10.0, (0.99,))[0]
    assert wide > narrow


def test_a_ratio_learned_on_almost_nothing_is_not_blown_up() -> None:
    """From 0 the load once jumped to 1; at a level of 0.3 that must not become hundreds."""
    quiet = [0.0] * 990 + [1.0] * 10
    after = [1.0] * 20 + [0.0] * 980
    assert pool(quiet, after, floor=1e-4).quantiles(0.3, (0.99,))[0] < 2.0


def test_errors_of_the_night_are_not_errors_of_the_peak() -> None:
    rng = np.random.default_rng(2)
    night = rng.poisson(5.0, size=3000).astype(float)
    peak = rng.poisson(500.0, size=3000).astype(float)
    mixed = pool([5.0] * 3000 + [500.0] * 3000, [*night, *peak])
    assert mixed.quantiles(5.0, (0.95,))[0] == pytest.approx(np.quantile(night, 0.95), rel=0.1)
    assert mixed.quantiles(500.0, (0.95,))[0] == pytest.approx(np.quantile(peak, 0.95), rel=0.02)
