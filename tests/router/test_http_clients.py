"""Clients that do not read, that send too much, and that leave meanwhile: each is noticed and none is kept for ever."""

from __future__ import annotations

import asyncio

import pytest

from router.model import table_from
from router.shell.client import BUSY, CLOSING, PIPELINED_MAX, WAITING
from router.shell.driver import BEAT_S
from router.shell.http import Limits
from router.shell.large_body import BufferedBody
from tests.router.by_hand import beats, client, plane
from tests.router.wire import SSE_HEAD, Received, Site, chunk, event, json_answer, on_uvloop, post, until

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def beats_for(seconds: float) -> int:
    """How many beats until a bound of so many seconds has passed."""
    return int(seconds / BEAT_S) + 1


@on_uvloop
async def test_an_idle_client_that_does_not_read_its_answer_is_cut_off() -> None:
    of = plane(Limits(idle_s=5, stall_s=60))
    stalled, transport = client(of)
    stalled.data_received(HEALTH)
    stalled.pause_writing()  # what it was sent is more than the sockets' buffers take
    assert stalled.state == WAITING
    beats(of, beats_for(5))
    assert transport.done == ["abort"]


@on_uvloop
async def test_an_idle_client_whose_last_bytes_never_leave_is_closed_then_cut_off() -> None:
    of = plane(Limits(idle_s=5, stall_s=60))
    idle, transport = client(of)
    idle.data_received(HEALTH)
    beats(of, beats_for(5))
    assert (transport.done, idle.state) == (["close"], CLOSING)
    beats(of, beats_for(60) - 1)
    assert transport.done == ["close"]  # once, and its buffer gets the bound on stalled clients to empty
    beats(of, 1)
    assert transport.done == ["close", "abort"]


@on_uvloop
async def test_a_client_that_stalls_inside_its_next_request_is_cut_off_not_answered() -> None:
    of = plane(Limits(stall_s=5, body_s=60))
    stalled, transport = client(of)
    stalled.data_received(HEALTH)
    stalled.pause_writing()
    stalled.data_received(post(b"x" * 100)[:-1])
    sent = transport.sent
    beats(of, beats_for(5))
    assert (transport.done, transport.sent) == (["abort"], sent)


@on_uvloop
async def test_the_end_of_a_long_answer_gets_the_whole_bound_to_leave() -> None:
    of = plane(Limits(stall_s=5))
    slow, transport = client(of)
    slow.data_received(post(b"{}", "Connection: close"))
    beats(of, beats_for(60))
    of.dispatcher.apply(table_from({"source": "t", "revision": 1}), of.now())  # refuses it: its answer ends only now
    of.apply_effects()
    assert (transport.done, slow.state) == (["close"], CLOSING)
    beats(of, beats_for(5) - 1)
    assert transport.done == ["close"]
    beats(of, 1)
    assert transport.done == ["close", "abort"]


@on_uvloop
async def test_a_stalled_keep_alive_client_is_disconnected_on_real_sockets() -> None:
    async with Site(json_answer(b"x" * 900_000), limits=Limits(idle_s=0.5, stall_s=0.5)) as site:
        caller = await site.call()
        caller.transport.pause_reading()
        for _ in range(40):
            caller.writer.write(post())
        await until(lambda: any(each.stalled is not None for each in site.plane.clients))
        await until(lambda: not site.plane.clients)
        await site.settled()


async def stream(received: Received, writer: asyncio.StreamWriter) -> None:
    """An engine that generates until the router closes the connection."""
    writer.write(SSE_HEAD + chunk(event(0)))
    await received.gone.wait()


@pytest.mark.fault("R13")
@pytest.mark.parametrize("surplus", [PIPELINED_MAX + 1, 4 * PIPELINED_MAX])
@on_uvloop
async def test_more_pipelined_bytes_than_are_kept_end_the_connection_and_its_generation(surplus: int) -> None:
    async with Site(stream) as site:
        caller = await site.call()
        caller.writer.write(post())
        await caller.reader.readuntil(chunk(event(0)))
        caller.writer.write(b"x" * surplus)
        await asyncio.wait_for(site.engines[0].received[0].gone.wait(), 1)
        assert await caller.closed() == b""
        await site.settled()
        assert site.dispatcher.endpoints["e0"].outcomes == {"client_gone": 1}


@on_uvloop
async def test_a_client_that_pipelines_all_that_is_kept_and_leaves_is_noticed() -> None:
    async with Site(stream) as site:
        caller = await site.call()
        caller.writer.write(post())
        await caller.reader.readuntil(event(0))
        caller.writer.write(b"x" * PIPELINED_MAX)
        await until(lambda: all(len(each._held) == PIPELINED_MAX for each in site.plane.clients))
        caller.leave()
        await asyncio.wait_for(site.engines[0].received[0].gone.wait(), 1)
        await site.settled()


@on_uvloop
async def test_too_much_behind_a_request_in_the_same_read_is_refused_before_it_is_sent() -> None:
    of = plane()
    for first in (post(b"{}"), HEALTH):
        busy, transport = client(of)
        busy.data_received(first + b"x" * (PIPELINED_MAX + 1))
        assert transport.sent.startswith(b"HTTP/1.1 413 ")
        assert busy.state not in (BUSY, WAITING)
        assert of.dispatcher.model_states()[0].queue.count == 0
    busy, transport = client(of)
    busy.data_received(post(b"{}" + b" " * 100)[:-50])
    busy.data_received(b" " * 50 + b"x" * (PIPELINED_MAX + 1))
    assert transport.sent.startswith(b"HTTP/1.1 413 ")


@on_uvloop
async def test_who_does_not_read_is_known_while_a_large_body_is_read() -> None:
    of = plane()
    slow, transport = client(of)
    slow.data_received(post(b"x" * (1 << 20))[:-5])
    reading = transport.protocol
    assert isinstance(reading, BufferedBody)
    reading.pause_writing()
    assert slow.stalled == of.tick
    reading.resume_writing()
    assert slow.stalled is None
