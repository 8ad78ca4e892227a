"""Forecasts of load as distributions: quantiles per step and of the window's maximum. Synchronous, no clock, usable alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forecasting.champion import Champion
    from forecasting.series import LoadSeries

from forecasting.forecast import Forecast, Forecaster

__all__ = ["Champion", "Forecast", "Forecaster", "LoadSeries"]

_LAZY = {"Champion": "forecasting.champion", "LoadSeries": "forecasting.series"}


def __getattr__(name: str) -> Any:
    """Import numpy-backed parts only when asked for, so that the values stay importable without numpy."""
    if name not in _LAZY:
        raise AttributeError(f"module 'forecasting' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
