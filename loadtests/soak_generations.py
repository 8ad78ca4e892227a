"""What the engines' logs prove: no request ran twice, none was lost on the way, no engine held more than it may.

Each engine process has a log of its own, a line when it takes a generation in and one when it ends; what a killed engine
had begun and not ended, ended with it. An attempt carries its request's id (`BOOT-COUNTER`) or that with `-aN` behind it.
Pure: rows in, problems out. Times are epoch seconds. A generation that was aborted counts as over `NOTICE_S` before its
end, which is what a busy engine may need to see that its connection is gone; a stopped process (SIGSTOP) runs nothing,
so what is aborted as soon as it goes on was over when it was stopped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.soak_client import Record

NOTICE_S: Final = 0.25
LEFT_S: Final = 1.0
"""A client's departure ends its generation within this: ten times the bound that is promised on a machine that is idle."""

_ATTEMPT = re.compile(r"([^-]+-[^-]+)(?:-a\d+)?")


@dataclass(slots=True, kw_only=True)
class EngineLog:
    """One engine process: `ended_s` None = it outlived the run; `stopped`: spans; `drained_s`: acknowledged as drained."""

    name: str
    slot: int
    limit: int
    rows: list[dict[str, Any]]
    ended_s: float | None = None
    drained_s: float | None = None
    stopped: Sequence[tuple[float, float]] = ()


@dataclass(slots=True, kw_only=True)
class Run:
    """One generation in one engine process. `ended`: it was logged to its end; `finished`: all its tokens came."""

    attempt: str
    client_id: str | None
    engine: EngineLog
    begun_s: float
    end_s: float = float("inf")
    ended: bool = False
    finished: bool = False
    tokens: int = 0

    @property
    def base(self) -> str:
        """The request's id, without the attempt."""
        found = _ATTEMPT.fullmatch(self.attempt)
        assert found is not None
        return found[1]

    @property
    def answer_died(self) -> bool:
        """It was finished, and its process died as it was about to answer: nobody got it, nobody could know of it."""
        ended_s = self.engine.ended_s
        return self.finished and ended_s is not None and ended_s < self.end_s + NOTICE_S

    def over_s(self) -> float:
        """When it was surely over: an abort may be noticed late, and nothing is noticed while the process is stopped."""
        if self.finished or not self.ended:
            return self.end_s
        over_s = self.end_s - NOTICE_S
        for begin_s, end_s in self.engine.stopped:
            if begin_s < self.end_s < end_s + NOTICE_S and self.begun_s < end_s:
                over_s = min(over_s, begin_s)
        return over_s


@dataclass(slots=True, kw_only=True)
class Findings:
    """Problems (each with the request ids concerned) and figures."""

    problems: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    generations: int = 0
    finished: int = 0
    again: int = 0
    unlogged: int = 0

    def add(self, what: str, *ids: str) -> None:
        """File a problem."""
        self.problems.append((what, ids))


def runs_of(log: EngineLog) -> list[Run]:
    """The generations of one process in order of their begin. Raises `ValueError` for a log that makes no sense."""
    found: dict[str, Run] = {}
    for row in log.rows:
        attempt = row["request_id"]
        if "begun_s" in row:
            if attempt in found:
                raise ValueError(f"{log.name} took {attempt} in twice")
            found[attempt] = Run(
                attempt=attempt, client_id=row["client_request_id"], engine=log, begun_s=float(row["begun_s"])
            )
            continue
        run = found[attempt]
        run.end_s, run.ended = row["end_s"], True
        run.finished, run.tokens = not row["aborted"], row["tokens"]
    for run in found.values():
        if not run.ended and log.ended_s is not None:
            run.end_s = max(log.ended_s, run.begun_s)
    return list(found.values())


def check(logs: Iterable[EngineLog], records: Iterable[Record], boots: Iterable[str]) -> Findings:
    """All rules over all logs. `boots`: of the routers, which begin every id."""
    findings = Findings()
    by_base: dict[str, list[Run]] = defaultdict(list)
    attempts: dict[str, Run] = {}
    allowed = tuple(f"{boot}-" for boot in boots)
    for log in logs:
        try:
            runs = runs_of(log)
        except ValueError as error:
            findings.add(str(error))
            continue
        findings.generations += len(runs)
        findings.finished += sum(run.finished for run in runs)
        findings.unlogged += sum(not run.ended for run in runs)
        for run in runs:
            if not run.attempt.startswith(allowed):
                findings.add(f"{log.name} ran {run.attempt}, an id that no router gave", run.attempt)
            if (other := attempts.setdefault(run.attempt, run)) is not run:
                findings.add(f"{run.attempt} was sent to {other.engine.name} and to {log.name}", run.attempt)
            by_base[run.base].append(run)
        _engine(log, runs, findings)
    for base, runs in by_base.items():
        findings.again += len(runs) > 1
        _once(base, sorted(runs, key=lambda run: run.begun_s), findings)
    _clients(by_base, list(records), findings)
    return findings


def _once(base: str, runs: list[Run], findings: Findings) -> None:
    """One request: its generations one after the other, at most one of them finished, all for the same client. One whose
    answer died with its process may be followed by another, if the policy calls requests idempotent.
    """
    if sum(run.finished and not run.answer_died for run in runs) > 1:
        told = ", ".join(f"{run.attempt} at {run.engine.name}" for run in runs if run.finished)
        findings.add(f"{base} was generated to its end more than once: {told}", base)
    for index, run in enumerate(runs):
        for later in runs[index + 1 :]:
            if later.begun_s < run.over_s():
                findings.add(
                    f"{base} ran twice at once: {run.attempt} at {run.engine.name} until {run.over_s():.3f}, "
                    f"{later.attempt} at {later.engine.name} from {later.begun_s:.3f}",
                    base,
                )
    if len({run.client_id for run in runs}) > 1:
        findings.add(f"{base} stands for several clients' requests: {[run.client_id for run in runs]}", base)


def _engine(log: EngineLog, runs: list[Run], findings: Findings) -> None:
    """One engine process: never more than its limit (and N - 1 by contract), nothing after its drain."""
    moments = sorted(
        [(run.begun_s, 1, run.attempt) for run in runs] + [(max(run.over_s(), run.begun_s), -1, "") for run in runs]
    )
    running = 0
    for moment_s, step, attempt in moments:
        running += step
        if running > log.limit:
            findings.add(f"{log.name} had {running} at {moment_s:.3f}, {log.limit} are allowed", attempt)
            break
    if log.drained_s is not None:
        for run in runs:
            if run.begun_s > log.drained_s or (run.end_s > log.drained_s and not run.finished):
                findings.add(f"{log.name} had {run.attempt} after both routers had said drained", run.attempt)


def _clients(by_base: dict[str, list[Run]], records: list[Record], findings: Findings) -> None:
    """The clients' side: one id for each request, and an answer that came from the generation with that id."""
    by_client: dict[str, set[str]] = defaultdict(set)
    by_attempt = {run.attempt: run for runs in by_base.values() for run in runs}
    for base, runs in by_base.items():
        for run in runs:
            if run.client_id is not None:
                by_client[run.client_id].add(base)
    seen: dict[str, int] = {}
    for record in records:
        bases = by_client.get(record.client_id or "", set())
        if len(bases) > 1:
            findings.add(f"{record.client_id}, sent once, ran under several ids: {sorted(bases)}", *bases)
        if record.client_id is None and record.answer_id is not None:
            before = seen.setdefault(record.answer_id, record.asked.number)
            if before != record.asked.number:
                findings.add(f"requests {before} and {record.asked.number} got the id {record.answer_id}")
        _answered(record, by_attempt, findings)
        _left(record, [run for base in bases for run in by_base[base]], findings)


def _answered(record: Record, by_attempt: dict[str, Run], findings: Findings) -> None:
    """An answer that is from a generation: that generation is this request's."""
    if record.generation is None:
        return
    run = by_attempt.get(record.generation)
    if run is None:
        findings.add(f"request {record.asked.number} was answered from {record.generation}, which no engine ran")
        return
    mine = run.client_id == record.client_id if record.client_id else run.base == record.answer_id
    if not mine:
        findings.add(f"request {record.asked.number} was answered from {run.attempt}, another's", run.base)
    if record.outcome == "answered" and not (run.finished and run.tokens == record.asked.tokens):
        findings.add(f"request {record.asked.number} was answered whole, {run.attempt} was not generated so", run.base)


def _left(record: Record, runs: list[Run], findings: Findings) -> None:
    """A client that left: its generation ends soon after, unless its process cannot notice or was killed."""
    leave = record.asked.leave
    if record.outcome != "left" or leave is None:
        return
    for run in runs:
        if leave.how == "body":
            findings.add(f"{run.attempt} was run although its body never came whole", run.base)
        elif run.ended and run.end_s > record.ended_s + LEFT_S and not run.engine.stopped:
            findings.add(
                f"the client of {run.attempt} left at {record.ended_s:.3f}, "
                f"{run.engine.name} ran it from {run.begun_s:.3f} to {run.end_s:.3f}",
                run.base,
            )
