"""Stories of cancellation: connecting to engines, and the tasks beside the data path. See `cancelling.py`."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.core.dispatcher import Dispatcher
from router.model import EngineLoad, table_from
from router.shell import logs, probe, scrape
from router.shell.admin import Wakes
from router.shell.discovery.static import StaticTable
from router.shell.http import DataPlane
from router.shell.server import kept_running
from router.shell.upstream import Upstream
from tests.router.by_hand import client, plane
from tests.router.cancelling import Part, story
from tests.router.test_probe import Known, Sink
from tests.router.wire import Engine, Received, json_answer, post


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes no connection and refuses none: its accept queue is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def paged(received: Received, writer: asyncio.StreamWriter) -> None:
    """An engine whose page comes in parts."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\n")
    for _ in range(4):
        writer.write(b"x 1\n"[:2])
        await writer.drain()
        await asyncio.sleep(0.002)


@asynccontextmanager
async def engine(behaviour: Any = None) -> AsyncIterator[int]:
    """A raw engine; gives its port."""
    made = Engine(behaviour or json_answer())
    await made.start()
    try:
        yield made.port
    finally:
        await made.stop()
        while any("Engine._serve" in repr(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110  # it sets no event
            await asyncio.sleep(0.001)


async def never(received: Received, writer: asyncio.StreamWriter) -> None:
    """An engine that generates until the router closes the connection."""
    await received.gone.wait()


async def nothing() -> None:
    """For what a story keeps from running."""


# ---- connecting to an engine


def waiting_to_connect(host: str, port: int) -> tuple[DataPlane, Upstream, Callable[[], None]]:
    """A data plane with one request that is to be connected for, and how its client leaves."""
    of = plane()
    row = {"id": "e0", "url": f"http://{host}:{port}", "model": "m", "limit": 1}
    of.dispatcher.apply(table_from({"source": "t", "revision": 1, "models": [{"name": "m"}], "endpoints": [row]}), 0.0)
    of.dispatcher.probed("e0", True, of.now())
    of._connect = lambda upstream: nothing()  # type: ignore[method-assign]  # the story runs the real one
    ours, _ = client(of)
    ours.data_received(post())
    assert ours.exchange is not None
    assert ours.exchange.upstream is not None
    del of._connect

    def leave() -> None:
        if ours in of.clients:
            ours.connection_lost(None)

    return of, ours.exchange.upstream, leave


def at_rest(of: DataPlane) -> None:
    """The endpoint is held responsible for nothing and nothing is held for a request."""
    endpoint = of.dispatcher.endpoints["e0"]
    assert (endpoint.in_flight, endpoint.health, endpoint.failures) == (0, "ready", 0)
    assert (of.memory.held, of.memory.promised, of.counters.bugs, of.clients) == (0, 0, 0, set())


async def _left_while_connecting(host: str, port: int) -> AsyncIterator[Part]:
    of, upstream, leave = waiting_to_connect(host, port)
    await asyncio.sleep(0)
    yield Part(
        of._connect(upstream),
        begun=lambda task: setattr(upstream, "connecting", task),
        cancel=leave,
        then=leave,
    )
    at_rest(of)


@story("shell/http.py:DataPlane._connect")
async def the_client_leaves_while_its_request_is_connected_for() -> AsyncIterator[Part]:
    async with engine(never) as port:
        async for part in _left_while_connecting("127.0.0.1", port):
            yield part


@story("shell/http.py:DataPlane._connect")
async def the_client_leaves_while_the_name_of_its_engine_is_looked_up() -> AsyncIterator[Part]:
    async with engine(never) as port:
        async for part in _left_while_connecting("localhost", port):
            yield part


@story("shell/http.py:DataPlane._connect")
async def the_client_leaves_while_its_engine_takes_no_connection() -> AsyncIterator[Part]:
    with black_hole() as port:
        async for part in _left_while_connecting("127.0.0.1", port):
            yield part


@story("shell/http.py:DataPlane._connect")
async def the_data_plane_closes_while_it_connects() -> AsyncIterator[Part]:
    async with engine(never) as port:
        of, upstream, leave = waiting_to_connect("localhost", port)
        await asyncio.sleep(0)
        yield Part(of._connect(upstream), begun=of._connects.add, cancel=of.close, then=leave)
        at_rest(of)


# ---- probes


async def _answers(sink: Sink) -> None:
    """It asks again, and everything that it asks is there."""
    sink.results.clear()
    sink.got.clear()
    prober = probe.Prober(sink)
    again = asyncio.create_task(prober.run())
    await asyncio.wait_for(sink.got.wait(), 5)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    assert sink.results[0][1] is True


@story("shell/probe.py:Prober.run", points=6)
async def probing() -> AsyncIterator[Part]:
    with pytest.MonkeyPatch.context() as patch, black_hole() as hole:
        patch.setattr(probe, "INTERVAL_S", 0.004)
        async with engine() as port:
            silent = Known("silent", hole)
            sink = Sink({"a": Known("a", port, "vllm"), "b": Known("b", port), "silent": silent})
            prober = probe.Prober(sink)
            yield Part(prober.run())
            assert not prober._running
            assert prober._room._value == probe.AT_ONCE_MAX
            del sink.endpoints["silent"]
            for known in sink.endpoints.values():
                known.health = "unknown"
            await _answers(sink)


@story("shell/probe.py:Prober._probe", "shell/probe.py:answers|session.get")
async def one_probe() -> AsyncIterator[Part]:
    async with (
        engine(paged) as port,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        known = Known("a", port, "vllm")
        sink = Sink({"a": known})
        prober = probe.Prober(sink)
        prober._room = asyncio.Semaphore(1)
        await prober._room.acquire()
        prober._running.add("a")
        asyncio.get_running_loop().call_later(0.002, prober._room.release)
        yield Part(prober._probe(known, session))
        await asyncio.sleep(0.003)  # the one that held the room has released it
        assert (prober._room._value, prober._running) == (1, set())
        known.health = "unknown"
        await _answers(sink)


@story("shell/probe.py:answers|open_connection")
async def one_probe_by_a_connection() -> AsyncIterator[Part]:
    async with engine() as port, aiohttp.ClientSession() as session:
        known = Known("a", port, host="localhost")
        yield Part(probe.answers(session, known))
        assert await probe.answers(session, known) is True


@story("shell/probe.py:answers|open_connection", points=3)
async def one_probe_of_a_black_hole() -> AsyncIterator[Part]:
    async with aiohttp.ClientSession() as session:
        with black_hole() as port:
            yield Part(probe.answers(session, Known("a", port)))


# ---- readings


class Readings:
    """Takes readings as the dispatcher does."""

    def __init__(self, port: int) -> None:
        self.endpoints = {"a": Known("a", port, "vllm", health="ready")}
        self.read: list[str] = []

    def engine_read(self, endpoint_id: str, load: EngineLoad, now: float) -> None:
        """One more."""
        self.read.append(endpoint_id)


async def _reads(sink: Readings, of: scrape.Scraper) -> None:
    sink.read.clear()
    async with aiohttp.ClientSession() as session:
        await of.round(session)
    assert sink.read == ["a"]


@story("shell/scrape.py:Scraper.run", points=8)
async def scraping() -> AsyncIterator[Part]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrape, "INTERVAL_S", 0.004)
        async with engine(paged) as port:
            sink = Readings(port)
            of = scrape.Scraper(sink)
            yield Part(of.run())
            assert of._room._value == scrape.AT_ONCE_MAX
            await _reads(sink, of)


@story("shell/scrape.py:Scraper.round")
async def one_round_of_readings() -> AsyncIterator[Part]:
    async with engine(paged) as port, aiohttp.ClientSession() as session:
        sink = Readings(port)
        of = scrape.Scraper(sink)
        yield Part(of.round(session))
        await _reads(sink, of)


@story("shell/scrape.py:Scraper._read", "shell/scrape.py:fetch")
async def one_reading() -> AsyncIterator[Part]:
    connector = aiohttp.TCPConnector(force_close=True)
    async with engine(paged) as port, aiohttp.ClientSession(connector=connector) as session:
        sink = Readings(port)
        of = scrape.Scraper(sink)
        of._room = asyncio.Semaphore(1)
        await of._room.acquire()
        asyncio.get_running_loop().call_later(0.002, of._room.release)
        yield Part(of._read(sink.endpoints["a"], session))
        await asyncio.sleep(0.003)
        assert of._room._value == 1
        await _reads(sink, of)


# ---- the file, the log, waits, and what keeps them running


@story("shell/discovery/static.py:StaticTable.watch", points=4)
async def watching_a_file() -> AsyncIterator[Part]:
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps({"source": "f", "revision": 1, "models": [{"name": "m"}]}))
        dispatcher = Dispatcher(router="r", boot="b", random=lambda: 0.5, now=loop.time())
        table = StaticTable(path, dispatcher, poll_s=0.003)
        table.load(loop.time())
        yield Part(table.watch())
        path.write_text(json.dumps({"source": "f", "revision": 2, "models": [{"name": "m2"}]}))
        again = asyncio.create_task(table.watch())
        async with asyncio.timeout(5):
            while "m2" not in dispatcher.names:  # noqa: ASYNC110  # a table sets no event
                await asyncio.sleep(0.001)
        again.cancel()


@story("shell/logs.py:HealthLog.run", points=3)
async def looking_at_health() -> AsyncIterator[Part]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "LOOK_EVERY_S", 0.002)
        sink = Readings(1)
        of = logs.HealthLog(sink)  # type: ignore[arg-type]  # nobody changes its health, so no outcomes are looked at
        of._known = {"a": "ready"}
        yield Part(of.run())
        assert of._known == {"a": "ready"}


@story("shell/admin.py:Wakes.wait")
async def waiting_for_a_wake() -> AsyncIterator[Part]:
    wakes = Wakes()
    woken = asyncio.get_running_loop().call_later(0.002, wakes.wake)
    yield Part(wakes.wait(lambda: False, 0.01))
    woken.cancel()
    assert len(wakes) == 0
    again = asyncio.create_task(wakes.wait(lambda: bool(again.get_name() == "seen"), 5.0))
    await asyncio.sleep(0)
    assert len(wakes) == 1
    again.set_name("seen")
    wakes.wake()
    await again
    assert len(wakes) == 0


@story("shell/server.py:kept_running", points=5)
async def keeping_a_side_running() -> AsyncIterator[Part]:
    running = 0

    async def side() -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0.002)
        finally:
            running -= 1
            await asyncio.sleep(0)

    yield Part(kept_running("side", side, restart_s=0.001))
    assert running == 0
