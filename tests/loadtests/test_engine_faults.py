"""Each fault of the emulated engine on real sockets: what a client sees, byte by byte where it matters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import fields

import pytest

from loadtests import engine_faults
from loadtests.engine_faults import Faults
from tests.loadtests.engine_site import CHAT, CHAT_PATH, Engine, running, until


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running() as made:
        yield made


STREAM = {**CHAT, "stream": True}


async def raw_stream(engine: Engine) -> bytes:
    raw = await engine.raw()
    raw.send(STREAM)
    return await raw.rest()


def test_the_table_of_faults_names_every_setting_and_no_other() -> None:
    assert engine_faults.__doc__ is not None
    table = [line for line in engine_faults.__doc__.splitlines() if line.startswith("|")][2:]
    named = set(re.findall(r"\b[a-z][a-z_0-9]+\b", " ".join(row.split("|")[2] for row in table)))
    own = {row.name for row in fields(Faults)}
    assert own - named == set()
    assert {word for word in named if "_" in word} - own == set()


async def test_asleep_aborts_what_runs_and_holds_what_comes_until_it_wakes(engine: Engine) -> None:
    running_one = asyncio.create_task(engine.stream(max_tokens=100_000))
    plain = asyncio.create_task(engine.client.post(CHAT_PATH, json={**CHAT, "max_tokens": 100_000}))
    await until(lambda: engine.driver.totals.generation_tokens >= 6)
    async with engine.client.post("/sleep?level=1") as answer:
        assert answer.status == 200
    raw = await running_one
    assert b'"finish_reason":"abort"' in raw
    assert raw.endswith(b"data: [DONE]\n\n")
    answer = await plain
    assert (answer.status, (await answer.json())["choices"][0]["finish_reason"]) == (200, "abort")
    held = asyncio.create_task(engine.stream())
    async with engine.client.get("/is_sleeping") as answer:
        assert await answer.json() == {"is_sleeping": True}
    async with engine.client.get("/health") as answer:
        assert answer.status == 200
    async with engine.client.get("/metrics") as answer:
        assert 'num_requests_waiting{engine="0",model_name="tide-1"} 0.0' in await answer.text()
    assert not held.done()
    await engine.client.post("/wake_up")
    assert (await held).endswith(b"data: [DONE]\n\n")
    async with engine.client.post("/sleep?level=3") as answer:
        assert answer.status == 400


async def test_a_dead_core_is_told_in_streams_refused_elsewhere_and_ends_the_process(engine: Engine) -> None:
    left: list[int] = []
    engine.driver.leave_process = left.append
    stream = asyncio.create_task(engine.stream(max_tokens=100_000))
    plain = asyncio.create_task(engine.client.post(CHAT_PATH, json={**CHAT, "max_tokens": 100_000}))
    await until(lambda: engine.driver.totals.generation_tokens >= 6)
    await engine.fault(core_dead=True)
    assert (await stream).endswith(b'"type":"InternalServerError","param":null,"code":500}}\n\ndata: [DONE]\n\n')
    assert (await plain).status == 500
    async with engine.client.get("/health") as answer:
        assert answer.status == 503
    async with engine.client.post(CHAT_PATH, json=CHAT) as answer:
        assert answer.status == 500
    await until(lambda: left == [0])
    assert [row["aborted"] for row in engine.rows()] == [True, True]


@pytest.mark.parametrize("after", [0, 2])
async def test_a_stalled_stream_says_nothing_more_and_stays_open(engine: Engine, after: int) -> None:
    await engine.fault(stall_after_tokens=after)
    raw = await engine.raw()
    raw.send(STREAM)
    seen = await raw.reader.readuntil(b"\r\n\r\n")
    await until(lambda: engine.driver.totals.finished == 1)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(0.05):
            while piece := await raw.reader.read(1000):
                seen += piece
    assert seen.count(b"data: ") == (after + 1 if after else 0)


async def test_a_stalled_plain_answer_has_a_head_and_no_body(engine: Engine) -> None:
    await engine.fault(stall_after_tokens=0)
    raw = await engine.raw()
    raw.send(CHAT)
    assert b"Content-Length: " in await raw.reader.readuntil(b"\r\n\r\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await raw.reader.read(1)


@pytest.mark.parametrize(("status", "retry"), [(503, None), (429, 2)])
async def test_a_full_queue_refuses_with_or_without_retry_after(
    engine: Engine, status: int, retry: float | None
) -> None:
    await engine.fault(queue_limit=1, queue_status=status, retry_after_s=retry)
    tasks = [asyncio.create_task(engine.stream(max_tokens=100_000)) for _ in range(3)]
    await until(lambda: len(engine.driver.batch.generations()) == 3)
    async with engine.client.post(CHAT_PATH, json=CHAT) as answer:
        assert (answer.status, answer.headers.get("Retry-After")) == (status, retry and "2")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.settled()
    assert (await engine.stream()).endswith(b"[DONE]\n\n")


async def test_a_reused_connection_is_closed_without_a_byte_and_a_fresh_one_is_not(engine: Engine) -> None:
    await engine.fault(close_reused=1)
    raw = await engine.raw()
    raw.send(CHAT)
    assert (await raw.whole()).startswith(b"HTTP/1.1 200")
    raw.send(CHAT)
    assert await raw.rest() == b""
    assert engine.driver.faults.close_reused == 0
    assert len(engine.rows()) == 1


async def test_idle_connections_are_closed_and_busy_ones_are_not(engine: Engine) -> None:
    await engine.fault(idle_close_s=0.05)
    raw = await engine.raw()
    raw.send(CHAT)
    assert (await raw.whole()).startswith(b"HTTP/1.1 200")
    raw.send({**STREAM, "max_tokens": 30})  # 0.15 s
    assert (await raw.reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await raw.rest() == b""


async def test_a_connection_is_reset_as_it_is_accepted(engine: Engine) -> None:
    await engine.fault(reset_accept=1)
    raw = await engine.raw()
    raw.send(CHAT)
    with pytest.raises(ConnectionResetError):
        await raw.rest()
    raw = await engine.raw()
    raw.send(CHAT)
    assert (await raw.whole()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        ("text", b"SSH-2.0"),
        ("head", b"HTTP/1.1 200 OK\r\ncontent-ty"),
        ("lengths", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3"),
        ("chunks", b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"),
    ],
)
async def test_garbage(engine: Engine, kind: str, begin: bytes) -> None:
    await engine.fault(garbage=kind)
    assert (await raw_stream(engine)).startswith(begin)


async def test_interim_answers_come_first(engine: Engine) -> None:
    await engine.fault(interim=2)
    raw = await engine.raw()
    raw.send(CHAT)
    for _ in range(2):
        assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 Early Hints\r\n")
    assert (await raw.whole()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_bodies_are_read_slowly_and_the_sender_is_held_back(engine: Engine) -> None:
    await engine.fault(read_bytes_per_s=1_000_000.0)
    raw = await engine.raw()
    raw.send({**CHAT, "padding": "x" * 30_000_000})
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert raw.writer.transport.get_write_buffer_size() > 1_000_000
    raw.writer.transport.abort()
    await engine.fault(read_bytes_per_s=100_000.0)
    async with engine.client.post(CHAT_PATH, json={**CHAT, "padding": "x" * 5000}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("at", "ends"),
    [("event", rb'data: \{"id":"chat[^\n]*[^}\n]$'), ("utf8", b'"\xf0\x9f$'), ("between", rb"\}\n\n$")],
)
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_where_and_how_a_stream_is_cut(engine: Engine, at: str, ends: bytes, how: str) -> None:
    await engine.fault(cut_after_tokens=2, cut_at=at, cut_how=how)
    raw = await engine.raw()
    raw.send(STREAM)
    seen, was_reset = b"", False
    try:
        while piece := await asyncio.wait_for(raw.reader.read(1000), 10):
            seen += piece
    except ConnectionResetError:
        was_reset = True
    body = b"".join(part for part in seen.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2])
    assert body.count(b"\n\n") == 3
    assert re.search(ends, body)
    assert was_reset is (how == "reset")


async def test_words_may_have_wide_characters_and_the_first_write_two_events(engine: Engine) -> None:
    await engine.fault(utf8=True, join_first=True)
    raw = await engine.raw()
    raw.send({**STREAM, "max_tokens": 20})
    data = await raw.reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert len(data) > len(data.decode())
    first = data.partition(b"\r\n\r\n")[2]
    assert first[: int(first[:3], 16)].count(b"data: ") == 2
    await engine.fault(join_first=False)
    raw.send(STREAM)
    data = await raw.reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
    first = data.partition(b"\r\n\r\n")[2]
    assert first[: int(first[:3], 16)].count(b"data: ") == 1


async def test_any_model_is_taken_for_the_own_one(engine: Engine) -> None:
    document = {**CHAT, "model": "other"}
    async with engine.client.post(CHAT_PATH, json=document) as answer:
        assert answer.status == 404
    await engine.fault(any_model=True)
    async with engine.client.post(CHAT_PATH, json=document) as answer:
        assert (answer.status, (await answer.json())["model"]) == (200, "tide-1")


async def test_metrics_may_be_missing_stale_or_an_error(engine: Engine) -> None:
    async def page() -> tuple[int, str]:
        async with engine.client.get("/metrics") as answer:
            return answer.status, await answer.text()

    await engine.fault(metrics="stale")
    _, before = await page()
    await engine.stream()
    assert (await page())[1] == before
    await engine.fault(metrics="vllm")
    assert (await page())[1] != before
    await engine.fault(metrics="missing")
    assert (await page())[0] == 404
    await engine.fault(metrics="error")
    assert (await page())[0] == 500


async def test_an_unloaded_model_is_not_ready(engine: Engine) -> None:
    async def ready(path: str) -> int:
        async with engine.client.get(path) as answer:
            return answer.status

    paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/tide-1/ready", "/v2/models/nope/ready")
    assert [await ready(path) for path in paths] == [200, 200, 200, 400]
    await engine.client.post("/v2/repository/models/tide-1/unload")
    assert [await ready(path) for path in paths] == [200, 400, 400, 400]
    async with engine.client.post("/v2/models/tide-1/generate", json={"text_input": "a"}) as answer:
        assert answer.status == 400
    await engine.client.post("/v2/repository/models/tide-1/load")
    assert [await ready(path) for path in paths] == [200, 200, 200, 400]
    async with engine.client.post("/v2/repository/models/nope/load") as answer:
        assert answer.status == 400


async def test_the_load_header_of_vllm(engine: Engine) -> None:
    for kind, said in (("JSON", 'JSON {"named_metrics":'), ("TEXT", "TEXT named_metrics.num_requests_waiting=0.0")):
        async with engine.client.post(CHAT_PATH, json=CHAT, headers={"endpoint-load-metrics-format": kind}) as answer:
            assert answer.headers["endpoint-load-metrics"].startswith(said)
    async with engine.client.post(CHAT_PATH, json=CHAT) as answer:
        assert "endpoint-load-metrics" not in answer.headers
