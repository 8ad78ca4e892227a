"""The engine on real sockets: answers, faults, clients that leave, the generation log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.loadtests.engine_site import CHAT, Engine, running, until


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running() as made:
        yield made


async def test_a_stream_ends_in_done_and_is_logged(engine: Engine) -> None:
    async with engine.client.post(
        "/v1/chat/completions",
        json={**CHAT, "stream": True},
        headers={"x-request-id": "r-1", "x-client-request-id": "c-1", "x-input-tokens": "30"},
    ) as answer:
        raw = await answer.read()
        assert answer.content_type == "text/event-stream"
    assert raw.count(b"data: {") == 1 + 4 + 1
    assert raw.endswith(b"data: [DONE]\n\n")
    [row] = engine.rows()
    assert row["start_s"] <= row["end_s"]
    del row["start_s"], row["end_s"]
    assert row == {"request_id": "r-1", "client_request_id": "c-1", "aborted": False, "tokens": 4, "stream": True}
    assert engine.driver.totals.prompt_tokens == 30


async def test_a_request_that_is_not_streamed_has_usage(engine: Engine) -> None:
    async with engine.client.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 2}) as answer:
        document = await answer.json()
    assert document["usage"] == {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot(engine: Engine, stream: bool) -> None:
    document = {**CHAT, "max_tokens": 100_000, "stream": stream}

    async def ask() -> None:
        async with engine.client.post("/v1/chat/completions", json=document) as answer:
            await answer.read()

    task = asyncio.create_task(ask())
    await until(lambda: engine.driver.totals.generation_tokens >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await engine.settled()
    [row] = engine.rows()
    assert row["aborted"]
    assert 3 <= row["tokens"] < 100_000
    assert (engine.driver.batch.running, engine.driver.totals.aborted) == (0, 1)


async def test_llama_cpp_runs_on_when_the_client_of_a_plain_request_leaves(engine: Engine) -> None:
    await engine.fault(run_on=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await engine.client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 40})
    await engine.settled()
    [row] = engine.rows()
    assert (row["aborted"], row["tokens"]) == (False, 40)


async def test_metrics_have_vllms_names_and_can_be_wrong_on_demand(engine: Engine) -> None:
    async def shown() -> str:
        async with engine.client.get("/metrics") as answer:
            return await answer.text()

    labels = '{engine="0",model_name="tide-1"}'
    text = await shown()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert f"{name}{labels} 0.0\n" in text
    await engine.fault(metrics="nan")
    assert f"vllm:num_requests_waiting{labels} NaN" in await shown()
    await engine.fault(metrics="absent")
    assert "num_requests" not in await shown()
    await engine.fault(metrics="renamed")
    assert "vllm:num" not in await shown()


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/health", 200, ""),
        ("HEAD", "/health", 405, ""),
        ("GET", "/v1/nope", 404, '{"detail": "Not Found"}'),
        ("GET", "/v1/chat/completions", 405, '{"detail": "Method Not Allowed"}'),
    ],
)
async def test_paths_answer_as_vllms_do(engine: Engine, method: str, path: str, status: int, body: str) -> None:
    async with engine.client.request(method, path) as answer:
        assert (answer.status, await answer.text()) == (status, body)


async def test_loading_answers_as_llama_cpp(engine: Engine) -> None:
    engine.handlers.loading = True
    async with engine.client.get("/health") as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["message"] == "Loading model"


async def test_the_next_two_fail_and_the_third_is_served(engine: Engine) -> None:
    await engine.fault(fail_next=2, fail_status=429, retry_after_s=3)
    seen = []
    for _ in range(3):
        async with engine.client.post("/v1/chat/completions", json=CHAT) as answer:
            await answer.read()
            seen.append((answer.status, answer.headers.get("Retry-After")))
    assert seen == [(429, "3"), (429, "3"), (200, None)]


async def test_a_dropped_request_gets_not_one_byte(engine: Engine) -> None:
    await engine.fault(drop_next=1)
    reader, writer = await asyncio.open_connection(engine.client._base_url.host, engine.client._base_url.port)  # type: ignore[union-attr]  # given above
    body = json.dumps(CHAT).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert await reader.read() == b""
    writer.close()


async def test_a_cut_comes_in_the_middle_of_an_event(engine: Engine) -> None:
    await engine.fault(cut_after_tokens=2)
    seen = b""
    with pytest.raises(aiohttp.ClientPayloadError):  # noqa: PT012
        async with engine.client.post("/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            async for chunk in answer.content.iter_any():
                seen += chunk
    assert seen.count(b"\n\n") == 1 + 2
    assert not seen.endswith(b"\n\n")
    await engine.settled()
    assert engine.rows()[0]["aborted"]


async def test_an_engine_error_comes_as_an_event_then_done(engine: Engine) -> None:
    await engine.fault(error_after_tokens=1)
    raw = await engine.stream()
    assert raw.count(b"data: {") == 1 + 1 + 1
    assert b'"type":"InternalServerError"' in raw
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_events_split_over_writes_and_bursts_carry_the_same_bytes(engine: Engine) -> None:
    def words(raw: bytes) -> int:
        return raw.count(b"data: {")

    plain = await engine.stream()
    await engine.fault(split_bytes=7)
    split = await engine.stream()
    await engine.fault(split_bytes=0, burst=True)
    burst = await engine.stream()
    assert words(plain) == words(split) == words(burst) == 6
    assert plain.endswith(b"[DONE]\n\n")
    assert split.endswith(b"[DONE]\n\n")
    assert burst.endswith(b"[DONE]\n\n")


async def test_a_frozen_engine_is_healthy_and_silent_and_goes_on_when_thawed(engine: Engine) -> None:
    await engine.fault(freeze=True)
    task = asyncio.create_task(engine.stream())
    for _ in range(20):
        await asyncio.sleep(0)
    async with engine.client.get("/health") as answer:
        assert answer.status == 200
    assert not task.done()
    assert engine.driver.totals.generation_tokens == 0
    await engine.fault(freeze=False)
    assert (await task).endswith(b"[DONE]\n\n")


async def test_a_freeze_in_mid_stream_stops_tokens(engine: Engine) -> None:
    task = asyncio.create_task(engine.stream(max_tokens=10))
    await until(lambda: engine.driver.totals.generation_tokens >= 2)
    await engine.fault(freeze=True)
    given = engine.driver.totals.generation_tokens
    await asyncio.sleep(0.05)
    assert engine.driver.totals.generation_tokens == given
    await engine.fault(freeze=False)
    assert (await task).count(b"data: {") == 1 + 10 + 1


async def test_a_bad_fault_is_answered_400(engine: Engine) -> None:
    for body in (b'{"freez": true}', b"{"):
        async with engine.client.post("/fault", data=body) as answer:
            assert answer.status == 400
    async with engine.client.post("/v1/chat/completions", json=CHAT, headers={"x-input-tokens": "many"}) as answer:
        assert answer.status == 400
