"""What the `openai` SDK makes of refusals and broken streams: the right exception, in a blocking program too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.router.wire import SSE_HEAD, Behaviour, Site, chunk, event, on_uvloop, raw_answer

SAID: Any = [{"role": "user", "content": "hi"}]
NO_QUEUE = {"queue": {"max_requests": 0}}
SHORT = {"queue": {"timeout_s": 0.1}}
RESPONSE = (
    '"response":{"id":"r","object":"response","created_at":1,"status":"in_progress","model":"m","output":[],'
    '"parallel_tool_calls":true,"tool_choice":"auto","tools":[]}'
)
CREATED = f'event: response.created\ndata: {{"type":"response.created","sequence_number":0,{RESPONSE}}}\n\n'.encode()


def chat(client: openai.OpenAI, model: str = "m", stream: bool = False) -> Any:
    return client.chat.completions.create(model=model, messages=SAID, stream=stream)


def responses(client: openai.OpenAI, model: str = "m", stream: bool = False) -> Any:
    return client.responses.create(model=model, input="hi", stream=stream)


async def raised(site: Site, work: Callable[[openai.OpenAI], Any]) -> openai.APIError:
    """What a blocking program gets."""

    def run() -> None:
        url = f"http://127.0.0.1:{site.port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
            work(client)

    with pytest.raises(openai.APIError) as caught:
        await asyncio.to_thread(run)
    return caught.value


CALLS = [chat, responses]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("routing", "model", "kind", "status", "code"),
    [
        (NO_QUEUE, "m", openai.RateLimitError, 429, "queue_full"),
        (SHORT, "m", openai.InternalServerError, 503, None),
        (NO_QUEUE, "n", openai.NotFoundError, 404, "model_not_found"),
    ],
)
@on_uvloop
@pytest.mark.fault("R18")
async def test_refusals_raise_the_exception_of_their_status(
    call: Callable[..., Any],
    stream: bool,
    routing: dict[str, Any],
    model: str,
    kind: type[openai.APIStatusError],
    status: int,
    code: str | None,
) -> None:
    async with Site(routing=routing) as site:
        site.tell()
        error = await raised(site, lambda client: call(client, model, stream))
    assert type(error) is kind
    assert isinstance(error, openai.APIStatusError)
    assert error.status_code == status
    assert error.response.headers["content-type"] == "application/json"
    assert error.code == code or code is None
    told = error.response.headers.get("retry-after")
    assert (told is not None and 1 <= int(told) <= 60) if status != 404 else told is None


@pytest.mark.parametrize(
    ("call", "behaviour", "whole"),
    [
        (chat, raw_answer(SSE_HEAD, chunk(event(0)), chunk(event(1))[:30], close=True), 1),
        (chat, raw_answer(SSE_HEAD, close=True), 0),
        (responses, raw_answer(SSE_HEAD, chunk(CREATED), chunk(CREATED)[:30], close=True), 1),
        (responses, raw_answer(SSE_HEAD, close=True), 0),
    ],
)
@on_uvloop
@pytest.mark.fault("R11")
async def test_a_stream_whose_engine_dies_raises_after_its_whole_events(
    call: Callable[..., Any], behaviour: Behaviour, whole: int
) -> None:
    seen: list[Any] = []

    def read(client: openai.OpenAI) -> None:
        for each in call(client, stream=True):
            seen.append(each)

    async with Site(behaviour) as site:
        error = await raised(site, read)
        await site.settled()
    assert type(error) is openai.APIError  # neither a connection's end nor a status
    assert error.message == "the replica closed the connection before its answer was complete"
    assert len(seen) == whole
