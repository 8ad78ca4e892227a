"""Field faults that the soak looks for, each at the cheapest level at which it can be shown."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys

import pytest

from router.core.endpoints import CUT, TIMEOUT
from tests.processes import Processes
from tests.router.core.story import Story, endpoint
from tests.router.fleet import fleet
from tests.router.wire import SSE_HEAD, Received, Site, chunk, event, json_answer, on_uvloop, post, raw_answer, until


@pytest.mark.fault("R2")
@on_uvloop
async def test_gauges_are_zero_after_aborts_and_resets_and_everybody_gets_requests_again() -> None:
    async def silent(received: Received, writer: asyncio.StreamWriter) -> None:
        await received.gone.wait()

    async with Site(silent, raw_answer(SSE_HEAD + chunk(event(0))), raw_answer(abort=True), limit=4) as site:
        callers = [await site.call() for _ in range(40)]
        for caller in callers:
            caller.writer.write(post())
        await until(lambda: site.dispatcher.model_states()[0].queue.count > 0)
        for caller in callers:
            caller.leave()
        await site.settled()
        for engine in site.engines:
            engine.behaviour = json_answer()
        site.tell(intent="active")
        before = [len(engine.received) for engine in site.engines]
        statuses = [(await site.ask(post())).status for _ in range(60)]
        got = [len(engine.received) - was for engine, was in zip(site.engines, before, strict=True)]
        assert statuses == [200] * 60
        assert min(got[:2]) > 5, got  # the third is ejected for its resets and comes back by and by
        await site.settled()


@pytest.mark.fault("R3")
@pytest.mark.processes
async def test_a_request_at_a_replica_that_stands_still_is_not_run_elsewhere(processes: Processes) -> None:
    routing = {"retries": {"idempotent": True}, "timeouts": {"first_byte_s": 0.5}}
    async with fleet(processes) as ours:
        engines = {name: await ours.engine(name, "--decode-tokens-per-s", "20") for name in ("a", "b")}
        await ours.start_router()
        await ours.put(*(engine.endpoint() for engine in engines.values()), routing=routing)
        await ours.healths(a="ready", b="ready")
        both = [asyncio.create_task(ours.ask(6)) for _ in range(2)]  # 0.3 s each, one at each replica
        await ours.until(lambda report: all(at["in_flight"] == 1 for at in report["endpoints"].values()))
        engines["a"].process.signal(signal.SIGSTOP)
        statuses = sorted([(await task)[0] for task in both])
        engines["a"].process.signal(signal.SIGCONT)
        await ours.until(lambda report: report["models"]["tide-1"]["in_flight"] == 0)
        assert statuses == [200, 504]
        assert (await ours.ask())[0] == 200
        rows = [row for engine in engines.values() for row in engine.generations()]
        finished = [row["client_request_id"] or row["request_id"] for row in rows if not row["aborted"]]
        assert len(finished) == len(set(finished))
        assert not any(row["request_id"].endswith("-a2") for row in rows)


@pytest.mark.fault("R4")
def test_a_retry_goes_to_another_replica_although_the_one_that_failed_it_is_the_emptiest() -> None:
    story = Story(endpoint("a", limit=8), endpoint("b", limit=8))
    for made in [story.sent() for _ in range(8)]:
        if made.endpoint is story.at("a"):
            story.end(made)
    made = story.sent()
    while made.endpoint is not story.at("a"):
        made = story.sent()
    assert story.at("a").in_flight < story.at("b").in_flight
    assert story.fail(made, TIMEOUT, sent=False) is story.at("b")


@pytest.mark.fault("R19")
@on_uvloop
async def test_a_slot_is_held_to_the_last_byte_of_a_stream() -> None:
    ends = asyncio.Event()

    async def streams(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(0)))
        await ends.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with Site(streams, limit=3) as site:
        callers = [await site.call() for _ in range(6)]
        for caller in callers[:3]:
            caller.writer.write(post())
            await caller.reader.readuntil(event(0))
        for caller in callers[3:]:
            caller.writer.write(post())
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 3 or len(site.engines[0].received) > 3)
        assert (len(site.engines[0].received), site.dispatcher.endpoints["e0"].in_flight) == (3, 3)
        ends.set()
        for caller in callers[3:]:
            await caller.reader.readuntil(b"[DONE]")
        await site.settled()


@pytest.mark.fault("R23")
@on_uvloop
async def test_a_pool_that_fails_every_request_is_never_ejected_whole() -> None:
    async with Site(*[json_answer(status=b"500 Oops")] * 4, limit=4) as site:
        for _ in range(60):
            assert (await site.ask(post())).status == 500  # each is told by an engine, none waits for a replica
            ready = [at.health for at in site.dispatcher.endpoints.values()].count("ready")
            assert ready >= 2
        for engine in site.engines:
            engine.behaviour = json_answer()
        assert [(await site.ask(post())).status for _ in range(10)] == [200] * 10
        await site.settled()


def test_the_core_holds_nothing_of_requests_that_are_over() -> None:
    story = Story(endpoint("a", limit=2), endpoint("b", limit=2), routing={"retries": {"idempotent": True}})
    rng = random.Random(1)

    def round_of_requests() -> int:
        """200 bursts of requests that wait, leave, fail, are answered; gives the number of allocated blocks when all are over."""
        for number in range(200):
            made = [story.arrive()[0] for _ in range(rng.randint(1, 9))]
            while made:
                story.started()
                one = made.pop(rng.randrange(len(made)))
                if one.endpoint is None or rng.random() < 0.2:
                    story.dispatcher.left(one, story.now)
                elif rng.random() < 0.1:
                    story.fail(one, CUT, sent=True)
                    story.dispatcher.left(one, story.now)
                else:
                    story.end(one)
            if number % 8 == 0:
                story.later(0.25)
        story.later(120)  # pauses, and the per-second counts of the last two minutes
        gc.collect()
        return sys.getallocatedblocks()

    warm = [round_of_requests() for _ in range(4)][-1]
    later = [round_of_requests() for _ in range(4)][-1]
    assert story.dispatcher.model_states()[0].in_flight == 0
    assert later - warm < 300, "4,000 requests later"


@on_uvloop
async def test_the_shell_holds_nothing_of_requests_that_are_over() -> None:
    rng = random.Random(1)
    kinds = (
        json_answer(),
        json_answer(status=b"500 Oops"),
        raw_answer(SSE_HEAD + chunk(event(0)), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"),
        raw_answer(SSE_HEAD + chunk(event(0))[:20], close=True),
        raw_answer(abort=True),
    )

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        await rng.choices(kinds, (5, 1, 5, 1, 1))[0](received, writer)  # seldom three failures in a row

    async with Site(*[behave] * 4, limit=2) as site:

        async def client() -> None:
            caller = await site.call()
            for _ in range(4):
                caller.writer.write(post())
                try:
                    async with asyncio.timeout(10 if rng.random() < 0.8 else 0.002):
                        await caller.answer()
                except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                    break
            caller.leave()
            site.callers.remove(caller)

        async def round_of_requests() -> int:
            for _ in range(2):
                await asyncio.gather(*(client() for _ in range(24)))
            await site.settled()
            for engine in site.engines:
                engine.received.clear()
                engine.drop_connections()
            await asyncio.sleep(0.3)  # a beat: marks of those that left are dropped
            gc.collect()
            return sys.getallocatedblocks()

        # The smallest of several: who left a queue is dropped from it when its turn comes or marks are the majority.
        warm = min([await round_of_requests() for _ in range(4)])
        minted = site.plane.minted
        later = min([await round_of_requests() for _ in range(4)])
        assert later - warm < (site.plane.minted - minted) / 2, f"{site.plane.minted - minted} requests later"
