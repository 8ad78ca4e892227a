"""A storm of everything at once: engines that die, clients that leave, a queue, tables that change. Nothing may be left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.router.wire import DONE, SSE_HEAD, Received, Site, chunk, event, json_answer, on_uvloop, post


@pytest.mark.parametrize("seed", [1, 2, 3])
@on_uvloop
async def test_gauges_return_to_zero_after_a_storm(seed: int) -> None:
    rng = random.Random(seed)

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        kind = rng.randrange(6)
        if kind == 0:
            await json_answer()(received, writer)
        elif kind == 1:
            writer.transport.abort()
        elif kind == 2:
            await json_answer(status=b"500 Oops")(received, writer)
        else:
            writer.write(SSE_HEAD)
            for number in range(rng.randrange(6)):
                await asyncio.sleep(rng.random() * 0.004)
                writer.write(chunk(event(number)))
            if kind == 3:
                writer.write(chunk(event(9))[: rng.randrange(1, 40)])
                writer.close()
            elif kind != 4:
                writer.write(chunk(DONE) + b"0\r\n\r\n")
            else:
                await asyncio.wait_for(received.gone.wait(), 5)

    async def client(site: Site) -> None:
        await asyncio.sleep(rng.random() * 0.2)
        caller = await site.call()
        for _ in range(3):
            caller.writer.write(post(b'{"model":"m"}'))
            try:
                async with asyncio.timeout(rng.random() * 0.3):
                    await caller.answer()
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                break
        caller.leave()

    routing = {"queue": {"max_requests": 10, "timeout_s": 1}, "retries": {"idempotent": True}}
    async with Site(behave, behave, behave, limit=3, routing=routing) as site:
        async with asyncio.TaskGroup() as group:
            for _ in range(60):
                group.create_task(client(site))
            for intent in ("draining", "active", "standby", "active"):
                await asyncio.sleep(0.05)
                site.tell(intent=intent)
        await asyncio.wait_for(site.settled(), 10)
        meter = site.dispatcher.model_states()[0].meter
        assert meter.asked_for() == sum(meter.outcomes) + sum(meter.refused.values())
