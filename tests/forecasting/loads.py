"""Loads for the forecasting tests, all seeded."""

from __future__ import annotations

import numpy as np

from forecasting import LoadSeries
from forecasting.series import Floats


def seasonal(cycles: int, *, season: int = 48, seed: int = 0, peak: float = 80.0, spread: float = 0.06) -> Floats:
    """Poisson counts around a night, a steep ramp, a plateau and an evening peak; every cycle has its own level."""
    rng = np.random.default_rng(seed)
    phase = np.arange(season) / season
    plateau = 0.7 / (1 + np.exp((0.32 - phase) / 0.016)) / (1 + np.exp((phase - 0.8) / 0.035))
    shape = 0.15 + 0.85 * np.maximum(plateau, np.exp(-(((phase - 0.7) / 0.055) ** 2)))
    levels = np.exp(rng.normal(0.0, spread, size=(cycles, 1)))
    return np.asarray(rng.poisson(peak * levels * shape), dtype=np.float64).ravel()


def wandering(steps: int, *, seed: int = 0) -> Floats:
    """Poisson counts around a level that drifts without a season."""
    rng = np.random.default_rng(seed)
    level = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.03, size=steps)).clip(-2, 2))
    return np.asarray(rng.poisson(level), dtype=np.float64)


def series(values: Floats, step_s: float = 1.0) -> LoadSeries:
    return LoadSeries(0.0, step_s, values)
