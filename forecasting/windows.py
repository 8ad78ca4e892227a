"""Sliding windows over a load series with gaps: maxima, means, lags. Plain array functions, no domain words.

Everywhere a gap is NaN: a maximum over a gap is unknown, a mean is of what is known.
"""

from __future__ import annotations

import math

import numpy as np

from forecasting.series import Floats


def horizon_steps(horizon_s: float, step_s: float) -> int:
    """Steps until the one that `horizon_s` falls into; a whole number of steps is itself."""
    return max(1, math.ceil(horizon_s / step_s - 1e-9))


def window_maxima(values: Floats, steps: int) -> Floats:
    """out[i] = max(values[i : i + steps]), NaN where a gap is inside or the window passes the end; shape of `values`.

    Doubling: a window of 2k is two windows of k, so it takes log2(steps) passes instead of `steps`.
    """
    out = np.full(len(values), np.nan)
    if steps > len(values):
        return out
    rolled, width = values, 1
    while width < steps:
        reach = min(width, steps - width)
        rolled = np.maximum(rolled[: len(rolled) - reach], rolled[reach:])
        width += reach
    out[: len(rolled)] = rolled
    return out


def trailing_means(values: Floats, steps: int) -> Floats:
    """out[i] = mean of the known ones among values[i - steps + 1 .. i], NaN when none is; shape of `values`."""
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - steps)
    count = counts[ends] - counts[starts]
    with np.errstate(invalid="ignore", divide="ignore"):
        # Differences of a running sum may miss zero by a rounding error; a load is never below it.
        return np.where(count > 0, np.maximum(sums[ends] - sums[starts], 0.0) / count, np.nan)


def mean_of_known(rows: Floats) -> Floats:
    """Mean over axis 0 of what is not NaN, NaN where nothing is known; shape (k, n) -> (n,)."""
    known = ~np.isnan(rows)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, np.where(known, rows, 0.0).sum(axis=0) / count, np.nan)


def at_lag(values: Floats, lag: int) -> Floats:
    """out[i] = values[i - lag], NaN before the start and beyond the end; shape of `values`. A negative lag looks
    ahead.
    """
    out = np.full(len(values), np.nan)
    if lag >= 0:
        if lag < len(values):
            out[lag:] = values[: len(values) - lag]
    elif -lag < len(values):
        out[:lag] = values[-lag:]
    return out
