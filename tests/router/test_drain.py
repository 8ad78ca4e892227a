"""How connections end while a router leaves, and what a worker says for those that it replaced."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from aiohttp import web

from router.model import EndpointAck, IntentTable, TableAck
from router.shell import drain
from router.shell.admin_site import admin_site
from router.shell.predecessors import Predecessors, merged
from router.shell.sockets import address, listening
from tests.router.test_admin import ENDPOINT, Client, serving, table
from tests.router.wire import Site, json_answer, on_uvloop, post, until

HELD = TableAck(applied=(1, 1), endpoints={"a": EndpointAck(in_flight=1, drained=False, health="ready")})
EMPTY = TableAck(applied=(1, 1), endpoints={"a": EndpointAck(in_flight=0, drained=True, health="ready")})
OTHER = TableAck(applied=(1, 1), endpoints={"b": EndpointAck(in_flight=2, drained=False, health="ready")})


@pytest.mark.fault("R28")
@pytest.mark.parametrize(
    ("ours", "theirs", "in_flight", "drained"),
    [(EMPTY, HELD, 1, False), (HELD, EMPTY, 1, False), (EMPTY, EMPTY, 0, True), (HELD, HELD, 2, False)],
)
def test_drained_is_what_all_say(ours: TableAck, theirs: TableAck, in_flight: int, drained: bool) -> None:
    both = merged(ours, theirs)
    assert both.applied == (1, 1)
    assert (both.endpoints["a"].in_flight, both.endpoints["a"].drained) == (in_flight, drained)


def test_who_says_nothing_has_drained_nothing_and_what_only_they_have_is_there() -> None:
    assert merged(EMPTY, None).endpoints["a"].drained is False
    assert merged(EMPTY, OTHER).endpoints["b"] == OTHER.endpoints["b"]


async def test_a_table_is_passed_on_with_the_token_and_who_is_gone_is_not_asked() -> None:
    asked: list[tuple[bytes, str]] = []

    async def put(request: web.Request) -> web.Response:
        asked.append((await request.read(), request.headers.get("authorization", "")))
        return web.Response(body=msgspec.json.encode(HELD))

    application = web.Application()
    application.router.add_put("/admin/v1/endpoints", put)
    runner = web.AppRunner(application)
    await runner.setup()
    with listening("127.0.0.1", 0, "--admin-port") as there, listening("127.0.0.1", 0, "--admin-port") as gone:
        await web.SockSite(runner, there).start()
        silent = address(gone)
        gone.close()
        before = Predecessors("a token")
        assert not before
        before.came([address(there)])
        assert before
        assert await before.with_theirs(b"{}", EMPTY) == HELD
        assert asked == [(b"{}", "Bearer a token")]
        before.came([silent])
        before.gone(address(there))
        assert (await before.with_theirs(b"{}", EMPTY)).endpoints["a"].drained is False
        before.gone(silent)
        assert not before
        await runner.cleanup()


async def test_after_a_move_the_public_address_is_nobodys_and_the_private_one_serves() -> None:
    async with serving() as client:
        admin = client.admin
    listener, private = listening("127.0.0.1", 0, "x"), listening("127.0.0.1", 0, "x")
    async with admin_site(admin, listener) as site:
        public, moved = address(listener), address(private)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"\r\n")
        await until(lambda: not admin.at_work)
        await site.move(private)
        assert (await reader.read())[-20:].endswith(b'{"status":"alive"}'), "the idle connection is closed in order"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*listener_place(public))
        _, answer = await asyncio.gather(asyncio.sleep(0), status(moved))
        assert answer == 200
        writer.close()


def listener_place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


async def status(url: str) -> int:
    reader, writer = await asyncio.open_connection(*listener_place(url))
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    said = await reader.read()
    writer.close()
    return int(said.split(b" ")[1])


async def test_a_table_is_acknowledged_with_the_word_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as client:
        assert isinstance(client, Client)

        async def with_theirs(body: bytes, ours: TableAck) -> TableAck:
            assert msgspec.json.decode(body, type=IntentTable).revision == 1
            return HELD

        client.admin.predecessors.came(["http://127.0.0.1:1"])
        monkeypatch.setattr(client.admin.predecessors, "with_theirs", with_theirs)
        _, answer = await client.put(table(1, ENDPOINT))
        assert answer == json.loads(msgspec.json.encode(HELD))


@pytest.mark.fault("R9")
@on_uvloop
async def test_an_answer_that_has_not_begun_says_that_it_is_the_last() -> None:
    gate = asyncio.Event()

    async def behave(received: Any, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await json_answer()(received, writer)

    async with Site(behave) as site:
        caller = await site.call()
        caller.writer.write(post())
        await site.engines[0].got(1)
        drain.announce(site.plane)
        gate.set()
        answer = await caller.answer()
        assert answer.fields["connection"] == "close"
        assert await caller.reader.read() == b""


@pytest.mark.fault("R9")
@on_uvloop
async def test_idle_connections_are_closed_after_their_time_but_not_one_with_a_request_that_was_not_read() -> None:
    async with Site(json_answer()) as site:
        idle, asking = await site.call(), await site.call()
        for caller in (idle, asking):
            assert (await caller.ask(post())).status == 200
        site.plane.driver.stop()
        since = site.plane.tick
        drain.close_idle(site.plane, since, 0.5)
        assert not any(client.transport.is_closing() for client in site.plane.clients), "not yet"
        site.plane.tick += 2
        sock = asking.writer.get_extra_info("socket")
        asking.writer.write(post())  # leaves at once; the router's end of it is read in the loop's next turn
        assert sock is not None
        drain.close_idle(site.plane, since, 0.5)
        assert (await asking.answer()).status == 200
        assert await idle.reader.read() == b""
        await site.settled()
