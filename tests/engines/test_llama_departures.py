"""Clients that leave real llama.cpp: what stops, what does not, and that the counts are right either way."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.llama import Llamas, eventually
from tests.router.fleet import Stream

pytestmark = pytest.mark.processes

SLOW = 64
LONG = 1800


@pytest.mark.fault("R1")
async def test_a_client_that_leaves_its_stream_stops_the_generation_and_frees_the_slot(ours: Llamas) -> None:
    llama = await ours.llama("a", layers=SLOW, slots=1)
    await ours.route(llama)
    leaving = Stream()
    streaming = asyncio.create_task(ours.listen(leaving, "leaves", LONG))
    await leaving.begun.wait()
    waiting = asyncio.create_task(ours.say("next"))
    await ours.until(lambda report: report["models"]["tide-1"]["queued"] == 1)
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    assert (await waiting)[0] == 200
    await ours.quiet()
    assert await llama.working() == []
    assert (await llama.metrics())["tokens_predicted_total"] < LONG
    assert (llama.begun(), llama.ended()) == (2, 2)
