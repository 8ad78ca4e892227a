"""The soak: two routers, eight engines, clients that behave badly and a schedule of faults; everything that must hold is
checked.

`python -m loadtests.soak --requests 20000 --seed 1` (or `make soak`). It ends with one table and exit code 0, or 1 when
anything did not hold, with a report in the folder of `--out`. The seed fixes what every request is and what goes wrong
between which requests; which request meets which fault depends on timing, so a replay shows the same situation, not
always the same outcome. The parts: `soak_plan` (the schedule), `soak_requests` and `soak_wire` (bytes), `soak_judge`
(what an answer may be), `soak_client` (clients), `soak_controller` (tables), `soak_chaos` (faults), `soak_stack`
(processes), `soak_watch` (gauges), `soak_generations` (what the engines' logs prove), `soak_run` (the run),
`soak_report` (words).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadtests.errors import BadInput
from loadtests.soak_plan import schedule
from loadtests.soak_report import progress, summary, write_report, write_samples
from loadtests.soak_run import Options, Soak, new_soak, run_soak

LINE_EVERY_S: Final = 5.0
SCREEN_EVERY_S: Final = 0.25
LOGS: Final = ("*.log", "*.generations", "report.txt", "problems.json", "schedule.txt", "samples.csv")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(prog="python -m loadtests.soak", description=(__doc__ or "").partition("\n\n")[0])
    made.add_argument("--requests", type=int, default=20_000, help="how many requests to send (default 20000)")
    made.add_argument("--seed", type=int, default=1, help="fixes requests and faults (default 1)")
    made.add_argument("--rate", type=float, default=150.0, help="requests begun per second (default 150)")
    made.add_argument(
        "--out", type=Path, default=Path("out/soak"), help="folder for logs and report (default out/soak)"
    )
    made.add_argument("--show-schedule", action="store_true", help="print the schedule of faults and end")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all held, 1 when not, 2 for bad flags, 130 after Ctrl-C."""
    args = parser().parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    try:
        options = _options(args)
        if args.show_schedule:
            console.print("\n".join(map(str, schedule(args.seed, args.requests))), markup=False)
            return 0
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_soak(options, console))
    except BadInput as error:
        print(f"soak: {error}", file=sys.stderr)
        return error.exit_code


def _options(args: argparse.Namespace) -> Options:
    """Raises `BadInput`."""
    if args.requests < 1:
        raise BadInput(f"--requests {args.requests}: must be at least 1")
    if not 0 < args.rate < float("inf"):
        raise BadInput(f"--rate {args.rate:g}: must be above 0")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        for pattern in LOGS:
            for file in args.out.glob(pattern):
                file.unlink()
        (args.out / "schedule.txt").write_text("\n".join(map(str, schedule(args.seed, args.requests))) + "\n")
    except OSError as error:
        raise BadInput(f"--out {args.out}: {error.strerror}; a folder that can be written is needed") from error
    return Options(requests=args.requests, seed=args.seed, rate_per_s=args.rate, folder=args.out)


async def _soak(options: Options, console: Console) -> int:
    command = (
        f"python -m loadtests.soak --requests {options.requests} --seed {options.seed} --rate {options.rate_per_s:g}"
    )
    console.print(f"{command}: schedule in {options.folder / 'schedule.txt'}", markup=False)
    soak = new_soak(options)
    loop = asyncio.get_running_loop()
    task = loop.create_task(run_soak(soak))
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    shown = loop.create_task(_show(soak, console))
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
        console.print(f"stopped by signal {stopped[0]}; its processes are ended", markup=False)
        return 128 + stopped[0]
    finally:
        shown.cancel()
        await asyncio.gather(shown, return_exceptions=True)
    return _end(soak, console, command)


def _end(soak: Soak, console: Console, command: str) -> int:
    write_samples(soak)
    if soak.clients is not None and soak.phase == "check":
        console.print(summary(soak))
    if not soak.problems:
        console.print("all held", markup=False)
        return 0
    for problem in soak.problems[:10]:
        console.print(f"after {problem.begun} requests: {problem.what[:500]}", markup=False)
    console.print(f"{len(soak.problems)} problems; report: {write_report(soak, command)}", markup=False)
    console.print(f"replay the schedule: {command}", markup=False)
    return 1


async def _show(soak: Soak, console: Console) -> None:
    """A live line on a terminal, a line every five seconds elsewhere."""
    if not console.is_terminal:
        while True:
            console.print(progress(soak), markup=False)
            await asyncio.sleep(LINE_EVERY_S)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(Text(progress(soak)), refresh=True)
            await asyncio.sleep(SCREEN_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
