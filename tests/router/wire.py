"""Real sockets for the data plane's tests: a raw scripted engine, a raw client, and a router between them, all on one uvloop.

`@on_uvloop` runs an async test on a fresh uvloop. `Site` is the router with its engines: `async with Site(json_answer()) as site`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvloop

from router.core.dispatcher import Dispatcher
from router.model import table_from
from router.shell.client import Client
from router.shell.http import DataPlane, Limits

DONE = b"data: [DONE]\n\n"


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a uvloop of its own; what the loop reports as unhandled fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            unhandled: list[dict[str, Any]] = []
            runner.get_loop().set_exception_handler(
                lambda loop, context: None if _of_a_stream(context) else unhandled.append(context)
            )
            runner.run(asyncio.wait_for(test(*args, **kwargs), 30))
            assert not unhandled, unhandled

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]  # for parametrize
    del run.__wrapped__  # else pytest-asyncio takes it for a coroutine function
    return run


def _of_a_stream(context: dict[str, Any]) -> bool:
    """Is it the `closed` future of a stream of the test's own that was reset? asyncio reads it when the stream is
    collected, unless the collector takes the future first.
    """
    return "never retrieved" in context["message"] and isinstance(context.get("exception"), ConnectionError)


@dataclass
class Received:
    """A request as the engine got it. `gone` is set when the router closes the connection."""

    head: bytes
    body: bytes
    connection: int
    gone: asyncio.Event

    def field(self, name: str) -> list[str]:
        """Values of a header."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].lower() == name]


Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def json_answer(body: bytes = b'{"ok":true}', status: bytes = b"200 OK", more: bytes = b"") -> Behaviour:
    """An engine that answers with a body of known length."""

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), more, body))

    return behave


def raw_answer(*parts: bytes, close: bool = False, abort: bool = False) -> Behaviour:
    """An engine that writes each part as a packet of its own, then perhaps closes."""

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.005)
        if abort:
            writer.transport.abort()
        elif close:
            writer.close()

    return behave


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(number: int) -> bytes:
    """One event of a chat completion."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"t%d"}}]}\n\n' % number


class Engine:
    """A scripted engine on a free port. `behaviour` answers each request; `received` holds them all."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.received: list[Received] = []
        self.connections = 0
        self.arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.append(writer)
        gone = asyncio.Event()
        watch = asyncio.ensure_future(self._watch(reader, writer, gone))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line[15:])
                received = Received(head, await reader.readexactly(length), number, gone)
                async with self.arrived:
                    self.received.append(received)
                    self.arrived.notify_all()
                await self.behaviour(received, writer)
        except (asyncio.IncompleteReadError, OSError, RuntimeError):  # RuntimeError: uvloop, written to after the end
            pass
        finally:
            watch.cancel()
            gone.set()
            writer.close()

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        """Notice that the router is gone also while the behaviour waits for something else."""
        while not (reader.at_eof() or reader.exception() or writer.transport.is_closing()):  # noqa: ASYNC110  # a stream reader tells nobody of its end
            await asyncio.sleep(0.005)
        gone.set()

    async def got(self, count: int) -> None:
        """Wait until `count` requests have arrived."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.received) >= count)

    def drop_connections(self) -> None:
        """Close every connection, as a keep-alive time-out does."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def stop(self) -> None:
        """Stop listening and cut everything."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@dataclass
class Answer:
    """An answer as the client got it. `whole` False: the connection ended before its end."""

    status: int
    fields: dict[str, str]
    body: bytes
    whole: bool = True
    raw: bytes = field(default=b"", repr=False)


class Caller:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.transport: Any = writer.transport

    async def answer(self, head_only: bool = False) -> Answer:
        """Read one answer."""
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            status = int(first.split(" ")[1])
            if status >= 200:
                break
        fields = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
        made = Answer(status, fields, b"")
        if head_only or status in (204, 304):
            return made
        try:
            if fields.get("transfer-encoding") == "chunked":
                while size := int((await self._line()).partition(b";")[0].rstrip(b"\r\n"), 16):
                    made.body += await self.reader.readexactly(size)
                    assert await self.reader.readexactly(2) == b"\r\n"
                while await self._line() != b"\r\n":  # trailers
                    pass
            elif "content-length" in fields:
                made.body = await self.reader.readexactly(int(fields["content-length"]))
            else:
                made.body = await self.reader.read(-1)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            made.whole = False
            if isinstance(error, asyncio.IncompleteReadError):
                made.raw = error.partial
        return made

    async def _line(self) -> bytes:
        line = await self.reader.readline()
        if not line:
            raise ConnectionResetError
        return line

    async def ask(self, data: bytes, head_only: bool = False) -> Answer:
        """Send bytes and read one answer."""
        self.writer.write(data)
        return await self.answer(head_only)

    async def closed(self) -> bytes:
        """Read until the router closes; what came before."""
        try:
            return await self.reader.read(-1)
        except ConnectionError:
            return b""

    def leave(self) -> None:
        """Reset the connection, as a client does that was killed."""
        self.writer.transport.abort()


def post(body: bytes = b'{"model":"m"}', *fields: str, path: str = "/v1/chat/completions") -> bytes:
    """A POST with a body of known length."""
    more = "".join(f"{line}\r\n" for line in fields)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Site:
    """Engines, a router before them, and its callers. `routing` is the model's; each endpoint has `limit` slots."""

    def __init__(
        self,
        *behaviours: Behaviour,
        limit: int = 4,
        routing: dict[str, Any] | None = None,
        limits: Limits | None = None,
        client: type[Client] = Client,
    ) -> None:
        self.client = client
        self.engines = [Engine(behaviour) for behaviour in behaviours]
        self.limit, self.routing, self.limits = limit, routing or {}, limits
        self.callers: list[Caller] = []
        self.revision = 0

    async def __aenter__(self) -> Site:
        loop = asyncio.get_running_loop()
        for engine in self.engines:
            await engine.start()
        self.dispatcher = Dispatcher(router="r", boot="boot", random=random.Random(3).random, now=loop.time())
        self.plane = DataPlane(self.dispatcher, loop, self.limits)
        self.server = await loop.create_server(lambda: self.client(self.plane), "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.plane.start()
        if self.engines:
            self.tell()
        return self

    def tell(self, name: str = "m", **changes: Any) -> None:
        """Apply a table with every engine active and ready; `changes` replace parts of each endpoint, `name` the model."""
        self.revision += 1
        now = asyncio.get_running_loop().time()
        endpoints = [
            {
                "id": f"e{number}",
                "url": f"http://127.0.0.1:{engine.port}",
                "model": name,
                "limit": self.limit,
                **changes,
            }
            for number, engine in enumerate(self.engines)
        ]
        model = {"name": name, "aliases": ["alias"], "routing": self.routing}
        document = {"source": "t", "revision": self.revision, "models": [model], "endpoints": endpoints}
        self.dispatcher.apply(table_from(document), now)
        for told in endpoints:
            self.dispatcher.probed(told["id"], True, now)

    async def call(self) -> Caller:
        """A new client connection."""
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26))
        self.callers.append(caller)
        return caller

    async def ask(self, data: bytes) -> Answer:
        """One request on a connection of its own."""
        return await (await self.call()).ask(data)

    async def settled(self) -> None:
        """Wait until nothing is in flight or queued, and check that every gauge says so."""
        async with asyncio.timeout(5):
            while not self.plane.idle or any(at.in_flight for at in self.dispatcher.endpoints.values()):  # noqa: ASYNC110  # the router has no event for tests
                await asyncio.sleep(0.005)
        report = self.dispatcher.report(asyncio.get_running_loop().time())
        assert all(load.in_flight == 0 and load.queued == 0 for load in report.models.values())
        assert all(load.in_flight == 0 for load in report.endpoints.values())
        assert self.plane.memory.held == 0
        assert self.plane.counters.bugs == 0

    async def __aexit__(self, *_: object) -> None:
        for caller in self.callers:
            caller.writer.close()
        self.server.close()
        self.plane.close()
        for engine in self.engines:
            await engine.stop()
        await asyncio.sleep(0.01)  # closed transports get their last callbacks


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the loop is about to do."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # the router has no event for tests
            await asyncio.sleep(0.005)
