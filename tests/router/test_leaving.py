"""A client leaves, at every stage that a request passes through: the engine is told, and nothing of the request is left.

The timer of the data plane is stopped before the client leaves, so whatever follows is caused by its leaving: nothing
may wait for the next beat (0.25 s), which is how row R1 is kept to its 100 ms without measuring time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from router.shell import endings
from router.shell.client import BODY, BUSY, LINGERING, WAITING, Client
from router.shell.connection import CONNECTING
from router.shell.http import Limits
from router.shell.large_body import BufferedBody
from tests.router.cancel_sides import black_hole
from tests.router.cancelling import Before
from tests.router.wire import (
    SSE_HEAD,
    Behaviour,
    Caller,
    Received,
    Site,
    chunk,
    event,
    json_answer,
    on_uvloop,
    post,
    until,
)

RESET, END, HALF = "reset", "closed", "half-closed"


def saying(*parts: bytes) -> Behaviour:
    """An engine that begins like this and then generates until the router closes the connection."""

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        await received.gone.wait()

    return behave


@dataclass(frozen=True)
class Stage:
    """How a request comes to a stage. `idle`: engine connections that stay for the next request; `engines`: requests
    that came to engines; `options`: of the site; `ways`: how it may leave there.
    """

    name: str
    reach: Callable[[Site, Caller], Awaitable[object]]
    behaviours: tuple[Behaviour, ...] = (saying(),)
    idle: int = 0
    engines: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    ways: tuple[str, ...] = (RESET, END, HALF)


def only(site: Site) -> Client:
    """The router's end of the only connection."""
    (found,) = site.plane.clients
    return found


def sent(data: bytes, reached: Callable[[Site], bool]) -> Callable[[Site, Caller], Awaitable[object]]:
    """Send this and wait for the router to be there."""

    async def reach(site: Site, caller: Caller) -> None:
        caller.writer.write(data)
        await until(lambda: len(site.plane.clients) == 1 and reached(site))

    return reach


def answered(data: bytes, *, head: bytes = b"") -> Callable[[Site, Caller], Awaitable[object]]:
    """Send a request and wait until this of its answer is read."""

    async def reach(site: Site, caller: Caller) -> None:
        caller.writer.write(head or post())
        await caller.reader.readuntil(data)

    return reach


def waiting_in_queue(site: Site) -> bool:
    """Is one request queued."""
    return site.dispatcher.model_states()[0].queue.count == 1


def at_engine(site: Site) -> bool:
    """Has an engine got a request."""
    return any(engine.received for engine in site.engines)


async def queued_cold(site: Site, caller: Caller) -> None:
    site.tell(starting=True)
    await sent(post(), waiting_in_queue)(site, caller)


async def connecting(site: Site, caller: Caller) -> None:
    port = site.holes.enter_context(black_hole())  # type: ignore[attr-defined]  # see the test
    site.tell(url=f"http://127.0.0.1:{port}")
    await sent(post(), lambda site: bool(site.plane._connects))(site, caller)
    exchange = only(site).exchange
    assert exchange is not None
    assert exchange.upstream is not None
    assert exchange.upstream.state == CONNECTING


class Hasty(Client):
    """A client that is gone in the very turn of the loop in which its request is sent on."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.state == BUSY:
            self.transport.abort()


async def looked_up(site: Site, caller: Caller) -> None:
    site.tell(url=f"http://localhost:{site.engines[0].port}")
    caller.writer.write(post())
    await until(lambda: site.plane.counters.left == 1)


async def flood(received: Received, writer: asyncio.StreamWriter) -> None:
    """More events than the sockets between it and a client take, and no end of the stream."""
    writer.write(SSE_HEAD + chunk(b"data: " + b"x" * 4000 + b"\n\n") * 4000)
    await writer.drain()
    writer.close()


async def half_a_head(site: Site, caller: Caller) -> None:
    def begun(site: Site) -> bool:
        exchange = only(site).exchange
        return exchange is not None and exchange.upstream is not None and bool(exchange.upstream._part)

    await sent(post(), begun)(site, caller)


async def not_reading(site: Site, caller: Caller) -> None:
    caller.transport.pause_reading()

    def paused(site: Site) -> bool:
        exchange = only(site).exchange
        return exchange is not None and exchange.upstream is not None and exchange.upstream.paused

    await sent(post(), paused)(site, caller)


async def error_event_unread(site: Site, caller: Caller) -> None:
    await not_reading(site, caller)
    exchange = only(site).exchange
    assert exchange is not None
    assert exchange.upstream is not None
    exchange.upstream.resume()  # as if it had read just enough; the rest of the stream waits in the router
    await until(lambda: site.plane.counters.error_events == 1 and only(site).exchange is None)
    assert only(site).stalled is not None


async def replay_pause(site: Site, caller: Caller) -> None:
    assert (await caller.ask(post())).status == 200

    async def close(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    site.engines[0].behaviour = close
    caller.writer.write(post())

    def lost(site: Site) -> bool:
        exchange = only(site).exchange
        return exchange is not None and exchange.upstream is not None and exchange.upstream.transport is None

    await until(lambda: lost(site))


async def retried(site: Site, caller: Caller) -> None:
    await site.engines[0].stop()
    for endpoint in site.dispatcher.endpoints.values():
        endpoint.weight = 100.0 if endpoint.id == "e0" else 0.01  # the dead one first
    await sent(post(), lambda site: bool(site.engines[1].received))(site, caller)


async def pipelined(site: Site, caller: Caller) -> None:
    await answered(event(0), head=post() + post())(site, caller)
    assert only(site)._held == post()


async def kept_alive(site: Site, caller: Caller) -> None:
    assert (await caller.ask(post())).status == 200


CHUNKED_REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"
OLD = post().replace(b"HTTP/1.1", b"HTTP/1.0", 1)
FULL = json_answer(b"{}", b"503 Service Unavailable", b"retry-after: 1\r\n")
SMALL = Limits(body_bytes=100)
STAGES = [
    Stage("head", sent(post()[:30], lambda site: only(site).state == WAITING and only(site).receiving), engines=0),
    Stage("body", sent(post(b"x" * 1000)[:-500], lambda site: only(site).state == BODY), engines=0),
    Stage(
        "large body",
        sent(
            post(b"x" * (2 << 20))[:-500],
            lambda site: isinstance(only(site).transport.get_protocol(), BufferedBody) and site.plane.memory.held > 0,
        ),
        engines=0,
    ),
    Stage("body in chunks", sent(CHUNKED_REQUEST, lambda site: only(site).state == BODY), engines=0),
    Stage(
        "refused, its answer unread",
        sent(post(b"x" * 200), lambda site: only(site).state == LINGERING),
        engines=0,
        options={"limits": SMALL},
    ),
    Stage("queued while its endpoint starts", queued_cold, engines=0),
    Stage("looking up a name", looked_up, engines=0, options={"client": Hasty}),
    Stage("connecting", connecting, engines=0),
    Stage("waiting for the first byte", sent(post(), at_engine)),
    Stage("half a head", half_a_head, (saying(b"HTTP/1.1 200 OK\r\ncont"),)),
    Stage("before the first event", answered(b"\r\n\r\n"), (saying(SSE_HEAD),)),
    Stage("streaming", answered(event(0)), (saying(SSE_HEAD, chunk(event(0))),)),
    Stage("inside an event", answered(event(0)), (saying(SSE_HEAD, chunk(event(0)), chunk(event(1)[:9])),)),
    Stage(
        "in an answer of known length", answered(b"ab"), (saying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab"),)
    ),
    Stage("in an answer without length", answered(b"ab"), (saying(b"HTTP/1.1 200 OK\r\n\r\nab"),)),
    Stage(
        "in an answer in chunks",
        answered(b"ab"),
        (saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"),),
    ),
    Stage("streaming to a client of HTTP/1.0", answered(event(0), head=OLD), (saying(SSE_HEAD, chunk(event(0))),)),
    Stage("reading too slowly", not_reading, (flood,)),
    Stage(
        "its error event unread", error_event_unread, (flood,), ways=(RESET, END)
    ),  # half-closed, it may still read it
    Stage("before a replay", replay_pause, (json_answer(),), engines=2),
    Stage("tried again elsewhere", retried, (saying(), saying())),
    Stage("sent to a full engine", sent(post(), waiting_in_queue), (FULL,), idle=1),
    Stage("with its next request sent", pipelined, (saying(SSE_HEAD, chunk(event(0))),)),
    Stage("between two requests", kept_alive, (json_answer(),), idle=1),
]


def leave(caller: Caller, way: str) -> None:
    """As a client does that is killed, that closes, or that only says that it sends no more."""
    sock: socket.socket = caller.writer.get_extra_info("socket")
    if way == HALF:
        caller.writer.write_eof()
        return
    if way == RESET:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.writer.transport.abort()


async def nothing_held(site: Site, idle: int) -> None:
    """No slot, place in a queue, byte of memory or connection is held for anybody."""
    plane = site.plane
    await until(lambda: not plane.clients and not plane._connects)
    await site.settled()
    assert (plane.memory.held, plane.memory.promised, plane.memory.uploads) == (0, 0, set())
    assert all(state.queue.count == 0 for state in site.dispatcher.model_states())
    assert not site.dispatcher.effects
    assert sum(not each.dead for endpoint in plane.pooled for each in endpoint.pool) == idle
    plane._drop_idle()


async def serves_again(site: Site) -> None:
    """The next request is answered, by the same endpoints."""
    site.client = Client
    for engine in site.engines:
        await engine.stop()
        await engine.start()
        engine.behaviour = json_answer()
    site.plane.driver.start()
    site.tell()
    for endpoint in site.dispatcher.endpoints.values():
        endpoint.failures, endpoint.paused_until = 0, min(endpoint.paused_until, site.plane.now())
    assert (await site.ask(post())).status == 200


@pytest.mark.fault("R1", "R2")
@pytest.mark.parametrize(
    ("stage", "way"),
    [pytest.param(stage, way, id=f"{stage.name}, {way}".replace(" ", "-")) for stage in STAGES for way in stage.ways],
)
@on_uvloop
async def test_a_client_leaves(stage: Stage, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "REPLAY_AFTER_S", 1.0)
    async with Site(*stage.behaviours, **stage.options) as site:
        site.plane.driver.stop()
        before = Before()
        holes = site.holes = ExitStack()  # type: ignore[attr-defined]  # what a stage opens
        caller = await site.call()
        await stage.reach(site, caller)
        leave(caller, way)
        received = [each for engine in site.engines for each in engine.received]
        assert len(received) == stage.engines
        for each in received if not stage.idle else ():
            await asyncio.wait_for(each.gone.wait(), 5)
        await nothing_held(site, stage.idle)
        caller.leave()
        holes.close()
        await before.nothing_left()
        assert sum(len(engine.received) for engine in site.engines) == stage.engines, "it was sent after all"
        await serves_again(site)
