"""Probes: who is asked, how, how often; and that an endpoint which does not answer never hurts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import aiohttp
import pytest
from aiohttp import web

from router.shell.probe import EAGER_S, HEALTH_PATHS, INTERVAL_S, LATE_INTERVAL_S, Prober, answers, base_url, due


@dataclass
class Known:
    """An endpoint as the prober sees it."""

    id: str = "a"
    port: int = 1
    engine: str = "generic"
    intent: str = "active"
    health: str = "unknown"
    starting: bool = False
    failures: int = 0
    host: str = "127.0.0.1"


@dataclass
class Sink:
    """Takes results as the dispatcher does: a good probe makes an unknown endpoint ready."""

    endpoints: dict[str, Known]
    results: list[tuple[str, bool]] = field(default_factory=list)
    got: asyncio.Event = field(default_factory=asyncio.Event)

    def probed(self, endpoint_id: str, ok: bool, now: float) -> None:
        assert math.isfinite(now)
        self.results.append((endpoint_id, ok))
        if ok:
            self.endpoints[endpoint_id].health = "ready"
        self.got.set()


@asynccontextmanager
async def engine(path: str, status: int) -> AsyncIterator[int]:
    """A server that answers `status` under `path` and 404 elsewhere; gives its port."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"location": "/elsewhere"})

    async def elsewhere(request: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.router.add_get(path, handler)
    application.router.add_get("/elsewhere", elsewhere)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [
        (Known(), True),
        (Known(health="ejected"), True),
        (Known(intent="standby"), True),
        (Known(intent="draining"), True),
        (Known(health="ready"), False),
        (Known(health="ready", failures=1), True),
        (Known(health="half-open", failures=1), False),
        (Known(health="half-open"), False),
        (Known(intent="absent"), False),
        (Known(starting=True), False),
    ],
)
def test_who_is_probed(endpoint: Known, asked: bool) -> None:
    assert due([endpoint], {}, {}, 0.0) == ([endpoint] if asked else [])


def test_the_pace_of_an_unknown_endpoint_slows_down_and_an_ejected_one_is_slow_from_the_start() -> None:
    unknown, ejected = Known("u"), Known("e", health="ejected")
    since: dict[str, float] = {}
    last: dict[str, float] = {}
    steps = int((EAGER_S + 10) / 0.125)
    times: dict[str, list[float]] = {"u": [], "e": []}
    for step in range(steps):
        for endpoint in due([unknown, ejected], since, last, step * 0.125):
            times[endpoint.id].append(step * 0.125)
    gaps = {id_: [b - a for a, b in pairwise(t)] for id_, t in times.items()}
    assert set(gaps["u"][:100]) == {INTERVAL_S}
    assert set(gaps["u"][-5:]) == {LATE_INTERVAL_S}
    assert set(gaps["e"]) == {LATE_INTERVAL_S}


def test_an_endpoint_that_became_unknown_again_is_asked_eagerly_again() -> None:
    since: dict[str, float] = {}
    last: dict[str, float] = {}
    endpoint = Known()
    due([endpoint], since, last, 0.0)
    due([replace(endpoint, health="ready")], since, last, 100.0)
    assert (since, last) == ({}, {})
    due([endpoint], since, last, 200.0)
    assert due([endpoint], since, last, 200.0 + INTERVAL_S) == [endpoint]


@pytest.mark.parametrize("engine_name", sorted(HEALTH_PATHS))
@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (400, False), (404, False), (302, False)])
async def test_an_engine_is_ready_when_its_health_path_says_200(engine_name: str, status: int, ready: bool) -> None:
    async with engine(HEALTH_PATHS[engine_name], status) as port, aiohttp.ClientSession() as session:
        assert await answers(session, Known(port=port, engine=engine_name)) is ready


async def test_a_generic_endpoint_is_ready_when_it_takes_a_connection() -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        assert await answers(session, Known(port=server.sockets[0].getsockname()[1])) is True
    await ended.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("engine_name", ["generic", "vllm"])
@pytest.mark.parametrize("host", ["127.0.0.1", "x" * 300, ".."])
async def test_what_cannot_be_reached_is_not_ready(engine_name: str, host: str) -> None:
    async with aiohttp.ClientSession() as session:
        assert await answers(session, Known(host=host, port=1, engine=engine_name)) is False


async def test_an_engine_that_takes_the_connection_and_says_nothing_is_not_ready() -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        assert await answers(session, Known(port=port, engine="vllm"), timeout_s=0.05) is False
    await ended.wait()
    server.close()
    await server.wait_closed()


async def test_the_running_prober_finds_an_endpoint_that_comes_up_and_then_leaves_it_alone() -> None:
    async with engine("/health", 200) as port:
        sink = Sink({"a": Known(port=port, engine="vllm"), "b": Known("b", port=1, engine="vllm")})
        running = asyncio.create_task(Prober(sink).run())
        while ("a", True) not in sink.results or ("b", False) not in sink.results:
            sink.got.clear()
            await sink.got.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert sink.results.count(("a", True)) == 1
    assert not [task for task in asyncio.all_tasks() if "Prober" in repr(task)]


async def test_the_result_for_an_endpoint_that_was_replaced_meanwhile_is_dropped() -> None:
    sink = Sink({})
    asked = asyncio.Event()

    async def health(request: web.Request) -> web.Response:
        sink.endpoints = {"a": Known(starting=True)}  # the same id, another replica
        asked.set()
        return web.Response()

    application = web.Application()
    application.router.add_get("/health", health)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sink.endpoints["a"] = Known(port=runner.addresses[0][1], engine="vllm")
    prober = Prober(sink)
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        prober.start_due(group, session)
    await runner.cleanup()
    assert asked.is_set()
    assert sink.results == []


def test_an_ipv6_address_is_bracketed() -> None:
    assert base_url("::1", 80) == "http://[::1]:80"
    assert base_url("127.0.0.1", 80) == "http://127.0.0.1:80"
