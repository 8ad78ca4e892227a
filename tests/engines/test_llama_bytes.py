"""What reaches real llama.cpp through the router and what comes back, byte for byte, beside what it says directly."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from tests.engines.llama import MODEL, Llamas, chat, eventually
from tests.router.fleet import BOUND_S, Stream

pytestmark = pytest.mark.processes

TARGETS = (
    "GET /v1/models/",
    "GET /v1/models%2F",
    "GET //props",
    "GET /./slots",
    "GET /slots/../props",
    "GET /tokenize%3Fx=1",
    "GET /props?a=1&b=%C3%A4%2F",
    "GET /nowhere/a%20b;c?x=%2F&y",
    "HEAD /slots",
    "OPTIONS /v1/chat/completions",
    "DELETE /slots",
    "BREW /coffee",
    "GET /slots?fail_on_no_slot%3D1",
    "GET /slots?fail_on_no_slot=1",
)


async def exchange(url: str, request: bytes) -> tuple[bytes, bytes, bytes]:
    """Send bytes on a connection of their own; gives the status line, the header lines and the body of the answer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(BOUND_S):
            writer.write(request)
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, _, lines = head.partition(b"\r\n")
    return status, lines.lower(), body


@pytest.mark.fault("R16", "R29")
async def test_targets_and_methods_mean_to_llama_cpp_what_the_client_wrote(ours: Llamas) -> None:
    llama = await ours.llama("a", layers=64, slots=1)
    await ours.start_router()
    await ours.put(llama.endpoint(limit=2), routing={"retries": {"max_attempts": 1}})  # a 503 is not tried again
    await ours.healths(a="ready")
    running = asyncio.create_task(ours.listen(Stream(), "runs", 1800))
    await eventually(llama.holds("runs"), "no slot is free, so that fail_on_no_slot makes a difference")
    answers = {}
    for target in TARGETS:
        request = f"{target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        (status, _, body), direct = await exchange(ours.router.data, request), await exchange(llama.url, request)
        answers[target] = status.split()[1]
        assert status == direct[0], target
        assert shape(body) == shape(direct[2]), target
    assert answers["GET /slots?fail_on_no_slot=1"] == b"503", "the query arrived"
    assert answers["GET /v1/models/"] == b"404", "the slash arrived"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def shape(body: bytes) -> bytes:
    """A body without its numbers and generated text, which differ from one moment to the next."""
    return re.sub(rb'"generated":".*?[^\\]"|[0-9]+', b"", body, flags=re.DOTALL)


@pytest.mark.fault("R29")
async def test_old_and_odd_clients_of_http_are_served_or_refused_clearly(ours: Llamas) -> None:
    llama = await ours.llama("a")
    await ours.route(llama)
    body = json.dumps(chat("asks", 8)).encode()
    post = b"POST /v1/chat/completions HTTP/1.%b\r\ncontent-length: %d\r\n%b\r\n"
    old = await exchange(ours.router.data, post % (b"0", len(body), b"") + body)
    expecting = await exchange(
        ours.router.data, post % (b"1", len(body), b"host: x\r\nexpect: 100-continue\r\nconnection: close\r\n") + body
    )
    for status, _, answer in (old, expecting):
        assert status == b"HTTP/1.1 200 OK"
        assert json.loads(answer)["usage"]["completion_tokens"] == 8
    streamed = json.dumps(chat("streams", 8, stream=True)).encode()
    status, lines, answer = await exchange(ours.router.data, post % (b"0", len(streamed), b"") + streamed)
    assert status == b"HTTP/1.1 200 OK"
    assert b"transfer-encoding" not in lines
    assert answer.startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")
    upgrade = b"GET /slots HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n"
    status, lines, _ = await exchange(ours.router.data, upgrade)
    assert status.split()[1] != b"101"
    await ours.quiet()


@pytest.mark.fault("R14")
async def test_large_prompts_reach_llama_cpp_and_too_large_ones_are_refused_with_the_limit(ours: Llamas) -> None:
    llama = await ours.llama("a")
    await ours.route(llama)
    async with ours.sdk() as client:
        with pytest.raises(openai.BadRequestError, match=r"request \(1500003 tokens\) exceeds the available context"):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 1_500_000}])
    length = (64 << 20) + 1
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length
    status, _, answer = await exchange(ours.router.data, head + b"x" * 1000)
    assert status.split()[1] == b"413"
    assert str(64 << 20) in json.loads(answer)["error"]["message"]
    status, _, answer = await exchange(
        ours.router.data, b"GET /props HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * (65 << 10)
    )
    assert status.split()[1] == b"431"
    assert str(64 << 10) in json.loads(answer)["error"]["message"]


@asynccontextmanager
async def splitter(port: int) -> AsyncIterator[tuple[str, bytearray]]:
    """A relay before an engine that hands on its answers a byte at a time, each in a packet of its own; gives its URL and
    the bytes of the answers.
    """
    answers = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", port)

        async def forward() -> None:
            while data := await reader.read(65536):
                engine_writer.write(data)
            engine_writer.close()

        async def back() -> None:
            while data := await engine_reader.read(65536):
                answers.extend(data)
                for byte in data:
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(0)
            writer.close()

        await asyncio.gather(forward(), back(), return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", answers
    finally:
        server.close()


@pytest.mark.fault("R12")
async def test_a_stream_split_at_every_byte_arrives_as_llama_cpp_wrote_it(ours: Llamas) -> None:
    llama = await ours.llama("a")
    async with splitter(llama.port) as (url, written):
        await ours.start_router()
        await ours.put(llama.endpoint(url=url, engine="generic"))
        await ours.healths(a="ready")
        stream = Stream()
        await ours.listen(stream, "splits", 60)
        async with ours.sdk() as client:
            asked = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "sdk"}], max_tokens=30, stream=True
            )
            reasons = [choice.finish_reason async for chunk in asked for choice in chunk.choices]
    assert reasons[-1] in ("length", "stop")
    whole = unchunked(bytes(written).split(b"\r\n\r\n", 1)[1])
    assert bytes(stream.body) == whole
    assert whole.endswith(b"data: [DONE]\n\n")
    assert stream.words() >= 50


def unchunked(body: bytes) -> bytes:
    """The first message in a chunked body."""
    whole = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            return whole
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
