"""Clients that leave real llama.cpp, or do not read: what stops, what does not, and that the counts are right either way."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from pathlib import Path

import openai
import pytest

from tests.engines.llama import MODEL, Llamas, chat, eventually, tell
from tests.router.fleet import Stream

pytestmark = pytest.mark.processes

SLOW = 64
LONG = 1800
EVENTS = 5000
"""With the 20 likeliest tokens in each that makes 7.7 MB: more than the 4 MB that the kernel takes off the router's hands."""


@pytest.mark.fault("R1")
async def test_a_client_that_leaves_its_stream_stops_the_generation_and_frees_the_slot(ours: Llamas) -> None:
    llama = await ours.llama("a", layers=SLOW, slots=1)
    await ours.route(llama)
    leaving = Stream()
    streaming = asyncio.create_task(ours.listen(leaving, "leaves", LONG))
    await leaving.begun.wait()
    waiting = asyncio.create_task(ours.say("next"))
    await ours.until(lambda report: report["models"][MODEL]["queued"] == 1)
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    assert (await waiting)[0] == 200
    await ours.quiet()
    assert await llama.working() == []
    assert (await llama.metrics())["tokens_predicted_total"] < LONG
    assert await llama.generations() == 2


@pytest.mark.fault("R1")
async def test_an_answer_that_is_not_streamed_runs_on_while_others_stream_and_the_report_shows_it(ours: Llamas) -> None:
    """llama.cpp looks whether such a client is still there when nothing happened for a second. So beside a stream it
    generates to the end, whatever the router does, and is stopped when the stream is.
    """
    llama = await ours.llama("a", layers=SLOW, context=4096)
    await ours.route(llama)
    beside = asyncio.create_task(ours.listen(Stream(), "beside", 2 * LONG))
    leaving = asyncio.create_task(ours.say("leaves", 2 * LONG))
    await eventually(llama.holds("leaves", "beside"), "both slots work")
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    report = await ours.until(lambda report: report["endpoints"]["a"]["engine"]["running"] == 2)
    assert report["endpoints"]["a"]["in_flight"] == 1
    assert report["endpoints"]["a"]["outcomes"] == {"client_gone": 1}
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    await ours.quiet()
    await eventually(lambda: llama.ended() == 2, "both generations ended")
    assert (await llama.metrics())["tokens_predicted_total"] < 2 * LONG


@pytest.mark.fault("R2", "R3")
async def test_gauges_return_to_zero_after_a_storm_of_departures_and_crashes(ours: Llamas) -> None:
    herd = [await ours.llama(name, layers=16, context=1024) for name in ("a", "b", "c")]
    await ours.route(*herd)
    rng = random.Random(4)
    whole: list[int] = []

    async def visitor(number: int) -> None:
        """Stays for its whole answer, leaves its stream after a while, or leaves before an answer began."""
        await asyncio.sleep(rng.random())
        kind, patience_s = rng.choice(("stays", "leaves", "hurries")), rng.random() * 0.3
        if kind == "stays":
            async with ours.sdk() as client:
                whole.append(await tell(client, f"visitor {number}", 50))
            return
        asking = ours.listen(Stream(), f"visitor {number}", 900) if kind == "leaves" else ours.say("hurries", 900)
        async with asyncio.timeout(patience_s):
            await asking

    async def crash() -> None:
        await eventually(lambda: herd[0].begun() > 3, "a has work")
        herd[0].kill()

    crashing = asyncio.create_task(crash())
    outcomes = await asyncio.gather(*(visitor(number) for number in range(40)), return_exceptions=True)
    await crashing
    kinds = {type(outcome) for outcome in outcomes if outcome is not None}
    assert kinds <= {TimeoutError, openai.APIError, openai.InternalServerError}, outcomes
    assert set(whole) == {50}
    await ours.quiet()
    gauges = [
        line for line in (await ours.page()).splitlines() if line.startswith("tidegate_router_endpoint_in_flight{")
    ]
    assert len(gauges) == 3
    assert all(line.endswith(" 0.0") for line in gauges), gauges
    assert (await asyncio.gather(*(ours.say(f"after {number}") for number in range(20))))[0][0] == 200


@pytest.mark.fault("R13")
async def test_a_client_that_does_not_read_makes_the_router_stop_reading(ours: Llamas) -> None:
    llama = await ours.llama("a", slots=1, context=EVENTS + 100)
    await ours.route(llama)
    assert (await ours.say("warms up", 500, logprobs=True, top_logprobs=20))[0] == 200
    before = resident(ours.router.process.pid)
    host, _, port = ours.router.data.removeprefix("http://").rpartition(":")
    body = json.dumps(chat("slow reader", EVENTS, stream=True, logprobs=True, top_logprobs=20)).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (host, int(port)))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        await loop.sock_sendall(client, head + body)
        await eventually(lambda: llama.ended() == 2, "llama.cpp has generated all")
        grown = resident(ours.router.process.pid) - before
        read = bytearray()
        while not read.endswith(b"0\r\n\r\n"):
            piece = await loop.sock_recv(client, 1 << 20)
            assert piece, read[-200:]
            read += piece
    assert len(read) > 7 << 20
    assert b"data: [DONE]" in read
    assert grown < 2 << 20


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10
