"""A router that is killed and comes back: it starts from its tables, so a drain goes on and a model at zero can wake."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.processes import Processes
from tests.router.fleet import BOUND_S, Stream, chat, fleet

pytestmark = pytest.mark.processes


@pytest.mark.fault("R28")
async def test_a_router_killed_in_a_drain_goes_on_with_it_and_the_drain_completes(
    processes: Processes, tmp_path: Path
) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    async with fleet(processes) as ours:
        old, new = await ours.engine("old", "--decode-tokens-per-s", "50"), await ours.engine("new")
        first = await ours.start_router(*state)
        await ours.put(old.endpoint())
        await ours.healths(old="ready")
        stream = Stream()
        streaming = asyncio.create_task(ours.stream(stream, 4000))
        await stream.begun.wait()
        table = (old.endpoint(intent="draining"), new.endpoint())
        answer = await ours.put(*table)
        assert answer["endpoints"]["old"]["drained"] is False
        first.process.kill()
        with suppress(aiohttp.ClientError):
            await streaming

        await ours.start_router(*state)
        report = await ours.load()
        assert report["endpoints"]["old"]["intent"] == "draining", "before any controller has spoken"
        await ours.healths(new="ready")
        assert [(await ours.ask())[0] for _ in range(4)] == [200] * 4
        answer = await ours.put_again(*table)
        assert (answer["endpoints"]["old"]["in_flight"], answer["endpoints"]["old"]["drained"]) == (0, True)
        assert len(new.generations()) == 4


@pytest.mark.fault("R25")
async def test_after_a_restart_a_known_model_without_replicas_is_held_then_503_and_an_unknown_one_404(
    processes: Processes, tmp_path: Path
) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    async with fleet(processes) as ours:
        first = await ours.start_router(*state)
        await ours.put(routing={"queue": {"timeout_s": 1.0}})
        first.process.kill()
        second = await ours.start_router(*state)
        seq = (await ours.load())["seq"]
        waking = asyncio.create_task(ours.load(f"?after={seq}&wait_s=30"))
        url = f"{second.data}/v1/chat/completions"
        async with ours.session.post(url, json=chat(2)) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "queue_timeout")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        report = await waking
        assert (report["seq"] > seq, report["models"]["tide-1"]["held_from_zero"]) == (True, 1)
        async with ours.session.post(url, json={**chat(2), "model": "tide-2"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")
        assert await asyncio.to_thread(second.process.stop, BOUND_S) == 0
