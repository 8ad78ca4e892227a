"""Bodies of requests: refused ones never reach an engine, and every byte that is held counts against the process' bound."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from router.shell.framing import ChunkedBody
from router.shell.http import Limits
from router.shell.large_body import STEP_MIN
from tests.router.by_hand import client, plane
from tests.router.wire import SSE_HEAD, Received, Site, chunk, event, json_answer, on_uvloop, post, until

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def head_of(length: int, *fields: str) -> bytes:
    return post(b"x" * length, *fields)[:-length]


@pytest.mark.parametrize("size", [100_000, 1 << 20])
@on_uvloop
async def test_a_body_refused_for_want_of_progress_never_reaches_the_engine_even_if_it_comes_after_all(
    size: int,
) -> None:
    async with Site(json_answer(), limits=Limits(body_s=0.2)) as site:
        caller = await site.call()
        whole = post(b'{"model":"m"}'.ljust(size))
        caller.writer.write(whole[:2000])
        answer = await caller.answer()
        assert (answer.status, answer.fields["connection"]) == (400, "close")
        assert b"made no progress for 0.2 s" in answer.body
        assert site.plane.memory.held == 0
        caller.writer.write(whole[2000:])
        assert await caller.closed() == b""
        await until(lambda: not site.plane.clients)
        assert site.engines[0].connections == 0
        await site.settled()


@on_uvloop
async def test_a_refused_large_body_is_given_back_once() -> None:
    """Its rest is thrown away by the client's own protocol, so that nothing can be freed or dispatched a second time."""
    of = plane()
    of.dispatcher.names.clear()  # whatever is dispatched now would be refused at once, and so end a second time
    refused, transport = client(of)
    refused.data_received(head_of(1 << 20) + b"x" * 1000)
    assert (of.memory.held, transport.done) == (1000 + STEP_MIN, ["BufferedBody"])
    of.tick += 200
    of.driver.beat()
    assert (of.memory.held, transport.done) == (0, ["BufferedBody", "Client", "eof"])
    for _ in range(16):
        refused.data_received(b"x" * 65_536)
    refused.connection_lost(None)
    assert of.memory.held == 0
    assert transport.sent.count(b"HTTP/1.1 ") == 1


@on_uvloop
async def test_every_way_a_body_can_come_counts_while_it_is_held_and_nothing_counts_afterwards() -> None:
    of = plane()
    small, several, large, chunked = (client(of)[0] for _ in range(4))
    small.data_received(post(b"x" * 1000))
    assert of.memory.held == 1000
    several.data_received(post(b"x" * 2000)[:-500])
    assert of.memory.held + of.memory.promised == 3000
    several.data_received(b"x" * 500)
    assert (of.memory.held, of.memory.promised) == (3000, 0)  # it waits in the queue now, and is still held
    large.data_received(head_of(1 << 20))
    assert of.memory.held == 3000 + STEP_MIN
    large.connection_lost(None)
    chunked.data_received(CHUNKED)
    for number in range(4):
        chunked.data_received(chunk(b"x" * 5000))
        assert of.memory.held == 3000 + (number + 1) * len(chunk(b"x" * 5000))
    for each in (small, several, chunked):
        each.connection_lost(None)
    assert of.memory.held == 0
    assert of.dispatcher.model_states()[0].queue.bytes == 0


@pytest.mark.fault("R13")
@on_uvloop
async def test_the_bound_holds_for_any_kind_of_body() -> None:
    of = plane(Limits(bodies_total_bytes=10_000))
    kept, _ = client(of)
    kept.data_received(post(b"x" * 6000))
    for sent in (post(b"x" * 5000), post(b"x" * 5000)[:-1], head_of(1 << 20), head_of(5000, "Expect: 100-continue")):
        refused, transport = client(of)
        refused.data_received(sent)
        assert transport.sent.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in transport.sent
        assert b'"code":"out_of_memory"' in transport.sent
        assert of.memory.held == 6000
    chunked, transport = client(of)
    chunked.data_received(CHUNKED)
    chunked.data_received(chunk(b"x" * 2000))
    assert (of.memory.held, transport.sent) == (6000 + len(chunk(b"x" * 2000)), b"")
    chunked.data_received(chunk(b"x" * 2000))
    assert transport.sent.startswith(b"HTTP/1.1 503 ")
    assert of.memory.held == 6000
    kept.connection_lost(None)
    assert of.memory.held == 0


@on_uvloop
async def test_a_body_that_comes_in_the_smallest_pieces_is_held_in_one_piece() -> None:
    of = plane()
    for sent in (head_of(20_000), CHUNKED):
        slow, _ = client(of)
        slow.data_received(sent)
        for _ in range(1000):
            slow.data_received(b"xy" if sent is not CHUNKED else chunk(b"xy"))
        body = slow._body
        assert isinstance(body.store, bytearray)  # type: ignore[union-attr]  # a list would hold 17 times the bytes
        assert len(body.store) == 2000  # type: ignore[union-attr]


@on_uvloop
async def test_a_body_is_given_up_when_its_answer_begins() -> None:
    gate = asyncio.Event()

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(0)))
        await gate.wait()
        writer.write(b"0\r\n\r\n")

    async with Site(behave) as site:
        for size in (1000, 1 << 20):
            caller = await site.call()
            caller.writer.write(post(b'{"model":"m"}'.ljust(size)))
            await caller.reader.readuntil(event(0))
            assert site.plane.memory.held == 0
        gate.set()
        await site.settled()


REFUSED = {
    "too large": (post(b"x" * 1001, "X-Request-Id: mine-7"), 413),
    "too large in chunks": (
        CHUNKED[:-2] + b"X-Request-Id: mine-7\r\n\r\n" + chunk(b"x" * 1024) + b"0\r\n\r\n",
        413,
    ),
    "bad chunks": (CHUNKED[:-2] + b"X-Request-Id: mine-7\r\n\r\nzz\r\n", 400),
    "no memory": (post(b"x" * 600, "X-Request-Id: mine-7"), 503),
    "late": (post(b"x" * 400, "X-Request-Id: mine-7")[:-1], 400),
    "expectation": (post(b"x" * 400, "X-Request-Id: mine-7", "Expect: more"), 417),
    "two lengths": (post(b"x" * 400, "X-Request-Id: mine-7", "Content-Length: 5"), 400),
    "no host": (post(b"x" * 400, "X-Request-Id: mine-7").replace(b"Host: x\r\n", b""), 400),
    "late head": (post(b"x", "X-Request-Id: mine-7")[:-9], 400),
    "too large a head": (post(b"x", "X-Request-Id: mine-7", "X: " + "y" * 70_000), 431),
    "unreadable line": (post(b"x" * 400, "X-Request-Id: mine-7", "no colon"), 400),
}


@pytest.mark.parametrize("what", REFUSED)
@on_uvloop
async def test_a_refusal_carries_the_id_that_the_client_gave(what: str) -> None:
    sent, status = REFUSED[what]
    async with Site(
        json_answer(), limits=Limits(body_bytes=1000, bodies_total_bytes=500, body_s=0.2, head_s=0.2)
    ) as site:
        answer = await site.ask(sent)
        assert (answer.status, answer.fields["x-request-id"]) == (status, "mine-7")
        assert answer.fields["connection"] == "close"


@on_uvloop
async def test_a_refusal_carries_our_id_when_the_client_gave_none_that_can_be_said() -> None:
    async with Site(json_answer(), limits=Limits(body_bytes=10)) as site:
        assert (await site.ask(post(b"x" * 11))).fields["x-request-id"] == "boot-1"
        assert (await site.ask(post(b"x" * 11, "X-Request-Id: a b"))).fields["x-request-id"] == "boot-2"
        assert (await site.ask(b"nonsense\r\n\r\n")).fields["x-request-id"] == "boot-3"


@on_uvloop
async def test_a_refusal_after_the_head_has_the_form_of_its_path_and_its_method() -> None:
    async with Site(json_answer(), limits=Limits(body_bytes=10)) as site:
        answer = await site.ask(post(b"x" * 11, path="/v2/models/m/infer"))
        assert json.loads(answer.body) == {"error": "the body of 11 bytes is larger than 10 bytes"}
        assert answer.fields["server-timing"] == "queue;dur=0.0"
        caller = await site.call()
        caller.writer.write(post(b"x" * 11).replace(b"POST", b"HEAD"))
        assert (await caller.closed()).endswith(b"\r\n\r\n")


@on_uvloop
async def test_a_chunked_body_is_freed_at_once_however_it_ends() -> None:
    """Its parser and itself hold each other, and the collector of cycles runs too seldom to be waited for: 80 uploads of
    40 MB once left 3 GB behind.
    """
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-model: m\r\ntransfer-encoding: chunked\r\n\r\n"
    part = b"400\r\n" + b"x" * 1024 + b"\r\n"
    gc.collect()
    gc.disable()
    try:
        async with Site(json_answer()) as site:
            caller = await site.call()
            assert (await caller.ask(head + part + b"0\r\n\r\n")).status == 200
            refused = await site.call()
            assert (await refused.ask(head + part + b"zz\r\n")).status == 400
            leaves = await site.call()
            leaves.writer.write(head + part)
            await until(lambda: site.plane.memory.held > 0)
            leaves.writer.transport.abort()
            await site.settled()
            assert [each for each in gc.get_objects() if isinstance(each, ChunkedBody)] == []
    finally:
        gc.enable()


@pytest.mark.fault("R14")
@on_uvloop
async def test_a_body_of_64_mib_passes() -> None:
    async with Site(json_answer()) as site:
        site.engines[0].behaviour = json_answer()
        body = b'{"model":"m"}'.ljust(64 << 20)
        assert (await site.ask(post(body))).status == 200
        assert site.engines[0].received[0].body == body
        await site.settled()
