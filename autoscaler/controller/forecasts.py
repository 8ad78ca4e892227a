"""The newest forecast of every policy, made beside the ticks.

It knows the history and the champion, nothing of replicas or routers. Completed steps come in at each tick; learning,
updating and predicting happen in a worker thread, one job at a time per policy, and `latest` only hands out what the
last job gave. The first fit comes as soon as `prediction.minHistorySeconds` of load are known, later ones every 240
steps and never more often than 20 times their own duration. A router that is silent brings no steps; after three the
series goes on with gaps, so the forecast stays one of now.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import structlog

from autoscaler.controller.standing import outcome
from autoscaler.decide.curve import slowest_start
from autoscaler.model import Now, StartTime
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import History
from forecasting.champion import Champion
from forecasting.forecast import Forecast, Forecaster
from forecasting.series import LoadSeries

QUANTILES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.995)
HORIZON_PARTS = 8
"""Horizons run from a quarter of the start-time horizon to twice it, in quarters: a law may look further than one
start.
"""
REFIT_STEPS = 240
REFIT_COST = 20.0
SILENT_STEPS = 3

Run = tuple[float, Sequence[float | None]]
"""Consecutive steps: epoch of the first, arrivals per second, None = gap."""

log = structlog.get_logger(part="forecasts")


class MakeForecaster(Protocol):
    """Makes a fresh forecaster for one policy."""

    def __call__(self, policy: ScalingPolicy, horizon_s: float) -> Forecaster:
        """`horizon_s`: what it will be judged by."""


def champion(policy: ScalingPolicy, horizon_s: float) -> Forecaster:
    """The champion of all members, as the policy asks for."""
    prediction = policy.spec.prediction
    return Champion(
        seasons_s=prediction.seasons_seconds, min_history_s=prediction.min_history_seconds, decision_horizon_s=horizon_s
    )


@dataclass(slots=True)
class _Line:
    """One policy's forecaster. `end_s`: epoch up to which it has been told; `pending`: values after that."""

    forecaster: Forecaster | None = None
    end_s: float = 0.0
    pending: list[float] = field(default_factory=list)
    forecast: Forecast | None = None
    fit_due_s: float = float("-inf")
    job: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is asked of every forecast of a policy."""

    horizons_s: tuple[float, ...]
    quantiles: tuple[float, ...]
    step_s: float


class Forecasts:
    """`ports.ForecastSource`. `make` gives the forecaster, for tests another than the champion."""

    def __init__(self, history: History, make: MakeForecaster = champion) -> None:
        self._history = history
        self._make = make
        self._lines: dict[str, _Line] = {}

    def latest(self, policy: ScalingPolicy, now: Now) -> Forecast | None:
        """The newest forecast; None while there is none, or prediction is off."""
        line = self._lines.get(policy.key)
        return line.forecast if line is not None and policy.spec.prediction.enabled else None

    def take(self, policy: ScalingPolicy, runs: Sequence[Run], start_times: Mapping[str, StartTime], now: Now) -> None:
        """Steps that were completed (and are in the history already). Starts a job when there is something to do."""
        if not policy.spec.prediction.enabled:
            return
        line = self._lines.setdefault(policy.key, _Line())
        step_s = policy.spec.prediction.step_seconds
        if line.forecaster is not None or line.job is not None:
            for first_s, values in runs:
                _append(line, first_s, values, step_s)
            silent = int((now.epoch_s - line.end_s) / step_s) - len(line.pending)
            if silent > SILENT_STEPS:
                line.pending += [np.nan] * (silent - SILENT_STEPS)
        if line.job is not None:
            return
        question = asked(policy, start_times)
        series = self._due(policy, line, now) if runs or line.forecaster is None else None
        if series is not None:
            if line.forecaster is None:
                line.end_s, line.pending = series.end_s, []
            line.job = asyncio.get_running_loop().create_task(self._fit(policy, line, series, question))
        elif line.forecaster is not None and line.pending:
            line.job = asyncio.get_running_loop().create_task(self._renew(policy, line, question))

    async def settle(self) -> None:
        """Wait until no job runs."""
        jobs = [line.job for line in self._lines.values() if line.job is not None]
        await asyncio.gather(*jobs)

    async def close(self) -> None:
        """Wait for the jobs that run: a thread cannot be stopped, and a fit is a second or so."""
        await self.settle()

    def _due(self, policy: ScalingPolicy, line: _Line, now: Now) -> LoadSeries | None:
        """The series to learn from, if it is time and there is enough of it."""
        prediction = policy.spec.prediction
        if asyncio.get_running_loop().time() < line.fit_due_s:
            return None
        since_s = now.epoch_s - prediction.history_window_seconds
        first_s, values = self._history.load(policy.key, prediction.step_seconds, since_s)
        series = LoadSeries(first_s, prediction.step_seconds, np.array(values, dtype=np.float64))
        enough = series.known and series.known * prediction.step_seconds >= prediction.min_history_seconds
        return series if enough else None

    async def _fit(self, policy: ScalingPolicy, line: _Line, series: LoadSeries, question: _Question) -> None:
        rng = np.random.default_rng(zlib.crc32(policy.key.encode()))
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def work() -> tuple[Forecaster, Forecast]:
            fresh = self._make(policy, question.horizons_s[HORIZON_PARTS // 2 - 1])
            fresh.fit(series, rng)
            return fresh, fresh.predict(question.horizons_s, question.quantiles)

        try:
            found = await outcome(asyncio.to_thread(work))
        finally:
            line.job = None
        if isinstance(found, Exception):  # of whatever kind: the load goes on, and so does the old forecast
            log.warning("fit failed", policy=policy.key, exc_info=found)
            line.fit_due_s = loop.time() + REFIT_STEPS * question.step_s
            return
        forecaster, forecast = found
        took_s = loop.time() - began_s
        line.fit_due_s = loop.time() + max(REFIT_STEPS * question.step_s, REFIT_COST * took_s)
        newer = _after(line, series.end_s, question.step_s)
        line.forecaster, line.end_s, line.pending, line.forecast = forecaster, series.end_s, newer, forecast
        log.info(
            "fitted",
            policy=policy.key,
            steps=len(series),
            champion=forecast.champion,
            why=forecast.why,
            fit_s=round(took_s, 3),
        )

    async def _renew(self, policy: ScalingPolicy, line: _Line, question: _Question) -> None:
        forecaster, values = line.forecaster, line.pending
        assert forecaster is not None
        line.pending = []
        line.end_s += len(values) * question.step_s

        def work() -> Forecast:
            forecaster.update(values)
            return forecaster.predict(question.horizons_s, question.quantiles)

        try:
            found = await outcome(asyncio.to_thread(work))
        finally:
            line.job = None
        if isinstance(found, Exception):
            log.warning("forecast failed, learning anew", policy=policy.key, exc_info=found)
            line.forecaster, line.forecast, line.fit_due_s = None, None, float("-inf")
        else:
            line.forecast = found


def asked(policy: ScalingPolicy, start_times: Mapping[str, StartTime]) -> _Question:
    """Horizons around the time until a replica ordered now is ready: the longest P90 of the variants' start times
    plus one tick.
    """
    horizon_s = start_horizon(policy, start_times)
    quantiles = sorted({*QUANTILES, policy.spec.prediction.quantile})
    return _Question(
        horizons_s=tuple(horizon_s * 2 * part / HORIZON_PARTS for part in range(1, HORIZON_PARTS + 1)),
        quantiles=tuple(quantiles),
        step_s=policy.spec.prediction.step_seconds,
    )


def start_horizon(policy: ScalingPolicy, start_times: Mapping[str, StartTime]) -> float:
    """Seconds until a replica ordered at the next tick is ready, nine times in ten, of the slowest variant that may
    grow.
    """
    return slowest_start(policy, start_times).p90_s + policy.tick_s


def _append(line: _Line, first_s: float, values: Sequence[float | None], step_s: float) -> None:
    """Put steps where they belong after those that the forecaster knows; a hole is a gap, what is older is left out."""
    position = round((first_s - line.end_s) / step_s)
    numbers = [np.nan if value is None else value for value in values]
    if position < 0:
        numbers, position = numbers[-position:], 0
    line.pending += [np.nan] * (position + len(numbers) - len(line.pending))
    line.pending[position : position + len(numbers)] = numbers


def _after(line: _Line, end_s: float, step_s: float) -> list[float]:
    """Of the steps that came while a fit ran, those after its series."""
    return line.pending[max(0, round((end_s - line.end_s) / step_s)) :]
