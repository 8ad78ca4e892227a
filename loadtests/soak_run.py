"""One soak from the first process to the last check.

Phases: start (two routers, the pool), load (visits and faults side by side), heal (everything is put right), recovery
(light load until both routers trust every endpoint again, then a burst that must be answered whole), settle (gauges 0,
connections closed), stop, check (`soak_generations` over all logs, counters against records). What must not happen is
filed as a `Problem` when it is seen; the run goes on, so that one report has all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from loadtests.soak_chaos import Chaos
from loadtests.soak_client import Clients
from loadtests.soak_controller import Controller
from loadtests.soak_generations import EngineLog, Findings, check
from loadtests.soak_judge import VIOLATIONS
from loadtests.soak_plan import LIMITS, ROUTERS, Asked, Visit, schedule, visits
from loadtests.soak_stack import Stack, StackFailed
from loadtests.soak_watch import Sample, Watch

RECOVER_S: Final = 75.0
"""Twice the longest back-off of an ejected endpoint (30 s), and the probes' pace."""

BURST: Final = 40
WARM_SHARE: Final = 0.4
"""Memory is compared with what it was after this share of the requests: by then every bounded store has filled."""

GROWTH_MIB: Final = 10.0
"""Freed bodies of megabytes leave holes that come and go: 5 MiB up or down from one second to the next were seen. A small
leak is found by counting blocks in process (`tests/router/test_soak_rows.py`).
"""

PROBLEMS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run. `folder` is emptied of earlier logs by the caller."""

    requests: int
    seed: int
    rate_per_s: float
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that must not happen. `begun`: how many requests had begun; `ids`: of the requests concerned."""

    at_s: float
    begun: int
    what: str
    ids: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Memory:
    """One router's memory in MiB and open files: before the load, warm, and settled after it."""

    router: str
    before_mib: float
    warm_mib: float
    after_mib: float
    files_before: int
    files_after: int


@dataclass(slots=True, kw_only=True)
class Soak:
    """The run's state, for the screen and the report. `now`: epoch seconds that never step back."""

    options: Options
    now: Callable[[], float]
    phase: str = "start"
    problems: list[Problem] = field(default_factory=list)
    clients: Clients | None = None
    chaos: Chaos | None = None
    stack: Stack | None = None
    watches: list[Watch] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    load_s: float = 0.0
    recovery_s: float = 0.0

    @property
    def begun(self) -> int:
        """How many requests have begun."""
        return self.clients.tally.begun if self.clients is not None else 0

    def problem(self, what: str, ids: tuple[str, ...] = ()) -> None:
        """File one."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(at_s=self.now(), begun=self.begun, what=what, ids=ids))


def new_soak(options: Options) -> Soak:
    """A soak on the running loop."""
    loop = asyncio.get_running_loop()
    offset = datetime.now(UTC).timestamp() - loop.time()
    return Soak(options=options, now=lambda: loop.time() + offset)


async def run_soak(soak: Soak) -> None:
    """Run it; leaves no process behind, whatever happens. A process that fails on its own ends the run as a problem."""
    stack = soak.stack = Stack(soak.options.folder, soak.now)
    timeout = aiohttp.ClientTimeout(total=None)
    try:
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            routers = await asyncio.gather(*(stack.router(f"router-{number}") for number in range(ROUTERS)))
            for router in routers:
                soak.watches.append(Watch(router.name, router.urls[1], router.pid, session, soak.problem))
            controller = Controller(session, [router.urls[1] for router in routers], soak.problem)
            soak.chaos = Chaos(stack, controller, session, soak.problem)
            await _with_sides(soak, controller)
        for what in await stack.stop():
            soak.problem(what)
        soak.phase = "check"
        _check(soak)
    except* StackFailed as failed:
        for error in _leaves(failed):
            soak.problem(f"the run ended early: {error}")
    finally:
        stack.kill()
        await stack.gone()


def _leaves(group: BaseExceptionGroup[StackFailed]) -> list[StackFailed]:
    """The errors in a group of groups."""
    found: list[StackFailed] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def _with_sides(soak: Soak, controller: Controller) -> None:
    """The controller, the faults and the watches run beside the phases and end with them."""
    chaos = soak.chaos
    assert chaos is not None
    async with asyncio.TaskGroup() as group:
        sides = [group.create_task(controller.run()), group.create_task(chaos.run())]
        await chaos.start()
        await _ready(soak, RECOVER_S)
        before = [await watch.look(0) for watch in soak.watches]
        looks = [group.create_task(watch.run(lambda: soak.begun)) for watch in soak.watches]
        await _load(soak, chaos)
        soak.phase = "heal"
        await chaos.heal()
        soak.phase = "recovery"
        await _recover(soak)
        for task in looks:
            task.cancel()
        soak.phase = "settle"
        after = await asyncio.gather(
            *(watch.settled(first.files) for watch, first in zip(soak.watches, before, strict=True))
        )
        soak.memory = [
            _memory(soak, watch, first, last) for watch, first, last in zip(soak.watches, before, after, strict=True)
        ]
        soak.phase = "stop"
        for task in sides:
            task.cancel()


async def _load(soak: Soak, chaos: Chaos) -> None:
    options, stack = soak.options, soak.stack
    assert stack is not None
    addresses = [_place(router.urls[0]) for router in stack.routers]

    def on_begun(begun: int) -> None:
        chaos.begun(begun)
        if begun % 100 == 0:
            stack.check()

    soak.clients = Clients(options.seed, addresses, soak.now, on_begun)
    chaos.follow(schedule(options.seed, options.requests))
    soak.phase = "load"
    begun_s = soak.now()
    await soak.clients.play(visits(options.seed, options.requests), options.rate_per_s)
    soak.load_s = soak.now() - begun_s


async def _recover(soak: Soak) -> None:
    """Light load until both routers trust all endpoints, then a burst of which every request must be answered."""
    clients, numbers = soak.clients, count(soak.options.requests)
    assert clients is not None
    begun_s = soak.now()
    ready = asyncio.create_task(_ready(soak, RECOVER_S))
    try:
        while not ready.done():
            await clients.play((_light(next(numbers), router) for router in range(ROUTERS)), 100.0)
        await ready
    finally:
        ready.cancel()
    soak.recovery_s = soak.now() - begun_s
    first = len(clients.records)
    await clients.play((_light(next(numbers), index % ROUTERS) for index in range(BURST)), 100.0)
    for record in clients.records[first:]:
        if record.outcome != "answered":
            what = f"after all was put right request {record.asked.number} was {record.outcome} ({record.code})"
            soak.problem(f"{what} {record.detail}", (record.answer_id or "",))


def _light(number: int, router: int) -> Visit:
    asked = Asked(number=number, kind="chat", stream=number % 2 == 0, tokens=2, words=2)
    return Visit(router=router, gap_s=1.0, pause_s=0.0, pipelined=False, asked=(asked,))


async def _ready(soak: Soak, bound_s: float) -> None:
    """Wait until both routers call every endpoint of the table ready."""
    try:
        async with asyncio.timeout(bound_s):
            for watch in soak.watches:
                while not await watch.all_ready(len(LIMITS)):  # noqa: ASYNC110  # another process sets no event of ours
                    await asyncio.sleep(0.1)
    except TimeoutError:
        soak.problem(f"not every endpoint was ready on both routers within {bound_s:g} s")


def _memory(soak: Soak, watch: Watch, before: Sample, after: Sample) -> Memory:
    """Compare, and file growth as a problem."""
    wanted = WARM_SHARE * soak.options.requests
    warm = next((sample for sample in watch.samples if sample.begun >= wanted), after)
    memory = Memory(
        router=watch.name,
        before_mib=before.rss_kib / 1024,
        warm_mib=warm.rss_kib / 1024,
        after_mib=after.rss_kib / 1024,
        files_before=before.files,
        files_after=after.files,
    )
    if memory.after_mib > memory.warm_mib + GROWTH_MIB:
        soak.problem(
            f"{watch.name} grew from {memory.warm_mib:.1f} MiB after {warm.begun} requests to {memory.after_mib:.1f} MiB; "
            f"{GROWTH_MIB:g} MiB are allowed"
        )
    return memory


# ---- after the run


def _check(soak: Soak) -> None:
    clients, stack = soak.clients, soak.stack
    assert clients is not None
    assert stack is not None
    for record in clients.records:
        if record.outcome not in VIOLATIONS and record.outcome:
            continue
        what = f"request {record.asked.number} ({record.asked.kind}): {record.outcome or 'no outcome'}: {record.detail}"
        soak.problems.append(
            Problem(
                at_s=record.ended_s,
                begun=record.asked.number,
                what=what,
                ids=tuple(id_ for id_ in (record.client_id, record.answer_id, record.generation) if id_),
            )
        )
    numbers = [record.asked.number for record in clients.records]
    if len(set(numbers)) != len(numbers) or clients.tally.ended != len(numbers):
        soak.problem(f"{len(numbers)} records, {len(set(numbers))} requests, {clients.tally.ended} outcomes")
    logs = [
        EngineLog(
            name=engine.child.name,
            slot=engine.slot,
            limit=LIMITS[engine.slot] + ROUTERS - 1,
            rows=_rows(engine.generations),
            ended_s=engine.ended_s,
            drained_s=engine.drained_s,
            stopped=engine.stopped,
        )
        for engine in stack.engines
    ]
    soak.findings = check(logs, clients.records, [watch.boot for watch in soak.watches])
    for what, ids in soak.findings.problems:
        soak.problem(what, ids)
    _check_counters(soak)


def _rows(file: Path) -> list[dict[str, object]]:
    """The lines of a log; a killed process may leave half a line at the end, which says nothing."""
    if not file.exists():
        return []
    lines = file.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _check_counters(soak: Soak) -> None:
    """The routers' own counts add up, and agree with what the clients saw."""
    clients = soak.clients
    assert clients is not None
    totals = [watch.samples[-1].totals for watch in soak.watches]
    for watch, one in zip(soak.watches, totals, strict=True):
        refused = one.get("requests_refused_total", 0) - one.get("requests_refused_total without a model", 0)
        ended = one.get("requests_ended_total", 0)
        if one.get("requests_total") != ended + refused:
            soak.problem(f"{watch.name}: {one.get('requests_total')} requests, {ended} ended and {refused} refused")
    outcomes = clients.tally.outcomes
    for outcome, counter in (("cut", "cut_off_total"), ("broken off", "error_events_total")):
        counted = sum(one.get(counter, 0) for one in totals)
        if outcomes[outcome] > counted:
            soak.problem(f"{outcomes[outcome]} clients were {outcome}, the routers count {counted:g} in {counter}")
    arrived = sum(one.get("requests_total", 0) for one in totals)
    told = [record for record in clients.records if record.asked.runs]
    surely = sum(record.outcome not in ("left", "behind a cut", *VIOLATIONS) for record in told)
    if not surely <= arrived <= len(told):
        soak.problem(f"the routers count {arrived:g} requests; {len(told)} were sent, {surely} of them answered")
