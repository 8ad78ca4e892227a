"""How a soak is shown: one line while it runs, one table at its end, and for a failed one a report that can be followed up.

The report has, for each problem, the request as planned and as it ended, every line of every log that names one of its
ids, and the schedule around it. Nothing here decides anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from loadtests.soak_judge import OUTCOMES, VIOLATIONS
from loadtests.soak_run import Problem, Soak

AROUND: Final = 60
"""Of the schedule, what was done while this many requests before and after had begun."""

PROBLEMS_SHOWN: Final = 50
LINES_SHOWN: Final = 40


def progress(soak: Soak) -> str:
    """The run at one moment, in a line."""
    parts = [f"{soak.phase:<8}", f"{soak.begun:>6}/{soak.options.requests} begun"]
    if soak.clients is not None:
        tally = soak.clients.tally
        said = [f"{tally.outcomes[outcome]} {outcome}" for outcome in OUTCOMES if tally.outcomes[outcome]]
        parts.append(", ".join(said))
    for watch in soak.watches:
        if watch.samples:
            last = watch.samples[-1]
            parts.append(f"{watch.name} {last.in_flight}+{last.queued} {last.rss_kib / 1024:.0f} MiB")
    if soak.chaos is not None and soak.chaos.history:
        parts.append(soak.chaos.history[-1][2])
    parts.append(f"{len(soak.problems)} problems")
    return " | ".join(parts)


def summary(soak: Soak) -> Table:
    """The table at the end."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_column(style="bold")
    table.add_column()
    clients, found = soak.clients, soak.findings
    assert clients is not None
    streams = sum(record.asked.stream for record in clients.records)
    rate = soak.options.requests / soak.load_s if soak.load_s else 0.0
    table.add_row("requests", f"{len(clients.records)}, {streams} streamed, {soak.load_s:.0f} s, {rate:.0f} a second")
    for outcome in (*OUTCOMES, *VIOLATIONS):
        if count := clients.tally.outcomes[outcome]:
            table.add_row(f"  {outcome}", f"{count}{_codes(soak, outcome)}")
    faults = len(soak.chaos.history) if soak.chaos is not None else 0
    engines = len(soak.stack.engines) if soak.stack is not None else 0
    table.add_row("faults", f"{faults} steps, {engines} engine processes")
    table.add_row(
        "generations",
        f"{found.generations}, {found.finished} to their end, {found.unlogged} ended with their process; "
        f"{found.again} requests were generated again after an attempt that was over",
    )
    for memory in soak.memory:
        table.add_row(
            memory.router,
            f"{memory.before_mib:.1f} MiB before, {memory.warm_mib:.1f} warm, {memory.after_mib:.1f} after; "
            f"files {memory.files_before} before, {memory.files_after} after",
        )
    table.add_row("recovery", f"{soak.recovery_s:.1f} s until both routers trusted every endpoint again")
    table.add_row("problems", str(len(soak.problems)))
    return table


def write_samples(soak: Soak) -> None:
    """What was seen of the routers each second, as a table: memory is best judged as a line."""
    rows = ["router,begun,rss_kib,files,in_flight,queued"]
    for watch in soak.watches:
        for one in watch.samples:
            rows.append(f"{watch.name},{one.begun},{one.rss_kib},{one.files},{one.in_flight},{one.queued}")
    (soak.options.folder / "samples.csv").write_text("\n".join(rows) + "\n")


def _codes(soak: Soak, outcome: str) -> str:
    """What made up an outcome, by status and code."""
    assert soak.clients is not None
    counts: dict[str, int] = {}
    for record in soak.clients.records:
        if record.outcome == outcome and record.code:
            said = f"{record.status} {record.code}"
            counts[said] = counts.get(said, 0) + 1
    shown = ", ".join(f"{count} {said}" for said, count in sorted(counts.items(), key=lambda row: -row[1]))
    return f" ({shown})" if shown else ""


def write_report(soak: Soak, command: str) -> Path:
    """The report of a run with problems; gives the file."""
    path = soak.options.folder / "report.txt"
    lines = [f"replay the schedule: {command}", "(which request meets which fault depends on timing)", ""]
    logs = _logs(soak.options.folder)
    for number, problem in enumerate(soak.problems[:PROBLEMS_SHOWN], 1):
        lines += [
            f"== problem {number}, after {problem.begun} requests",
            problem.what,
            *_context(soak, problem, logs),
            "",
        ]
    if len(soak.problems) > PROBLEMS_SHOWN:
        lines.append(f"{len(soak.problems) - PROBLEMS_SHOWN} more problems: problems.json has all")
    path.write_text("\n".join(lines) + "\n")
    problems = [asdict(problem) for problem in soak.problems]
    (soak.options.folder / "problems.json").write_text(json.dumps(problems, indent=1))
    return path


def _logs(folder: Path) -> dict[str, list[str]]:
    """All lines of all logs, by file."""
    files = sorted([*folder.glob("*.log"), *folder.glob("*.generations")])
    return {file.name: file.read_text(errors="replace").splitlines() for file in files}


def _client_ids(wanted: set[str], logs: dict[str, list[str]]) -> set[str]:
    """The clients' own ids of the requests whose attempts are named."""
    found = set()
    for name, lines in logs.items():
        if name.endswith(".generations"):
            rows = (json.loads(line) for line in lines if line.endswith("}") and any(id_ in line for id_ in wanted))
            found |= {row["client_request_id"] for row in rows}
    return found - {None}


def _context(soak: Soak, problem: Problem, logs: dict[str, list[str]]) -> Iterable[str]:
    wanted = {id_ for id_ in problem.ids if id_}
    around = problem.begun
    clients = _client_ids(wanted, logs)
    if soak.clients is not None:
        for record in soak.clients.records:
            own = {record.client_id, record.answer_id, record.generation} - {None}
            if own & wanted or record.client_id in clients:
                yield f"  request: {record}"
                around = record.asked.number
                wanted |= {id_ for id_ in own if id_}
    shown = 0
    for name, lines in logs.items():
        for line in lines:
            if wanted and any(id_ in line for id_ in wanted) and shown < LINES_SHOWN:
                shown += 1
                yield f"  {name}: {line}"
    if soak.chaos is not None:
        for at_s, begun, what in soak.chaos.history:
            if abs(begun - around) <= AROUND:
                yield f"  done at {at_s:.3f} with {begun} begun: {what}"
