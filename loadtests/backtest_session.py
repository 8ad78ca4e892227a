"""A whole backtest: worlds, runs of all laws, sweeps, and what is written about them.

Knows no command line. Two policies that are compared are played as two runs of `tidegate` in one load; an earlier
output folder can take the place of a policy, to compare with another version of this program.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.model import Observation
from autoscaler.policy import ScalingPolicy
from autoscaler.policy_file import read_policies
from loadtests.backtest_forecasts import ForecastTable, cache_folder, forecast_table
from loadtests.backtest_load import Load
from loadtests.backtest_report import ROWS, Band, Page, Spot, Track, name_of, shown, verdict, write_page
from loadtests.backtest_run import Run, no_forecast, run_law, story
from loadtests.backtest_score import COLUMNS, BacktestError, judged_window, score, write_timeline
from loadtests.backtest_sweep import OURS, Bench, Point, law_of, pareto
from loadtests.backtest_world import Setting, World, world_of
from loadtests.scorecard import scorecard

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to play. `compare`: no or two paths of policies or earlier outputs; `cache`: None = the user's folder;
    `tell` gets a line now and then.
    """

    laws: tuple[str, ...]
    policy: ScalingPolicy
    setting: Setting
    compare: tuple[str, ...] = ()
    sweep: bool = False
    cache: Path | None = None
    tell: Tell = lambda words: None


@dataclass(slots=True)
class Session:
    """What was played. `tracks` in the order of the runs; `runs` are those that were not read from an earlier output."""

    world: World
    tracks: list[Track] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    best: dict[str, Point | None] = field(default_factory=dict)
    band: Band | None = None
    candidate: str = OURS

    @property
    def ask(self) -> float:
        """The late fraction that the policy allows."""
        return 1.0 - self.world.policy.spec.slo.attainment_percent / 100.0

    def document(self, seed: int) -> dict[str, Any]:
        """The document of `scorecard.json`: as of every run, with the world, and sweeps when there were any."""
        world = self.world
        window = judged_window(world)
        result = scorecard(world.load.source, seed, [track.entry for track in self.tracks], world.load.bad_rows)
        result["world"] = {
            "policy": world.policy.key,
            "start_time_s": world.start_time_s,
            "step_s": world.step_s,
            "requests_per_s_per_replica": world.unit_per_s,
            "replicas_mean": float(world.demand[world.judged :].mean()),
            "replicas_peak": world.peak,
            "judged_from_s": window.start_s,
            "judged_to_s": window.end_s,
            "steps": len(world),
            "steps_not_seen": int((~world.load.seen).sum()),
            "notes": list(world.notes),
        }
        if self.points:
            result["sweeps"] = {
                law: {
                    "ask_late_fraction": self.ask,
                    "best": None if best is None else best.row(),
                    "pareto": [point.row() for point in pareto([one for one in self.points if one.law == law])],
                    "points": [point.row() for point in self.points if point.law == law],
                }
                for law, best in self.best.items()
            }
        return result

    def judged_entry(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entry that gates are about: the candidate of a comparison, tidegate's, else the first."""
        runs: Sequence[Mapping[str, Any]] = document["runs"]
        return next((entry for entry in runs if entry["law"] == self.candidate), runs[0])

    def write(self, folder: Path, document: Mapping[str, Any]) -> None:
        """Timelines and the page."""
        for run in self.runs:
            write_timeline(folder, run)
        write_page(folder / "report.html", self.page(document))

    def page(self, document: Mapping[str, Any]) -> Page:
        """What the page shows."""
        world = self.world
        labels = [track.label for track in self.tracks]
        spots = [
            Spot(
                label=track.label,
                late_fraction=float(track.entry["late_fraction"]),
                regret=float(track.entry["regret"] or 0.0),
                words=name_of(track.label),
            )
            for track in self.tracks
        ]
        spots += [
            Spot(
                label=point.law,
                late_fraction=point.late_fraction,
                regret=point.regret,
                words=f"{name_of(point.law)}, {point.knob} {point.value:g}",
                joined=True,
            )
            for point in self.points
        ]
        return Page(
            title=f"Backtest of {Path(world.load.source).name}",
            verdict=verdict([track.entry for track in self.tracks], labels),
            notes=self._notes(),
            start_s=world.load.start_s,
            step_s=world.step_s,
            judged=world.judged,
            rate_per_s=world.demand * world.unit_per_s,
            seen=world.load.seen,
            need=world.demand,
            tracks=tuple(self.tracks),
            spots=tuple(spots),
            ask=self.ask,
            band=self.band,
        )

    def table(self, document: Mapping[str, Any]) -> str:
        """The scores as text, one column a law."""
        rows = [
            (words, key, form) for key, words, form in ROWS if any(t.entry.get(key) is not None for t in self.tracks)
        ]
        width = max(len(words) for words, _, _ in rows)
        names = [name_of(track.label) for track in self.tracks]
        widths = [max(12, len(name)) for name in names]
        lines = [" " * width + "".join(f"  {name:>{w}}" for name, w in zip(names, widths, strict=True))]
        for words, key, form in rows:
            cells = [shown(track.entry, key, form) for track in self.tracks]
            lines.append(f"{words:<{width}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(cells, widths, strict=True)))
        for law, best in self.best.items():
            found = (
                f"{best.knob} {best.value:g}: {best.late_fraction:.3%} late, {best.regret:.3f}"
                if best
                else f"no value is late for {self.ask:.2%} or less"
            )
            lines.append(f"{name_of(law)} tuned by hand: {found}")
        return "\n".join([*lines, *(f"note: {note}" for note in self._notes())])

    def _notes(self) -> tuple[str, ...]:
        world = self.world
        queue_s, timeout_s = world.policy.spec.slo.queue_seconds, world.policy.spec.routing.queue.timeout_seconds
        unseen = int((~world.load.seen).sum())
        notes = [
            f"start time {world.start_time_s:g} s; one replica carries {world.unit_per_s:.4g} requests/s, so the judged span "
            f"needs {float(world.demand[world.judged :].mean()):.3g} replicas on average and {world.peak} at its peak",
            f"late = waits longer than {queue_s:g} s, or is evicted after {timeout_s:g} s; a replica is paid for from its "
            "start command to its exit; requests are a flow and draining takes no time",
            f"judged from day {world.judged * world.step_s / 86400:.3g} of {len(world) * world.step_s / 86400:.3g}; every law "
            f"is asked every {world.step_s:g} s and sees the load of the step before",
        ]
        if unseen:
            notes.append(
                f"{unseen} of {len(world)} steps were not seen by the collector: laws saw nothing, the load went on"
            )
        if world.load.bad_rows:
            notes.append(f"{world.load.bad_rows} broken rows of the trace were skipped")
        return (*notes, *world.notes)


def read_policy(path: Path) -> ScalingPolicy:
    """The one policy of a file. Raises `BadInput` for what is wrong with it, `BacktestError` for another number of
    documents.
    """
    policies = read_policies(path)
    if len(policies) != 1:
        raise BacktestError(f"{path}: holds {len(policies)} policies; a backtest takes a file with one")
    return policies[0]


def play(load: Load, wanted: Wanted) -> Session:
    """Play everything that is wanted. Raises `TraceError`, `BadInput` or `BacktestError` for what cannot be played."""
    policies = [None if Path(path).is_dir() else read_policy(Path(path)) for path in wanted.compare]
    main = next((policy for policy in reversed(policies) if policy is not None), wanted.policy)
    world = world_of(load, main, wanted.setting)
    session = Session(world)
    table = None
    for path, policy, label in zip(wanted.compare, policies, _labels(wanted.compare), strict=True):
        session.candidate = label
        if policy is None:
            session.tracks.append(read_track(Path(path), label, world))
            continue
        wanted.tell(f"playing {label}")
        other = world_of(load, policy, wanted.setting)
        table = _play_one(session, other, OURS, label, wanted, story(other))
    seen = story(world) if wanted.laws else ()
    for name in wanted.laws:
        wanted.tell(f"playing {name}")
        table = _play_one(session, world, name, name, wanted, seen) or table
    session.band = _band(world, table)
    if wanted.sweep:
        bench = Bench(world, _forecast_at(world, _table(world, wanted)))
        for name in wanted.laws or (OURS,):
            wanted.tell(f"sweeping {name}")
            session.best[name], tried = bench.tuned(name, session.ask)
            session.points += tried
    return session


def _play_one(  # noqa: PLR0913  everything that a run is made of
    session: Session, world: World, law: str, label: str, wanted: Wanted, seen: Sequence[Observation]
) -> ForecastTable | None:
    table = _table(world, wanted) if law == OURS else None
    run = run_law(world, law_of(law, world), label, forecast_at=_forecast_at(world, table), seen=seen)
    session.runs.append(run)
    session.tracks.append(
        Track(
            label=label,
            entry=score(run),
            ready=run.ready,
            starting=run.starting,
            standby=run.standby,
            desired=run.desired,
            late=run.late * world.unit_per_s,
            turns=run.turns,
        )
    )
    return table


def _table(world: World, wanted: Wanted) -> ForecastTable | None:
    """The world's forecasts, None when its policy wants none."""
    if not world.policy.spec.prediction.enabled:
        return None
    wanted.tell("forecasting")
    return forecast_table(world, wanted.cache or cache_folder())


def _forecast_at(world: World, table: ForecastTable | None) -> Any:
    return no_forecast if table is None else table.at_step(world)


def _band(world: World, table: ForecastTable | None) -> Band | None:
    """Median and covered quantile of each forecast's maximum within the start-time horizon, drawn at its end, in the
    trace's own requests.
    """
    if table is None or np.isnan(table.window_max).all():
        return None
    horizon_s = world.start_time_s + world.step_s
    quantile = world.policy.spec.prediction.quantile
    place = int(np.argmin(np.abs(np.array(table.horizons_s) - horizon_s)))
    column = int(np.argmin(np.abs(np.array(table.quantiles) - quantile)))
    middle = table.quantiles.index(0.5)
    made_s = np.asarray(table.start_s + np.arange(1, len(table.words) + 1) * table.step_s, dtype=np.float64)
    scale = world.unit_per_s / world.shown_per_s
    return Band(
        t_s=made_s + horizon_s,
        median=table.window_max[:, place, middle].astype(np.float64) * scale,
        covered=table.window_max[:, place, column].astype(np.float64) * scale,
        quantile=table.quantiles[column],
    )


def _labels(paths: Sequence[str]) -> list[str]:
    """Names of the compared ones: the files' own, told apart when they are the same."""
    names = [Path(path).stem or Path(path).name for path in paths]
    return (
        [f"{name}-{letter}" for name, letter in zip(names, "AB", strict=False)]
        if len(set(names)) < len(names)
        else names
    )


def read_track(folder: Path, label: str, world: World) -> Track:
    """Tidegate's run out of an earlier output. Raises `BacktestError` when there is none, or not of this load."""
    try:
        document = json.loads((folder / "scorecard.json").read_text(encoding="utf-8"))
        entry = next(one for one in document["runs"] if one["law"] == OURS)
        with (folder / f"timeline.{OURS}.csv").open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        columns = {name: np.array([float(row[name]) for row in rows]) for name in COLUMNS}
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise BacktestError(
            f"--compare {folder}: no output of an earlier backtest of {OURS} ({type(error).__name__}: {error})"
        ) from error
    if len(rows) != len(world) or not np.allclose(columns["demand"], world.demand, rtol=1e-4, atol=1e-6):
        raise BacktestError(
            f"--compare {folder}: it is about another load ({len(rows)} steps there, {len(world)} here); play the same "
            "trace, slice, seed and mean"
        )
    return Track(
        label=label,
        entry={**entry, "law": label},
        ready=columns["ready"],
        starting=columns["starting"],
        standby=columns["standby"],
        desired=columns["desired"],
        late=columns["late"],
    )
