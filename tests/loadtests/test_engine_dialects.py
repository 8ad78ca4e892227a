"""The protocols of the emulated engine besides OpenAI's, on real sockets: framing, words, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.loadtests.engine_site import Engine, running


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running() as made:
        yield made


Stream = list[tuple[str | None, Any]]


def events(raw: bytes) -> Stream:
    """Type and data of each event."""
    found = []
    for event in raw.decode().split("\n\n")[:-1]:
        lines = dict(line.split(":", 1) for line in event.split("\n"))
        kind = lines.get("event")
        found.append((kind.strip() if kind else None, json.loads(lines["data"])))
    return found


ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/responses", {"input": "a b", "max_output_tokens": 3}, "output.0.content.0.text"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 3}, "content.0.text"),
    ("/v2/models/tide-1/infer", {"inputs": [], "parameters": {"max_tokens": 3}}, "outputs.0.data.0"),
    ("/v2/models/tide-1/generate", {"text_input": "a b", "max_tokens": 3}, "text_output"),
    ("/v2/models/tide-1/versions/1/generate", {"text_input": "a b", "max_tokens": 3}, "text_output"),
    ("/generate", {"inputs": "a b", "parameters": {"max_new_tokens": 3}}, "generated_text"),
    ("/completion", {"prompt": "a b", "n_predict": 3}, "content"),
]


@pytest.mark.parametrize(("path", "document", "where"), ASKED)
async def test_plain_answers_of_other_protocols(
    engine: Engine, path: str, document: dict[str, Any], where: str
) -> None:
    async with engine.client.post(path, json=document) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        value: Any = await answer.json()
    for key in where.split("."):
        value = value[int(key) if key.isdecimal() else key]
    assert len(value.split()) == 3


async def spoken(engine: Engine, path: str, document: dict[str, Any]) -> Stream:
    async with engine.client.post(path, json=document) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        raw = await answer.read()
    assert b"[DONE]" not in raw
    return events(raw)


async def test_a_stream_of_responses_is_numbered_without_a_gap(engine: Engine) -> None:
    seen = await spoken(engine, "/v1/responses", {"input": "a", "max_output_tokens": 3, "stream": True})
    assert [value["sequence_number"] for _, value in seen] == list(range(4 + 3 + 4))
    assert all(kind == value["type"] for kind, value in seen)
    assert (seen[0][0], seen[-1][0]) == ("response.created", "response.completed")
    text = "".join(value["delta"] for kind, value in seen if kind == "response.output_text.delta")
    assert seen[-1][1]["response"]["output"][0]["content"][0]["text"] == text


async def test_a_stream_of_messages(engine: Engine) -> None:
    messages = [{"role": "user", "content": "a"}]
    seen = await spoken(engine, "/v1/messages", {"messages": messages, "max_tokens": 2, "stream": True})
    assert [kind for kind, _ in seen] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert seen[-2][1]["usage"] == {"output_tokens": 2}


async def test_streams_of_triton_tgi_and_llama_cpp_just_end(engine: Engine) -> None:
    seen = await spoken(engine, "/v2/models/tide-1/generate_stream", {"text_input": "a", "max_tokens": 2})
    assert [set(value) for _, value in seen] == [{"model_name", "model_version", "text_output"}] * 2
    seen = await spoken(engine, "/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 2}})
    assert [value["generated_text"] is None for _, value in seen] == [True, False]
    seen = await spoken(engine, "/completion", {"prompt": "a", "n_predict": 2, "stream": True})
    assert [value["stop"] for _, value in seen] == [False, False, True]


ERRORS: list[tuple[str, int, Any]] = [
    ("/v1/responses", 400, "error.message"),
    ("/v1/messages", 400, "error.message"),
    ("/v2/models/tide-1/infer", 500, "error"),
    ("/v2/models/tide-1/generate_stream", 500, "error"),
    ("/generate", 422, "error"),
    ("/completion", 400, "error.message"),
]


@pytest.mark.parametrize(("path", "status", "where"), ERRORS)
async def test_malformed_json_and_a_dead_engine_in_each_protocol(
    engine: Engine, path: str, status: int, where: str
) -> None:
    async with engine.client.post(path, data=b'{"inputs":[') as answer:
        assert answer.status == status
        value: Any = await answer.json()
    for key in where.split("."):
        value = value[key]
    assert isinstance(value, str)
    async with engine.client.post(path, json={}) as answer:
        assert answer.status == 400


@pytest.mark.parametrize(
    ("path", "document", "kind"),
    [
        ("/v1/responses", {"input": "a", "stream": True}, None),
        ("/v1/messages", {"messages": [], "stream": True}, "error"),
        ("/v2/models/tide-1/generate_stream", {"text_input": "a"}, None),
        ("/generate_stream", {"inputs": "a"}, None),
        ("/completion", {"prompt": "a", "stream": True}, None),
    ],
)
async def test_an_engine_error_inside_a_stream_of_each_protocol(
    engine: Engine, path: str, document: dict[str, Any], kind: str | None
) -> None:
    await engine.fault(error_after_tokens=1)
    *_, (last, value) = await spoken(engine, path, document)
    assert last == kind
    assert "EngineCore" in str(value["error"])


async def test_another_model_in_a_path_is_unknown(engine: Engine) -> None:
    async with engine.client.post("/v2/models/nope/infer", json={"inputs": []}) as answer:
        assert (answer.status, await answer.json()) == (
            404,
            {"error": "Request for unknown model: 'nope' is not found"},
        )


async def test_tensors_behind_the_json_are_not_read_as_json(engine: Engine) -> None:
    head = b'{"inputs":[]}'
    fields_ = {"Inference-Header-Content-Length": str(len(head))}
    async with engine.client.post("/v2/models/tide-1/infer", data=head + bytes(range(256)), headers=fields_) as answer:
        assert answer.status == 200


async def test_a_client_that_leaves_a_stream_of_another_protocol_is_noticed(engine: Engine) -> None:
    document = {"input": "a", "max_output_tokens": 90_000, "stream": True}
    raw = await engine.raw()
    raw.send(document, "/v1/responses")
    await raw.reader.readuntil(b"response.output_text.delta")
    raw.writer.transport.abort()
    await engine.settled()
    assert engine.rows()[0]["aborted"]


async def test_clients_are_not_kept_waiting_by_the_others(engine: Engine) -> None:
    """All protocols share the slots: a stream of one and an answer of another run side by side."""
    async with aiohttp.ClientSession(engine.client._base_url) as other:
        task = asyncio.create_task(other.post("/completion", json={"prompt": "a", "n_predict": 10}))
        assert (await engine.stream()).endswith(b"[DONE]\n\n")
        assert (await task).status == 200
