"""`tidegate demo`: Tidegate and the HPA law side by side on this machine, under one load, with a verdict at the end.

This module is the command: flags, banner, screen, signals, files. The parts: `demo_load` (what is played),
`demo_policy` (the two policies), `demo_stack` (processes), `demo_run` (the run), `demo_watch` (what is seen and kept),
`demo_screen` (how it is shown), `report` (the page). On a terminal it shows a live table, elsewhere a line every ten
seconds; with `--json` stdout has the scorecard alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from loadtests.demo_load import FACTOR, START_S, DemoLoad, load_from
from loadtests.demo_policy import QUEUE_S, STEP_S
from loadtests.demo_run import DemoRun, Finished
from loadtests.demo_screen import View, plain_line, screen, verdict_sentence, verdict_table
from loadtests.demo_stack import Stack
from loadtests.errors import BadInput
from loadtests.report import Recording, write_report
from loadtests.scorecard import scorecard, write_scorecard

LINE_EVERY_S = 10.0


def run_demo(args: argparse.Namespace) -> int:
    """0 when it ended with a verdict, 128 + N when signal N ended it. Raises `BadInput`, `TraceError` and
    `StackFailed`.
    """
    load = load_from(args)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {args.out}: {error.strerror}; a folder that can be written is needed") from error
    console = Console(stderr=args.json, highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_demo(args, load, Path(folder), console))


async def _demo(args: argparse.Namespace, load: DemoLoad, folder: Path, console: Console) -> int:
    title, *terms = banner(load, args.seed)
    console.print(title)
    for line in terms:
        _say(console, line)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    run = DemoRun(load, folder, _shower(console, live), lambda stacks: _say_ports(console, stacks))
    signals = _stop_on_signals(run)
    context: AbstractContextManager[Any] = live or nullcontext()
    try:
        with context:
            finished = await run.run()
    except asyncio.CancelledError:
        if not signals:
            raise
        console.print(f"stopped by {signals[0].name}; every process that was started has ended")
        return 128 + signals[0]
    for problem in finished.problems:
        console.print(f"warning: {problem}", style="yellow", markup=False)
    _conclude(args, load, finished, console)
    return 0


def banner(load: DemoLoad, seed: int) -> list[str]:
    """What is about to happen, and on which terms."""
    return [
        f"[bold]tidegate demo[/bold]: {load.title}",
        f"Time runs {FACTOR} times as fast: a start of {START_S:g} s stands for {START_S * FACTOR / 60:g} minutes. "
        f"Waiting over {QUEUE_S:g} s is late. GPU-hours are on the load's own clock.",
        *load.notes,
        f"{len(load.planned)} requests in {load.end_s:.0f} s to each of two stacks: router, controller, replicas of "
        f"{load.slots} slots, all of them real processes; only what an engine computes is emulated.",
        f"The first {load.warm_up_s:.0f} s are warm-up and not scored. Seed {seed}.",
    ]


def _say(console: Console, line: str) -> None:
    """A line of the banner, wrapped and indented on a terminal, whole elsewhere."""
    if console.is_terminal:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    else:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _say_ports(console: Console, stacks: list[Stack]) -> None:
    for stack in stacks:
        _say(console, f"{stack.law}: data {stack.data_url} admin {stack.admin_url} controller {stack.web_url}")


def _shower(console: Console, live: Live | None) -> Callable[[View], None]:
    """Shows views: all of them on a terminal, one in `LINE_EVERY_S` elsewhere."""
    if live is not None:
        return lambda view: live.update(screen(view), refresh=True)
    shown: list[float] = []

    def line(view: View) -> None:
        if not shown or view.t_s >= shown[-1] + LINE_EVERY_S:
            shown.append(view.t_s)
            console.print(plain_line(view), soft_wrap=True, markup=False)

    return line


def _stop_on_signals(run: DemoRun) -> list[signal.Signals]:
    """The first signal ends the run in order, the second kills everything. Returns the list that they are noted in."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "called from the demo's own task"
    noted: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        noted.append(number)
        if len(noted) == 1:
            task.cancel()
        else:
            run.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    return noted


def _conclude(args: argparse.Namespace, load: DemoLoad, finished: Finished, console: Console) -> None:
    """Scores, files, verdict."""
    pairs = zip(finished.watches, finished.replicas, strict=True)
    scores = [watch.score(replicas, finished.origin_epoch_s) for watch, replicas in pairs]
    document = scorecard(load.title, args.seed, scores, load.bad_rows)
    document |= {"time_factor": FACTOR, "scored_s": [load.warm_up_s, load.end_s]}
    card = write_scorecard(args.out, document)
    sentence = verdict_sentence(scores)
    recording = recorded(load, args.seed, finished, scores)
    page = write_report(args.out / "report.html", recording)
    if args.json:
        json.dump(document, sys.stdout, indent=2)
        print()
    else:
        console.print(verdict_table(scores))
    console.print(Text(sentence, style="bold"), soft_wrap=not console.is_terminal)
    console.print(f"written: {card} {page}", soft_wrap=True)


def recorded(load: DemoLoad, seed: int, finished: Finished, scores: list[dict[str, Any]]) -> Recording:
    """What the report is made of."""
    bins = [0.0] * math.ceil(load.end_s / STEP_S)
    for request in load.planned:
        bins[min(len(bins) - 1, int(request.at_s / STEP_S))] += 1 / STEP_S
    return Recording(
        title=f"Tidegate beside the HPA law: {load.title}",
        verdict=verdict_sentence(scores),
        notes=tuple(banner(load, seed)[1:]),
        scored=(load.warm_up_s, load.end_s),
        load=tuple(((place + 0.5) * STEP_S, rate) for place, rate in enumerate(bins)),
        need=tuple((float(second), load.need(second)) for second in range(int(load.end_s))),
        tracks=tuple(watch.track(score) for watch, score in zip(finished.watches, scores, strict=True)),
    )
