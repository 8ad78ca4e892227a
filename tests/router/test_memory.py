"""Memory for bodies: a declaration costs nothing, who is let in and keeps its course is not refused half way, and the slow
make room.
"""

from __future__ import annotations

import random

import pytest

from router.shell.client import BODY, BUSY, LINGERING, Client
from router.shell.driver import BEAT_S
from router.shell.http import DataPlane, Limits
from router.shell.large_body import STEP_MIN, BufferedBody
from tests.router.by_hand import Hand, beats, client, plane
from tests.router.wire import Site, chunk, json_answer, on_uvloop, post, until

MIB = 1 << 20
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def declared(length: int) -> bytes:
    """The head of a POST, its body still to come."""
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length


def upload(of: DataPlane, length: int) -> tuple[Client, Hand]:
    """A client that has sent the head of such a body."""
    made, transport = client(of)
    made.data_received(declared(length))
    return made, transport


def arrive(made: Client, transport: Hand, size: int) -> None:
    """So many bytes of its body come, as reads of at most 256 KiB."""
    while size > 0 and made.state == BODY:
        step = min(size, 256 << 10)
        reading = transport.protocol
        if isinstance(reading, BufferedBody):
            step = min(step, len(reading.get_buffer(-1)))
            reading.get_buffer(-1)[:step] = b"x" * step
            reading.buffer_updated(step)
        else:
            made.data_received(b"x" * step)
        size -= step


def refused(transport: Hand) -> bool:
    """Was it told that there is no room."""
    return transport.sent.startswith(b"HTTP/1.1 503 ") and b'"code":"out_of_memory"' in transport.sent


@pytest.mark.fault("R26")
@on_uvloop
async def test_thousands_that_declare_64_mib_and_send_nothing_keep_nobody_out() -> None:
    of = plane()
    for _ in range(3000):
        upload(of, 64 * MIB)
    assert of.memory.held == 3000 * STEP_MIN
    for length in (100, 100_000, 10 * MIB, 64 * MIB):
        made, transport = upload(of, length)
        arrive(made, transport, length)
        assert made.state == BUSY, length
    whole, _ = client(of)
    whole.data_received(post(b"x" * 50_000))
    assert whole.state == BUSY


@pytest.mark.fault("R26")
@on_uvloop
async def test_the_same_on_real_sockets() -> None:
    async with Site(json_answer(), limits=Limits(bodies_total_bytes=10 * MIB)) as site:
        for _ in range(100):
            (await site.call()).writer.write(declared(8 * MIB))
        await until(lambda: len(site.plane.memory.uploads) == 100)
        assert (await site.ask(post(b'{"model":"m"}'.ljust(5 * MIB)))).status == 200
        assert (await site.ask(post(b'{"model":"m"}'.ljust(50_000)))).status == 200


@on_uvloop
async def test_who_is_let_in_and_keeps_its_course_is_not_refused_half_way() -> None:
    of = plane(Limits(bodies_total_bytes=100 * MIB, body_s=30))
    started = [upload(of, 40 * MIB) for _ in range(3)]  # three do not fit, which shows when they begin to arrive
    for made, transport in started:
        arrive(made, transport, 2 * MIB)
    assert [refused(transport) for _, transport in started] == [False, False, True]
    assert of.memory.held + of.memory.promised == 80 * MIB
    late, transport = upload(of, 21 * MIB)
    assert refused(transport)  # at its head, before it sends 21 MiB for nothing
    small, transport = upload(of, 15 * MIB)
    arrive(small, transport, 15 * MIB)
    assert small.state == BUSY
    chunked, transport = client(of)  # does not say how long it is, so it is promised nothing
    chunked.data_received(CHUNKED)
    for _ in range(6):
        chunked.data_received(chunk(b"x" * MIB))
    assert refused(transport)
    for made, transport in started[:2]:
        for _ in range(38):
            beats(of, 2)
            arrive(made, transport, MIB)
        assert made.state == BUSY
    assert (of.memory.held, of.memory.promised) == (95 * MIB, 0)
    assert late.state == LINGERING


@on_uvloop
async def test_who_falls_off_its_course_loses_its_promise_then_its_place_the_slowest_first() -> None:
    of = plane(Limits(bodies_total_bytes=100 * MIB, body_s=30))
    slow = [upload(of, 64 * MIB) for _ in range(6)]
    for number, (made, transport) in enumerate(slow):
        beats(of, 8)  # by now those before are off course, so each is let in: the promises of the others are void
        arrive(made, transport, (3 + number % 3) * MIB)
    assert [made.state for made, _ in slow] == [BODY] * 6
    beats(of, 8)
    held = of.memory.held
    assert 24 * MIB < held <= 30 * MIB
    made, transport = upload(of, 38 * MIB)  # fits beside what they hold: only promises are broken
    arrive(made, transport, 38 * MIB)
    assert made.state == BUSY
    assert of.memory.held == held + 38 * MIB
    beats(of, 1)
    made, transport = upload(of, 40 * MIB)  # does not: the slowest go, no more of them than need be
    arrive(made, transport, 40 * MIB)
    assert made.state == BUSY
    gone = [number for number, (made, _) in enumerate(slow) if made.state == LINGERING]
    assert gone == [0, 3]  # 3 MiB each, the others 4 and 5
    assert all(refused(slow[number][1]) for number in gone)
    assert of.memory.held + of.memory.promised <= of.memory.limit


@on_uvloop
async def test_a_body_that_comes_slower_than_allowed_is_ended() -> None:
    of = plane(Limits(body_s=10, body_bytes_per_s=1000))
    fine, fine_transport = upload(of, 60_000)
    slow, slow_transport = upload(of, 60_000)
    for _ in range(30):
        arrive(fine, fine_transport, 1000)
        arrive(slow, slow_transport, 500)
        beats(of, int(1 / BEAT_S))
    assert fine.state == BODY
    assert b"the body comes slower than 1000 bytes a second" in slow_transport.sent
    assert slow.state == LINGERING


@pytest.mark.parametrize("seed", range(20))
@on_uvloop
async def test_the_bound_holds_and_everything_is_given_back_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    of = plane(Limits(bodies_total_bytes=20 * MIB, body_bytes=8 * MIB, body_s=3))
    alive: list[tuple[Client, Hand]] = []
    for _ in range(400):
        kind = rng.randrange(8)
        if kind == 0:
            alive.append(upload(of, int(8 * MIB ** rng.random()) + 1))
        elif kind == 1:
            alive.append(client(of))
            alive[-1][0].data_received(CHUNKED)
        elif kind == 2:
            alive.append(client(of))
            alive[-1][0].data_received(post(b"x" * rng.randrange(1, 200_000)))
        elif kind == 3 and alive:
            alive.pop(rng.randrange(len(alive)))[0].connection_lost(None)
        elif kind == 4:
            beats(of, rng.randrange(3))
        elif alive:
            made, transport = rng.choice(alive)
            if made.state == BODY and made.upload is not None and not made.upload.exchange.head.chunked:
                arrive(made, transport, rng.randrange(1, 2 * MIB))
            elif made.state == BODY:
                made.data_received(
                    chunk(b"x" * rng.randrange(1, 200_000)) + (b"0\r\n\r\n" if rng.random() < 0.2 else b"")
                )
        memory = of.memory
        assert memory.held + memory.promised <= memory.limit
        assert memory.promised == sum(each.promised for each in memory.uploads)
        exchanges = {made.exchange for made, _ in alive if made.exchange is not None}
        assert memory.held == sum(each.reserved for each in exchanges)
        assert {each.exchange for each in memory.uploads} <= exchanges
    for made, _ in alive:
        made.connection_lost(None)
    assert (of.memory.held, of.memory.promised, of.memory.uploads) == (0, 0, set())
