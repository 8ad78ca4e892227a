"""Forecasts of a whole backtest, made once a minute by the controller's own forecaster and kept on disk.

A forecast depends on the load that laws see and on how far ahead it looks, not on the law, so one table serves all laws
of a world. It is filled as the controller would: steps come in as they end, a missing one is a gap, the first fit waits
for `prediction.minHistorySeconds`, and every `REFIT_STEPS` steps a fresh forecaster is fitted on the history window.
Numbers are kept as 32-bit floats, in memory as on disk, so a run from the cache is the run that filled it.

The file's name is a hash of everything that the numbers depend on: the load as it is shown, the policy's prediction, the
question, and the source code of the package `forecasting`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import forecasting
from autoscaler.controller.forecasts import REFIT_STEPS, asked, champion, start_horizon
from autoscaler.policy import ScalingPolicy
from forecasting.forecast import Forecast, Forecaster
from forecasting.series import LoadSeries
from loadtests.backtest_load import SEEN_SHARE, Floats
from loadtests.backtest_world import World

MADE_EVERY_S = 60.0
"""Grid of the forecasts, and how often one is made, unless the policy's own grid is coarser."""

Make = Callable[[ScalingPolicy, float], Forecaster]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastTable:
    """`values`, `window_max`: float32 of shape (m, horizons, quantiles), row i made at `start_s + (i + 1) step_s` from
    the steps before; NaN while there was no forecast. `words[i]`: (member, why it only advises or empty).
    """

    start_s: float
    step_s: float
    horizons_s: tuple[float, ...]
    quantiles: tuple[float, ...]
    values: Any
    window_max: Any
    words: tuple[tuple[str, str], ...]

    def row(self, at_s: float) -> int:
        """The newest row made at or before a moment of the trace's clock; negative = none yet."""
        return min(len(self.words), math.floor((at_s - self.start_s) / self.step_s + 1e-9)) - 1

    def forecast(self, row: int) -> Forecast | None:
        """The forecast of a row."""
        if row < 0 or math.isnan(self.window_max[row, 0, 0]):
            return None
        member, distrust = self.words[row]
        return Forecast(
            made_at_s=self.start_s + (row + 1) * self.step_s,
            step_s=self.step_s,
            horizons_s=self.horizons_s,
            quantiles=self.quantiles,
            values=tuple(map(tuple, self.values[row].tolist())),
            window_max=tuple(map(tuple, self.window_max[row].tolist())),
            champion=member,
            why=distrust or f"{member} is the champion",
            trusted=not distrust,
        )

    def at_step(self, world: World) -> Callable[[int], Forecast | None]:
        """What `run_law` asks: the newest forecast at the tick of a step. The last one is kept, as it serves several
        ticks.
        """
        last: tuple[int, Forecast | None] = (-1, None)

        def newest(step: int) -> Forecast | None:
            nonlocal last
            row = self.row(world.load.start_s + step * world.step_s)
            if row != last[0]:
                last = (row, self.forecast(row))
            return last[1]

        return newest


def cache_folder() -> Path:
    """Where tables are kept unless told otherwise: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidegate" / "forecasts"


def forecast_table(world: World, folder: Path | None, *, make: Make | None = None) -> ForecastTable:
    """The forecasts of a world, from `folder` when they are there, else made and kept there; None = keep nothing.

    `make` gives another forecaster than the champion; its table is never kept, as no hash would know it.
    """
    if folder is None or make is not None:
        return _make_table(world, make or champion)
    path = folder / f"{_key(world)}.npz"
    found = _read(path)
    if found is None:
        found = _make_table(world, champion)
        _write(path, found)
    return found


def grid_of(world: World) -> tuple[float, Floats]:
    """(step, requests per second as laws see them, NaN = gap) of the whole forecast steps of a world.

    A step is known when at least half of it was seen; its value is the mean of what was.
    """
    step_s = max(MADE_EVERY_S, world.policy.spec.prediction.step_seconds)
    width = max(1, round(step_s / world.step_s))
    rows = len(world) // width
    shown = world.shown()[: rows * width].reshape(rows, width)
    seen = world.load.seen[: rows * width].reshape(rows, width)
    count = seen.sum(axis=1)
    means = (shown * seen).sum(axis=1) / np.maximum(count, 1)
    return width * world.step_s, np.where(count >= SEEN_SHARE * width, means, np.nan)


def _make_table(world: World, make: Make) -> ForecastTable:
    policy = world.policy
    question = asked(policy, world.start_times)
    horizon_s = start_horizon(policy, world.start_times)
    step_s, series = grid_of(world)
    shape = (len(series), len(question.horizons_s), len(question.quantiles))
    values, window_max = np.full(shape, np.nan, dtype=np.float32), np.full(shape, np.nan, dtype=np.float32)
    words: list[tuple[str, str]] = []
    prediction = policy.spec.prediction
    window = math.ceil(prediction.history_window_seconds / step_s)
    needed = max(1.0, prediction.min_history_seconds / step_s)
    known = np.cumsum(~np.isnan(series))
    forecaster, fit_due = None, 0
    for row, value in enumerate(series.tolist()):
        first = max(0, row + 1 - window)
        enough = known[row] - (known[first - 1] if first else 0) >= needed
        if row >= fit_due and enough:
            start_s = world.load.start_s + first * step_s
            forecaster = make(policy, horizon_s)
            forecaster.fit(LoadSeries(start_s, step_s, series[first : row + 1]), np.random.default_rng(0))
            fit_due = row + REFIT_STEPS
        elif forecaster is not None:
            forecaster.update([value])
        if forecaster is None:
            words.append(("", ""))
            continue
        forecast = forecaster.predict(question.horizons_s, question.quantiles)
        values[row], window_max[row] = forecast.values, forecast.window_max
        words.append((forecast.champion, "" if forecast.trusted else forecast.why))
    return ForecastTable(
        start_s=world.load.start_s,
        step_s=step_s,
        horizons_s=question.horizons_s,
        quantiles=question.quantiles,
        values=values,
        window_max=window_max,
        words=tuple(words),
    )


def _key(world: World) -> str:
    step_s, series = grid_of(world)
    question, prediction = asked(world.policy, world.start_times), world.policy.spec.prediction
    facts = {
        "start_s": world.load.start_s,
        "step_s": step_s,
        "seasons_s": prediction.seasons_seconds,
        "history_s": [prediction.min_history_seconds, prediction.history_window_seconds],
        "horizon_s": start_horizon(world.policy, world.start_times),
        "horizons_s": question.horizons_s,
        "quantiles": question.quantiles,
        "refit_steps": REFIT_STEPS,
        "code": code_version(),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(series.tobytes())
    return digest.hexdigest()[:32]


def code_version() -> str:
    """A hash of all source files of the package `forecasting`."""
    digest = hashlib.sha256()
    for folder in forecasting.__path__:
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _write(path: Path, table: ForecastTable) -> None:
    """Whole or not at all: another run may be reading the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "start_s": table.start_s,
        "step_s": table.step_s,
        "horizons_s": table.horizons_s,
        "quantiles": table.quantiles,
        "words": table.words,
    }
    half = path.with_name(f"{path.stem}.{os.getpid()}.part")
    with half.open("wb") as stream:
        np.savez_compressed(stream, values=table.values, window_max=table.window_max, facts=np.array(json.dumps(facts)))
    half.replace(path)


def _read(path: Path) -> ForecastTable | None:
    """The table in a file; None when there is none, or none that can be read."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            facts = json.loads(str(stored["facts"]))
            return ForecastTable(
                start_s=facts["start_s"],
                step_s=facts["step_s"],
                horizons_s=tuple(facts["horizons_s"]),
                quantiles=tuple(facts["quantiles"]),
                values=stored["values"],
                window_max=stored["window_max"],
                words=tuple((member, distrust) for member, distrust in facts["words"]),
            )
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
