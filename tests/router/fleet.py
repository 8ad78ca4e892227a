"""A real router process and real engine processes for one test, and a client that looks at bytes.

`Fleet` starts them, sends tables as a controller would, and reads load reports. Waiting is always for a state, never
for a time; bounds are ten times what a slow machine needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.processes import Processes, Running

BOUND_S = 40.0
ANY_PORTS = ("--port", "0", "--admin-port", "0", "--shutdown-grace-secs", "0.2")
READY = r"tidegate router ready: data (http://\S+) admin (http://\S+)"


@dataclass
class Engine:
    """One emulated engine and the endpoint that it is."""

    id: str
    url: str
    process: Running
    log: Path

    def endpoint(self, **changes: Any) -> dict[str, Any]:
        """Its row in an intent table."""
        return {
            "id": self.id,
            "url": self.url,
            "model": "tide-1",
            "engine": "vllm",
            "limit": 1,
            "capacity": 1,
            **changes,
        }

    def generations(self) -> list[dict[str, Any]]:
        """What it did, in order of ends."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@dataclass
class Router:
    """A running router."""

    process: Running
    data: str
    admin: str


@dataclass
class Stream:
    """What came of a streamed request: bytes of the body until now; `task` ends with the connection."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def events(self) -> list[bytes]:
        """Complete server-sent events so far."""
        return bytes(self.body).split(b"\n\n")[:-1]

    def words(self) -> int:
        """How many of them carry a piece of an answer."""
        return sum(b'"content":"' in event and b'"content":""' not in event for event in self.events())


class Fleet:
    """The processes of one test and a session to talk to them."""

    def __init__(self, processes: Processes, session: aiohttp.ClientSession) -> None:
        self.processes = processes
        self.session = session
        self.revision = 0
        self._router: Router | None = None

    @property
    def router(self) -> Router:
        """The router started last."""
        assert self._router is not None, "no router was started"
        return self._router

    async def engine(self, name: str, *flags: str) -> Engine:
        """Start an engine of one slot and wait until it serves."""
        log = self.processes.folder / f"{name}.log"
        process = self.processes.start("engine", "--port", "0", "--slots", "1", "--log", str(log), *flags)
        ready = await asyncio.to_thread(process.wait_ready, r"tidegate engine ready: (http://\S+)", BOUND_S)
        return Engine(id=name, url=ready.group(1), process=process, log=log)

    async def start_router(self, *flags: str) -> Router:
        """Start a router on free ports and wait until it listens."""
        process = self.processes.start("router", *ANY_PORTS, *flags)
        ready = await asyncio.to_thread(process.wait_ready, READY, BOUND_S)
        self._router = Router(process=process, data=ready.group(1), admin=ready.group(2))
        return self.router

    async def put(self, *endpoints: dict[str, Any], **model: Any) -> dict[str, Any]:
        """Send the next table of the source `test`; gives the answer."""
        self.revision += 1
        return await self.put_again(*endpoints, **model)

    async def put_again(self, *endpoints: dict[str, Any], **model: Any) -> dict[str, Any]:
        """Send a table under the last revision, as a controller does at each tick."""
        table = {
            "version": 1,
            "source": "test",
            "epoch": 1,
            "revision": self.revision,
            "models": [{"name": "tide-1", **model}],
            "endpoints": list(endpoints),
        }
        async with self.session.put(f"{self.router.admin}/admin/v1/endpoints", json=table) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def load(self, query: str = "") -> dict[str, Any]:
        """The load report."""
        async with self.session.get(f"{self.router.admin}/admin/v1/load{query}") as response:
            report: dict[str, Any] = await response.json()
            assert response.status == 200, report
            return report

    async def until(self, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask for load reports until one is as wanted; gives it."""
        report: dict[str, Any] = {}
        try:
            async with asyncio.timeout(BOUND_S):
                while not done(report := await self.load()):  # noqa: ASYNC110  # another process sets no event of ours
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not reached: {report}\n{self.router.process!r}") from None
        return report

    async def healths(self, **wanted: str) -> None:
        """Wait until endpoints have these healths."""
        await self.until(
            lambda report: all(
                report["endpoints"].get(id_, {}).get("health") == health for id_, health in wanted.items()
            )
        )

    async def status(self, url: str) -> int:
        """The status of a GET; 0 when nobody answers."""
        try:
            async with self.session.get(url) as response:
                return response.status
        except aiohttp.ClientConnectionError:
            return 0

    async def ask(self, tokens: int = 2) -> tuple[int, Any]:
        """One request that is not streamed."""
        async with self.session.post(f"{self.router.data}/v1/chat/completions", json=chat(tokens)) as response:
            return response.status, await response.json()

    async def stream(self, into: Stream, tokens: int) -> None:
        """One streamed request, read to the end of its connection. Raises when the end is not a proper one."""
        body = chat(tokens, stream=True)
        async with self.session.post(f"{self.router.data}/v1/chat/completions", json=body) as response:
            into.status, into.headers = response.status, dict(response.headers)
            async for chunk in response.content.iter_any():
                into.body += chunk
                if into.words():
                    into.begun.set()
        into.begun.set()


def chat(tokens: int, *, stream: bool = False) -> dict[str, Any]:
    """The body of a chat request."""
    messages = [{"role": "user", "content": "tell me when the tide turns"}]
    return {"model": "tide-1", "messages": messages, "max_tokens": tokens, "stream": stream}


@asynccontextmanager
async def fleet(processes: Processes) -> AsyncIterator[Fleet]:
    """A fleet whose client connections are closed at the end; the processes are the fixture's to stop."""
    timeout = aiohttp.ClientTimeout(total=BOUND_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Fleet(processes, session)
