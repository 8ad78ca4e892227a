"""One emulated engine inside a test's loop, and a client of it."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from loadtests.engine_batch import Batch, Rates
from loadtests.engine_door import Door
from loadtests.engine_driver import EngineDriver
from loadtests.engine_faults import Faults
from loadtests.engine_http import EngineHandlers
from loadtests.engine_pages import Served

CHAT_PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


async def until(true: Callable[[], bool]) -> None:
    """Poll every 5 ms, for at most 10 s."""
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited 10 s in vain")


class Raw:
    """A client connection that shows its bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, document: Any, path: str = CHAT_PATH) -> None:
        body = json.dumps(document).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def whole(self) -> bytes:
        """An answer with a length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert length is not None
        return head + await self.reader.readexactly(int(length[1]))

    async def rest(self) -> bytes:
        """Until the end. Raises `ConnectionResetError`."""
        return await asyncio.wait_for(self.reader.read(-1), 10)


class Engine:
    """One engine inside the test's loop."""

    def __init__(self, client: aiohttp.ClientSession, handlers: EngineHandlers, log: io.StringIO) -> None:
        self.client = client
        self.handlers = handlers
        self.driver = handlers.driver
        self.raws: list[Raw] = []
        self._log = log

    async def raw(self) -> Raw:
        """A connection of its own."""
        url = self.client._base_url
        assert url is not None
        self.raws.append(Raw(*await asyncio.open_connection(url.host, url.port)))
        return self.raws[-1]

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    async def fault(self, **wanted: object) -> None:
        async with self.client.post("/fault", json=wanted) as answer:
            assert answer.status == 200

    async def stream(self, **more: object) -> bytes:
        async with self.client.post("/v1/chat/completions", json={**CHAT, "stream": True, **more}) as answer:
            assert answer.status == 200
            return await answer.read()

    async def settled(self) -> None:
        """Until nothing is in the engine any more."""
        await until(lambda: not self.driver.batch.generations())


@asynccontextmanager
async def running(slots: int = 2) -> AsyncIterator[Engine]:
    """An engine on a free port."""
    log = io.StringIO()
    rates = Rates(slots=slots, prefill_tokens_per_s=1e6, decode_tokens_per_s=200.0)
    driver = EngineDriver(Batch(rates), Faults(), log, lambda moment: moment)
    door = Door(driver)
    handlers = EngineHandlers(driver, Served(model="tide-1", context_tokens=100_000, kv_tokens=1000), door)
    runner = web.AppRunner(handlers.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        await door.open(runner.server, listener)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
                made = Engine(client, handlers, log)
                yield made
        finally:
            for raw in made.raws:
                raw.writer.transport.abort()
            door.close()
            await runner.cleanup()
