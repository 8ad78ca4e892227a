"""Rolling replacement of all replicas under load, by real processes: the right way costs nobody anything.

Two routers share four replicas; clients keep their connections and ask one long stream after the other. Each replica is
replaced in turn: a new one started and routed, the old one draining, acknowledged as drained by both routers, killed.
Every byte is judged by the soak's strict clients. The second test stops a replica without a drain, and the same clients
must notice: else the first would prove nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from loadtests.soak_client import Clients
from loadtests.soak_controller import Controller, Row
from loadtests.soak_generations import EngineLog, check
from loadtests.soak_plan import Asked, Visit
from loadtests.soak_stack import Engine, Stack
from loadtests.soak_watch import Watch
from tests.router.fleet import BOUND_S

pytestmark = pytest.mark.processes

REPLICAS = 4
LIMIT = 4
RATE_PER_S = 30.0


class Rolling:
    """The processes, the load and what both routers say."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession) -> None:
        self.stack = stack
        self.problems: list[str] = []
        self.session = session
        self.engines: list[Engine] = []
        self.over = False
        admins = [router.urls[1] for router in stack.routers]
        self.controller = Controller(session, admins, self.problems.append)
        self.watches = [
            Watch(router.name, router.urls[1], router.pid, session, self.problems.append) for router in stack.routers
        ]
        places = [urlsplit(router.urls[0]) for router in stack.routers]
        addresses = [(place.hostname or "", place.port or 0) for place in places]
        self.clients = Clients(1, addresses, stack.now, lambda begun: None)

    def visits(self) -> Iterator[Visit]:
        """Keep-alive clients that ask eight times, mostly long streams, until it is over."""
        number = 0
        while not self.over:
            asked = [
                Asked(number=number + at, kind="chat", stream=at % 4 != 3, tokens=20 + 30 * (at % 5), words=5)
                for at in range(8)
            ]
            number += len(asked)
            yield Visit(router=number // 8 % 2, gap_s=8.0, pause_s=0.0, pipelined=False, asked=tuple(asked))

    async def join(self, name: str) -> Engine:
        """A new replica, routed by both."""
        engine = await self.stack.engine(name, 0)
        self.engines.append(engine)
        self.controller.rows[name] = Row(id=name, url=engine.url, limit=LIMIT)
        await self.controller.told()
        return engine

    async def until_ready(self) -> None:
        """Both routers call every endpoint of the table ready."""
        async with asyncio.timeout(BOUND_S):
            for watch in self.watches:
                while not await watch.all_ready(len(self.controller.rows)):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.02)

    async def busy(self, engine: Engine) -> None:
        """Something is in flight there."""
        async with asyncio.timeout(BOUND_S):
            while not await self._in_flight(engine):  # noqa: ASYNC110  # another process sets no event of ours
                await asyncio.sleep(0.01)

    async def _in_flight(self, engine: Engine) -> int:
        count = 0
        for router in self.stack.routers:
            async with self.session.get(f"{router.urls[1]}/admin/v1/load") as answer:
                count += (await answer.json())["endpoints"][engine.id]["in_flight"]
        return count

    async def drain(self, engine: Engine) -> None:
        """Draining, acknowledged by both, killed, gone."""
        rows = self.controller.rows
        rows[engine.id].intent = "draining"
        await self.controller.told()
        async with asyncio.timeout(BOUND_S):
            while not self.controller.drained(engine.id):  # the next answers may say so
                await self.controller.told()
                await asyncio.sleep(0.02)
        engine.drained_s = self.stack.now()
        self.stack.kill_engine(engine)  # not SIGTERM, after which the emulated engine ends its streams
        await engine.child.wait()
        del rows[engine.id]

    def outcomes(self) -> dict[str, int]:
        return dict(self.clients.tally.outcomes)


@asynccontextmanager
async def rolling(folder: Path) -> AsyncIterator[Rolling]:
    """Two routers, four replicas, everything ready and under load; the load has ended when the block has."""
    stack = Stack(folder, lambda: datetime.now(UTC).timestamp())  # as in the engines' logs
    try:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(stack.router(f"router-{number}") for number in range(2)))
            ours = Rolling(stack, session)
            telling = asyncio.create_task(ours.controller.run())
            await asyncio.gather(*(ours.join(f"old-{number}") for number in range(REPLICAS)))
            await ours.until_ready()
            playing = asyncio.create_task(ours.clients.play(ours.visits(), RATE_PER_S))
            try:
                yield ours
            finally:
                ours.over = True
                await playing
                telling.cancel()
            assert ours.problems == []
    finally:
        stack.kill()
        await stack.gone()


@pytest.mark.fault("R9")
async def test_all_replicas_are_replaced_under_load_and_nobody_notices(tmp_path: Path) -> None:
    async with rolling(tmp_path) as ours:
        for number in range(REPLICAS):
            old = ours.engines[number]
            new = await ours.join(f"new-{number}")
            await ours.until_ready()
            await ours.busy(new)
            await ours.busy(old)  # else there would be nothing to cut
            await ours.drain(old)
        samples = [await watch.look(0) for watch in ours.watches]
    outcomes = ours.outcomes()
    assert outcomes == {"answered": outcomes["answered"]}, [
        record for record in ours.clients.records if record.outcome != "answered"
    ]
    assert outcomes["answered"] > 40
    logs = [
        EngineLog(
            name=engine.id,
            slot=0,
            limit=LIMIT + 1,
            rows=[*map(json.loads, engine.generations.read_text().splitlines())],
            ended_s=engine.ended_s,
            drained_s=engine.drained_s,
        )
        for engine in ours.engines
    ]
    assert [row for log in logs for row in log.rows if row.get("aborted")] == []
    assert all(log.rows for log in logs)
    found = check(logs, ours.clients.records, [watch.boot for watch in ours.watches])
    assert (found.problems, found.again) == ([], 0)
    visits = -(-len(ours.clients.records) // 8)
    # One connection for each visit: none was closed or reset on its way.
    assert sum(sample.totals["client_connections_total"] for sample in samples) <= visits


async def test_a_replica_that_is_stopped_without_a_drain_is_noticed(tmp_path: Path) -> None:
    async with rolling(tmp_path) as ours:
        await ours.busy(ours.engines[0])
        ours.stack.kill_engine(ours.engines[0])
        await ours.engines[0].child.wait()
    outcomes = ours.outcomes()
    assert outcomes.keys() & {"broken off", "refused"}, outcomes
    assert outcomes.keys() <= {"answered", "broken off", "refused"}, outcomes
