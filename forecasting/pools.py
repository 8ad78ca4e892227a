"""From past (base, outcome) pairs to quantiles of what comes after a base seen now. The one statistical part that all
baselines share.

A member explains an outcome (the load h steps ahead, or the maximum of the next h steps) by a base (the level now,
the same window of earlier seasons, ...). This module knows nothing of where bases come from. It keeps the pairs in
order of their base and, asked for a base b, looks at the pairs whose bases are nearest: errors of a night differ from
errors of a peak. Each such pair (b', y) is carried to b:

    down (b <= b'):  y' = (y + a) * (b + a) / (b' + a) - a       the ratio; the additive floor a makes zero work
    up   (b > b'):   y' = the smaller of that and y + (b - b')   a ratio learned on almost nothing says little

Quantiles of log(y' + a) are order statistics at (n + 1) q, as a new draw would exceed them. Neighbouring windows
overlap, so n pairs are worth only n / h: up to tau = n_eff / (n_eff + 1) quantiles are learned, beyond it the tail
goes on linearly in -log(1 - q), with the slope between 1 - 4 (1 - tau) and tau (never below what was seen, never
steeper than the prior). With fewer than `PRIOR_PAIRS` effective pairs a wide prior (a Laplace spread of log ratios, x
2.2 at q = 0.95) is mixed in, fully at none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forecasting.series import Floats

POOL_SHARE = 0.3
"""Nearest share of all pairs that is looked at: one third of a day's levels still gives enough windows for a tail."""
POOL_MIN = 200
"""Never fewer pairs than this (all of them when there are not as many)."""
POOL_MAX = 4000
"""Never more: sorting more costs time in every prediction and moves no quantile by as much as 1%."""
PRIOR_PAIRS = 8.0
PRIOR_SPREAD = 0.35
"""Scale of the prior's log ratio per e-fold of tail probability."""


class ErrorPool:
    """Pairs of one horizon: `base`, `outcome` of shape (n,), NaN = not usable; `floor` > 0 in the series' unit;
    `span` steps each.
    """

    def __init__(self, base: Floats, outcome: Floats, *, floor: float, span: int) -> None:
        usable = ~(np.isnan(base) | np.isnan(outcome))
        order = np.argsort(base[usable], kind="stable")
        self._base = base[usable][order]
        self._log_base = np.log(self._base + floor)
        self._outcome = outcome[usable][order]
        self._floor = floor
        self._span = max(1, span)

    def __len__(self) -> int:
        return len(self._base)

    def quantiles(self, base: float, levels: Sequence[float]) -> list[float]:
        """Outcome quantiles at `levels` (ascending, in (0, 1)) given `base` now; never negative, never decreasing
        along `levels`.
        """
        pool = self._carried(base)
        effective = len(pool) / self._span
        now = math.log(base + self._floor)
        trust = min(1.0, effective / PRIOR_PAIRS)
        answers = []
        lowest = 0.0
        for level in levels:
            learned = _quantile(pool, level, effective) if len(pool) else now
            mixed = trust * learned + (1.0 - trust) * (now + prior_log_ratio(level))
            lowest = max(lowest, math.exp(min(mixed, 700.0)) - self._floor)
            answers.append(lowest)
        return answers

    def _carried(self, base: float) -> Floats:
        """Sorted log(outcome + floor) of the nearest pairs, carried to `base`."""
        size = len(self._base)
        width = min(size, POOL_MAX, max(POOL_MIN, int(POOL_SHARE * size)))
        # The middle of equal bases: half of the pool lies on either side of them, not all of it below.
        center = int(np.searchsorted(self._base, base) + np.searchsorted(self._base, base, side="right")) // 2
        first = min(max(0, center - width // 2), size - width)
        near = slice(first, first + width)
        outcome, bases = self._outcome[near], self._base[near]
        carried = np.log(outcome + self._floor) + (math.log(base + self._floor) - self._log_base[near])
        by_difference = np.log(np.maximum(outcome + (base - bases), 0.0) + self._floor)
        carried = np.where(bases < base, np.minimum(carried, by_difference), carried)
        carried.sort()
        return carried


def prior_log_ratio(level: float) -> float:
    """Quantile of the log ratio to the base when next to nothing has been seen."""
    tail = min(level, 1.0 - level)
    return math.copysign(PRIOR_SPREAD * math.log(0.5 / tail), level - 0.5)


def _seen(pool: Floats, level: float) -> float:
    """Order statistic at (n + 1) * level, linear between neighbours, the extremes beyond them."""
    place = (len(pool) + 1) * level - 1.0
    low = min(max(0, math.floor(place)), len(pool) - 1)
    high = min(low + 1, len(pool) - 1)
    weight = min(max(0.0, place - low), 1.0)
    return float(pool[low] + (pool[high] - pool[low]) * weight)


def _quantile(pool: Floats, level: float, effective: float) -> float:
    seen = _seen(pool, level)
    last = effective / (effective + 1.0)
    if level <= last:
        return seen
    tail = 1.0 - last
    before = max(0.5, 1.0 - 4.0 * tail)
    top = _seen(pool, last)
    if last <= before:
        return seen
    slope = min(PRIOR_SPREAD, (top - _seen(pool, before)) / math.log((1.0 - before) / tail))
    return max(seen, top + slope * math.log(tail / (1.0 - level)))
