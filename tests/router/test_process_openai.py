"""The `openai` SDK through a real router to a real engine process."""

from __future__ import annotations

import openai
import pytest

from tests.processes import Processes
from tests.router.fleet import BOUND_S, fleet

pytestmark = pytest.mark.processes

ASKED: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "when does the tide turn"}]


async def test_the_openai_sdk_streams_asks_lists_and_is_refused_as_it_expects(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", "--decode-tokens-per-s", "500")
        router = await ours.start_router()
        await ours.put(engine.endpoint())
        await ours.healths(a="ready")
        async with openai.AsyncOpenAI(
            base_url=f"{router.data}/v1", api_key="none", timeout=BOUND_S, max_retries=0
        ) as client:
            assert [model.id async for model in await client.models.list()] == ["tide-1"]

            answer = await client.chat.completions.create(model="tide-1", messages=ASKED, max_tokens=7)
            assert answer.usage is not None
            assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (7, "length")
            assert len((answer.choices[0].message.content or "").split()) == 7

            stream = await client.chat.completions.create(
                model="tide-1", messages=ASKED, max_tokens=7, stream=True, stream_options={"include_usage": True}
            )
            pieces, used = [], []
            async for chunk in stream:
                pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
                used += [chunk.usage.completion_tokens] if chunk.usage else []
            assert (len(pieces), used[-1]) == (7, 7)

            with pytest.raises(openai.NotFoundError, match="tide-2"):
                await client.chat.completions.create(model="tide-2", messages=ASKED)

            await ours.put(routing={"queue": {"max_requests": 0}})
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="tide-1", messages=ASKED)
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
