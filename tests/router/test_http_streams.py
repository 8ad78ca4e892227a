"""Event streams over real sockets: nothing is changed on the way, no half event is ever followed by something else."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.shell.streams import HELD_MAX
from tests.router.wire import (
    DONE,
    SSE_HEAD,
    Answer,
    Received,
    Site,
    chunk,
    event,
    json_answer,
    on_uvloop,
    post,
    raw_answer,
    until,
)

STREAM = b'{"model":"m","stream":true}'


def broken_stream(answer: Answer, whole: bytes) -> None:
    """What a client must have got: the whole events, one error event, no [DONE], a well-formed end."""
    assert answer.whole
    assert answer.body.startswith(whole)
    rest = answer.body[len(whole) :]
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"\n\n")
    error = json.loads(rest[6:])["error"]
    assert error["code"] in (502, 504)
    assert error["message"]


@on_uvloop
async def test_events_pass_as_they_come_and_are_counted() -> None:
    stream = raw_answer(SSE_HEAD, *(chunk(event(n)) for n in range(5)), chunk(DONE) + b"0\r\n\r\n")
    async with Site(stream) as site:
        caller = await site.call()
        for _ in range(2):
            answer = await caller.ask(post(STREAM))
            assert answer.body == b"".join(event(n) for n in range(5)) + DONE
            assert answer.fields["content-type"].startswith("text/event-stream")
        assert site.engines[0].connections == 1
        await site.settled()
        load = site.dispatcher.report(asyncio.get_running_loop().time() + 1).models["m"]
        assert sum(load.tokens_out) == 12
        assert load.ttft_s.count[-1] == 2
        assert load.itl_s.count[-1] == 10
        assert site.dispatcher.endpoints["e0"].outcomes == {"success": 2}


@pytest.mark.fault("R12")
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n\r\n", b"\n\n\r\n\r\n"])
@on_uvloop
@pytest.mark.fault("R12")
async def test_any_split_of_the_bytes_gives_the_same_events(end: bytes) -> None:
    """Every cut position of a stream with two events in a chunk, an event over two chunks, and UTF-8."""
    one, two, three = (f'data: {{"t":"ä{n}€"}}'.encode() + end for n in range(3))
    stream = chunk(one + two) + chunk(three[:9]) + chunk(three[9:]) + chunk(b"data: [DONE]" + end) + b"0\r\n\r\n"
    whole = one + two + three + b"data: [DONE]" + end
    cut = 0

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        for part in (SSE_HEAD, stream[:cut], stream[cut:]):
            writer.write(part)
            await asyncio.sleep(0.0005)

    async with Site(behave) as site:
        caller = await site.call()
        for cut in range(len(stream)):
            answer = await caller.ask(post(STREAM))
            assert answer.whole, cut
            assert answer.body == whole, cut
        assert site.engines[0].connections == 1
        await site.settled()


@on_uvloop
@pytest.mark.fault("R11")
async def test_an_engine_that_dies_at_any_byte_ends_the_stream_with_one_error_event() -> None:
    events = [event(n) for n in range(3)]
    stream = chunk(events[0]) + chunk(events[1] + events[2][:20]) + chunk(events[2][20:])
    cut = 0

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        await asyncio.sleep(0.0005)
        writer.write(stream[:cut])
        writer.close()

    async with Site(behave) as site:
        caller = await site.call()
        for cut in range(len(stream) + 1):
            answer = await caller.ask(post(STREAM))
            assert answer.whole, cut
            at = answer.body.rfind(b'data: {"error"')
            # The client got every event whose last byte it could have got; a size line has 4 bytes.
            got = sum(
                cut >= end for end in (4 + len(events[0]), len(chunk(events[0])) + 4 + len(events[1]), len(stream) - 2)
            )
            assert answer.body[:at] == b"".join(events[:got]), cut
            broken_stream(answer, answer.body[:at])
            at_e0 = site.dispatcher.endpoints["e0"]
            at_e0.failures, at_e0.paused_until = 0, 0.0
            site.tell()
        await site.settled()
        assert site.plane.counters.error_events == len(stream) + 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"zz\r\n",
        b"-5\r\n",
        b"5\r\nhello!",
        b"0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"ffffffffffffffffff\r\n",
    ],
)
@on_uvloop
@pytest.mark.fault("R11", "R15")
async def test_an_engine_that_breaks_the_framing_is_cut_off_and_nothing_leaks(garbage: bytes) -> None:
    async with Site(raw_answer(SSE_HEAD + chunk(event(0)), garbage)) as site:
        caller = await site.call()
        answer = await caller.ask(post(STREAM))
        broken_stream(answer, event(0))
        await site.engines[0].received[0].gone.wait()
        assert site.dispatcher.endpoints["e0"].outcomes == {"cut": 1}
        await site.settled()


@on_uvloop
async def test_the_connection_serves_on_after_an_error_event() -> None:
    async with Site(raw_answer(SSE_HEAD, chunk(event(0)), abort=True)) as site:
        caller = await site.call()
        broken_stream(await caller.ask(post(STREAM)), event(0))
        site.engines[0].behaviour = json_answer()
        assert (await caller.ask(post())).status == 200


@on_uvloop
async def test_the_engines_own_error_event_and_done_pass_untouched() -> None:
    error = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    async with Site(raw_answer(SSE_HEAD, chunk(event(0)), chunk(error), chunk(DONE), b"0\r\n\r\n")) as site:
        answer = await site.ask(post(STREAM))
        assert answer.body == event(0) + error + DONE
        assert site.plane.counters.error_events == 0


@on_uvloop
async def test_a_chunked_answer_without_events_that_dies_is_cut_not_completed() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    async with Site(raw_answer(head, chunk(b'{"a":'), close=True)) as site:
        answer = await site.ask(post())
        assert (answer.whole, answer.body) == (False, b'{"a":')
        await site.settled()
    async with Site(raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", b"12345", close=True)) as site:
        answer = await site.ask(post())
        assert not answer.whole
        await site.settled()


@pytest.mark.fault("R14")
@on_uvloop
@pytest.mark.fault("R13", "R14")
async def test_an_event_beyond_the_bound_is_forwarded_in_parts() -> None:
    large = b"data: " + b"x" * (3 * HELD_MAX) + b"\n\n"
    async with Site(raw_answer(SSE_HEAD, chunk(large), chunk(DONE) + b"0\r\n\r\n")) as site:
        answer = await site.ask(post(STREAM))
        assert answer.body == large + DONE
        await site.settled()
    async with Site(raw_answer(SSE_HEAD, chunk(large)[: 2 * HELD_MAX], close=True)) as site:
        answer = await site.ask(post(STREAM))
        assert not answer.whole  # inside an event nothing else can be said
        await site.settled()


@on_uvloop
async def test_a_stream_without_chunks_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with Site(raw_answer(head, event(0), DONE, close=True)) as site:
        answer = await site.ask(post(STREAM))
        assert answer.body == event(0) + DONE
        assert answer.fields["connection"] == "close"
        await site.settled()
        assert site.dispatcher.endpoints["e0"].outcomes == {"success": 1}


@on_uvloop
@pytest.mark.fault("R19")
async def test_the_slot_is_held_to_the_last_byte() -> None:
    gate = asyncio.Event()

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(0)))
        await gate.wait()
        writer.write(chunk(DONE) + b"0\r\n\r\n")

    async with Site(behave, limit=1) as site:
        first = await site.call()
        first.writer.write(post(STREAM))
        await first.reader.readuntil(event(0))
        assert site.dispatcher.endpoints["e0"].in_flight == 1
        second = await site.call()
        second.writer.write(post(STREAM))
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 1)
        assert site.dispatcher.endpoints["e0"].in_flight == 1
        assert len(site.engines[0].received) == 1
        gate.set()
        answer = await second.answer()
        assert answer.body == event(0) + DONE
        assert answer.fields["server-timing"].startswith("queue;dur=")
        await site.settled()


@on_uvloop
@pytest.mark.fault("R13")
async def test_a_slow_reader_holds_back_the_engine_and_gets_everything() -> None:
    """20 MB to a client that does not read: the router holds a few hundred KB, and the engine is made to wait."""
    written = 0
    block = chunk(b"data: " + b"x" * 50_000 + b"\n\n")

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(SSE_HEAD)
        for _ in range(400):
            writer.write(block)
            await writer.drain()
            written += 1
        writer.write(b"0\r\n\r\n")

    async with Site(behave) as site:
        caller = await site.call()
        caller.transport.pause_reading()
        caller.writer.write(post(STREAM))
        await until(lambda: bool(site.plane.clients))
        (client,) = site.plane.clients
        before, held = -1, 0
        while before != written or client.stalled is None:  # until nothing moves any more
            before = written
            for _ in range(20):
                await asyncio.sleep(0.005)
                held = max(held, client.transport.get_write_buffer_size())
        # uvloop asks for a pause above 64 KiB and reads 250 KiB at once; what was read before the pause is one read more.
        assert 0 < held <= (64 + 2 * 250) << 10
        assert client.exchange is not None
        assert client.exchange.upstream is not None
        assert client.exchange.upstream.paused
        assert written < 300  # the rest sits in the sockets' buffers
        caller.transport.resume_reading()
        answer = await caller.answer()
        assert len(answer.body) == 400 * 50_008
        await site.settled()
        assert (await caller.ask(post(b'{"model":"m"}'))).status == 200
