"""The backtest's table for `docs/benchmarks.md`: laws x traces x start times, late fraction and GPU-hours over the
clairvoyant's.

    python -m loadtests.bench.backtest FOLDER_OF_TRACES [--start-times 120,300,600] [--tuned hpa] [--gate-world]

Traces are not shipped; rows of `TRACES` whose file is in the folder (or in its `rates`) are played, each judged from
its own day. Cells (a trace and a start time) are shared out among processes. `--tuned` adds hand-tuned points, picked
with hindsight; `--gate-world` adds HPA tuned by hand in the world of the recipe (1-minute steps, rates flat within their
minute, judged from day 3) beside the same in this one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loadtests.backtest_forecasts import cache_folder, forecast_table
from loadtests.backtest_load import load_of
from loadtests.backtest_report import name_of
from loadtests.backtest_run import no_forecast, run_law
from loadtests.backtest_score import score
from loadtests.backtest_sweep import OURS, Bench, law_names, law_of
from loadtests.backtest_world import Setting, World, default_policy, world_of
from loadtests.trace import read_trace

ASK = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace of the table: its name there, its file, and the day it is judged from."""

    name: str
    file: str
    judge_from_day: float


TRACES = (
    Source(name="Azure 2024 code", file="azure2024_code_1min_digitised.parquet", judge_from_day=2),
    Source(name="ServeGen m-small", file="servegen_m_small_10min.parquet", judge_from_day=5),
    Source(name="Twitter 2021", file="twitter2021_1min.parquet", judge_from_day=2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One trace with one start time, and what to play in it."""

    source: Source
    path: Path
    start_time_s: float
    laws: tuple[str, ...]
    tuned: tuple[str, ...]
    cache: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a row of the table says in one cell, the CPU seconds it took, and how many ticks those were."""

    row: str
    source: Source
    start_time_s: float
    late_fraction: float
    regret: float
    cpu_s: float
    ticks: int
    words: str = ""

    @property
    def text(self) -> str:
        """As it stands in the table; bold when it meets the ask."""
        words = f"{self.late_fraction:.2%} {self.regret:.2f}{f' ({self.words})' if self.words else ''}"
        return f"**{words}**" if self.late_fraction <= ASK else words


def a_world(cell: Cell) -> World:
    """The world of a cell."""
    load = load_of([read_trace(cell.path)])
    setting = Setting(judge_from_day=cell.source.judge_from_day)
    return world_of(load, default_policy(cell.start_time_s), setting)


def play(cell: Cell) -> list[Result]:
    """All rows of one cell."""
    world = a_world(cell)
    results: list[Result] = []

    def noted(row: str, late: float, regret: float, began_s: float, words: str = "") -> None:
        results.append(
            Result(
                row=row,
                source=cell.source,
                start_time_s=cell.start_time_s,
                late_fraction=late,
                regret=regret,
                cpu_s=time.process_time() - began_s,
                ticks=len(world),
                words=words,
            )
        )

    began_s = time.process_time()
    table = forecast_table(world, cell.cache) if OURS in (*cell.laws, *cell.tuned) else None
    if table is not None:
        noted("(forecasts)", 0.0, 0.0, began_s)
    forecast_at = no_forecast if table is None else table.at_step(world)
    began_s = time.process_time()
    bench = Bench(world, forecast_at)
    noted("(observations)", 0.0, 0.0, began_s)
    for law in cell.laws:
        began_s = time.process_time()
        entry = score(run_law(world, law_of(law, world), law, forecast_at=forecast_at, seen=bench.seen))
        noted(name_of(law), entry["late_fraction"], entry["regret"], began_s)
    for law in cell.tuned:
        began_s = time.process_time()
        best, _ = bench.tuned(law, ASK)
        if best is not None:
            noted(f"{name_of(law)}, tuned by hand", best.late_fraction, best.regret, began_s, f"{best.value:g}")
    return results


def gate_world(path: Path, start_time_s: float) -> str:
    """HPA tuned by hand on one start time: in the recipe's world, and in this one, as a row of a table."""
    trace, cells = read_trace(path), []
    for step_s, flat in ((60.0, True), (15.0, False)):
        load = load_of([trace], step_s=step_s, flat=flat)
        best, _ = Bench(world_of(load, default_policy(start_time_s), Setting(judge_from_day=3))).tuned("hpa", ASK)
        assert best is not None
        cells.append(f"{best.late_fraction:.2%} {best.regret:.3f} (target {best.value:g})")
    return f"| {start_time_s / 60:g} min | {' | '.join(cells)} |"


def table_of(results: Sequence[Result]) -> str:
    """The table in Markdown: a row a law and trace, a column a start time."""
    times = sorted({result.start_time_s for result in results})
    lines = [
        "| trace | law | " + " | ".join(f"start {at / 60:g} min" for at in times) + " |",
        "|---|---|" + "---|" * len(times),
    ]
    rows = dict.fromkeys((result.source.name, result.row) for result in results if not result.row.startswith("("))
    for trace, row in rows:
        cells = {
            result.start_time_s: result.text for result in results if (result.source.name, result.row) == (trace, row)
        }
        lines.append(f"| {trace} | {row} | " + " | ".join(cells.get(at, "–") for at in times) + " |")
    return "\n".join(lines)


def costs_of(results: Sequence[Result]) -> str:
    """CPU of each row, per tick and per week of ticks of 15 s."""
    lines = ["| | us a tick | s a week |", "|---|---|---|"]
    for row in dict.fromkeys(result.row for result in results if "tuned" not in result.row):
        mine = [result for result in results if result.row == row]
        per_tick = sum(result.cpu_s for result in mine) / sum(result.ticks for result in mine)
        lines.append(f"| {row} | {per_tick * 1e6:.0f} | {per_tick * 40320:.1f} |")
    return "\n".join(lines)


def found(folder: Path) -> list[tuple[Source, Path]]:
    """The traces of the table that are there."""
    places = [(source, place / source.file) for source in TRACES for place in (folder, folder / "rates")]
    return [(source, path) for source, path in places if path.is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.backtest", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the traces of the table")
    parser.add_argument("--laws", default=",".join(law_names()))
    parser.add_argument("--start-times", default="120,300,600", help="in seconds, joined by commas")
    parser.add_argument("--tuned", default="", help="laws to be tuned by hand as well, joined by commas")
    parser.add_argument("--gate-world", action="store_true", help="HPA tuned by hand in the recipe's world too")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cache", type=Path, default=cache_folder())
    args = parser.parse_args(argv)
    sources = found(args.folder)
    if not sources:
        names = ", ".join(source.file for source in TRACES)
        parser.error(f"{args.folder}: none of {names} is there")
    times = [float(text) for text in args.start_times.split(",")]
    laws, tuned = (tuple(name for name in text.split(",") if name) for text in (args.laws, args.tuned))
    began_s = time.perf_counter()
    # The longest cells first, so that no process is left with one of them at the end.
    cells = [
        Cell(source=source, path=path, start_time_s=at, laws=laws, tuned=tuned, cache=args.cache)
        for source, path in reversed(sources)
        for at in times
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.processes, mp_context=spawn) as pool:
        played = list(pool.map(play, cells))
        extra = [(path, at) for source, path in sources if args.gate_world and source is TRACES[0] for at in times]
        gates = list(pool.map(gate_world, *zip(*extra, strict=True))) if extra else []
    results = [result for at in range(len(times)) for part in played[at :: len(times)] for result in part]
    results.sort(key=lambda result: [source.name for source, _ in sources].index(result.source.name))
    print(table_of(results))
    print(f"\n{len(cells)} cells in {time.perf_counter() - began_s:.0f} s on {args.processes} processes; CPU:\n")
    print(costs_of(results))
    if gates:
        print(f"\nHPA tuned by hand, late <= {ASK:.1%}, judged from day 3:\n")
        print("| start time | 1-minute steps, flat | 15 s steps, linear |\n|---|---|---|")
        print("\n".join(gates))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
