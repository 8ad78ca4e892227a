"""`tidegate replay`: read a trace, play it, write what became of every request and the score.

Knows nothing of laws and replicas: what scaled the server is unknown here, so those fields of the scorecard are null.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.arrivals import from_rates
from loadtests.replay import Outcome, Planned, PlayOptions, planned_requests, play
from loadtests.replay_answers import OUTCOMES, Answer
from loadtests.replay_client import ReplayClient, ReplayError, Target
from loadtests.scorecard import Slo, percentile, run_score, scorecard, write_scorecard
from loadtests.trace import RateTrace, Trace, read_trace

PREFLIGHT_S = 10.0
"""How long the server may take to say which models it has."""
LAG_S = 0.1
"""If one request in a hundred was sent later than this, the client was too slow and says so."""
COLUMNS = tuple(field.name for field in fields(Outcome))


def run_replay(args: argparse.Namespace) -> int:
    """Run the command; 0 when every request was accounted for, 1 when some were lost or none was answered. Raises `TraceError` or
    `ReplayError` (exit 2).
    """
    _check(args)
    trace = _requests(args)
    planned = planned_requests(trace, args.limit)
    target = Target.parse(args.url)
    model = args.model or uvloop.run(choose_model(target, asked_by_trace=trace.model is not None))
    _prepare(args.out)
    epoch_s = datetime.now(UTC).timestamp()
    options = PlayOptions(model=model, timeout_s=args.timeout_s, run=f"replay-{int(epoch_s * 1000):x}", words=True)
    outcomes = uvloop.run(_play(planned, args.url, options))
    run = run_score(None, outcomes, Slo(queue_s=args.queue_s))
    document = scorecard(str(args.trace), args.seed, [run], bad_rows=trace.bad_rows)
    requests_path = write_requests(args.out, outcomes)
    score_path = write_scorecard(args.out, document)
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        _tell(run, outcomes, [requests_path, score_path])
    return 1 if run["lost"] or not run["answered"] else 0


async def choose_model(target: Target, *, asked_by_trace: bool = False) -> str | None:
    """The model to ask for when nobody said: the only one the server has; None when the trace names its own, or the
    server lists none.

    Raises `ReplayError` for a server that cannot be reached, or that has several models.
    """
    where = target.authority
    try:
        async with asyncio.timeout(PREFLIGHT_S), ReplayClient(target) as client:
            answer = Answer()
            await client.request("GET /v1/models", {}, b"", answer)
    except TimeoutError as error:
        raise ReplayError(
            f"--url: {where} accepted a connection but did not answer within {PREFLIGHT_S:g} s"
        ) from error
    except OSError as error:
        raise ReplayError(f"--url: {where} cannot be reached: {error.strerror or error}") from error
    if asked_by_trace:
        return None
    names = _model_names(answer.text)
    if len(names) > 1:
        raise ReplayError(f"--model: {where} has {', '.join(names)}; name one")
    return names[0] if names else None


def write_requests(folder: Path, outcomes: Sequence[Outcome]) -> Path:
    """Write one row a request into `folder`: `requests.parquet`, or `requests.csv` where pyarrow is missing; returns
    the path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in outcomes] for name in COLUMNS}
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        path = folder / "requests.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            writer.writerows(zip(*columns.values(), strict=True))
        return path
    path = folder / "requests.parquet"
    seconds = {name: pa.float64() for name in COLUMNS if name.endswith("_s")}
    typed = {name: pa.array(column, type=seconds.get(name)) for name, column in columns.items()}
    pq.write_table(pa.table(typed), path, compression="zstd")
    return path


def _check(args: argparse.Namespace) -> None:
    for flag, value in (("--speed", args.speed), ("--timeout-s", args.timeout_s), ("--queue-s", args.queue_s)):
        if not (math.isfinite(value) and value > 0):
            raise ReplayError(f"{flag}: {value}; allowed is a finite number above 0")
    if args.limit is not None and args.limit < 1:
        raise ReplayError(f"--limit: {args.limit}; allowed is 1 or more")


def _prepare(folder: Path) -> None:
    """Make the output folder before an hour of load is played, not after. Raises `ReplayError` when it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReplayError(f"--out: {folder} cannot be made: {error.strerror or error}") from error


def _requests(args: argparse.Namespace) -> Trace:
    """The trace at the asked speed, from its first arrival on. Rates become arrivals; as many come as were recorded."""
    trace = read_trace(args.trace, args.trace_format, args.skip_bad_rows)
    if isinstance(trace, RateTrace):
        drawn = from_rates(trace.scale(args.speed), seed=args.seed, limit=args.limit)
        return replace(drawn, bad_rows=trace.bad_rows)
    return trace.slice(trace.arrival_s[0]).scale(args.speed)


async def _play(planned: Sequence[Planned], url: str, options: PlayOptions) -> list[Outcome]:
    """Play, with a progress bar on a terminal and nothing in a pipe."""
    if not sys.stderr.isatty():
        return await play(planned, url, options=options)
    counts: Counter[str] = Counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=len(planned))

        def decided(outcome: Outcome) -> None:
            counts[outcome.outcome] += 1
            seen = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])
            progress.update(task, advance=1, description=seen)

        return await play(planned, url, options=options, on_outcome=decided)


def _model_names(document: bytes) -> list[str]:
    try:
        models = json.loads(document)["data"]
        return [str(model["id"]) for model in models]
    except (ValueError, KeyError, TypeError):
        return []


def _tell(run: dict[str, Any], outcomes: Sequence[Outcome], written: Sequence[Path]) -> None:
    table = Table(title="replay", title_justify="left", show_header=False)
    rows = [(name, str(run[name])) for name in ("requests", *OUTCOMES)]
    rows += [("late", _percent(run["late_fraction"])), ("attainment", _percent(run["attainment"]))]
    rows += [(f"time to first token, {name}", _seconds(run[f"ttft_{name}_s"])) for name in ("p50", "p99")]
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    reasons = Counter(one.detail for one in outcomes if one.detail)
    for detail, count in reasons.most_common(3):
        console.print(f"{count} x {detail}", markup=False, highlight=False)
    lag = percentile([one.sent_s - one.planned_s for one in outcomes], 0.99)
    if lag is not None and lag > LAG_S:
        console.print(f"this client was too slow: 1 request in 100 was sent {lag:.2f} s late or more", markup=False)
    for path in written:
        note = " (install tidegate[report] for Parquet)" if path.suffix == ".csv" else ""
        console.print(f"wrote {path}{note}", markup=False, highlight=False, soft_wrap=True)


def _percent(share: float | None) -> str:
    return "unknown: no answer carried server-timing" if share is None else f"{share:.2%}"


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.3f} s"
