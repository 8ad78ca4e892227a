"""Real llama.cpp under load: slots, queues, shares, metrics, and replicas that come and go while clients stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.engines.llama import MODEL, Llama, Llamas, eventually, tell, watching
from tests.router.fleet import Stream

pytestmark = pytest.mark.processes


@pytest.mark.fault("R3", "R19")
async def test_slots_are_held_to_the_last_byte_so_llama_cpp_never_has_anyone_waiting(ours: Llamas) -> None:
    llama = await ours.llama("a", layers=24, slots=2)
    await ours.route(llama)
    seen: list[tuple[float, float]] = []

    async def look() -> None:
        said = await llama.metrics()
        seen.append((said["requests_processing"], said["requests_deferred"]))

    async with watching(look), ours.sdk() as client:
        told = await asyncio.gather(*(tell(client, f"request {number}", 60) for number in range(10)))
    assert told == [60] * 10
    assert max(running for running, _ in seen) == 2.0
    assert max(waiting for _, waiting in seen) == 0.0
    assert await llama.generations() == 10
    assert (await llama.metrics())["tokens_predicted_total"] == 10 * 60


@pytest.mark.fault("R20", "R19")
async def test_replicas_of_four_slots_and_of_one_get_traffic_four_to_one(ours: Llamas) -> None:
    large, small = await ours.llama("large", slots=4), await ours.llama("small", slots=1)
    await ours.route(large, small, routing={"ramp_s": 0})
    for _ in range(60):  # a few at a time: at idle, where a count of requests alone would share evenly
        assert {status for status, _ in await asyncio.gather(*(ours.say("small talk", 3) for _ in range(5)))} == {200}
    served = await large.generations(), await small.generations()
    assert sum(served) == 300
    assert 0.9 * 0.8 <= served[0] / 300 <= 1.1 * 0.8, served
    assert ((await large.metrics())["requests_deferred"], (await small.metrics())["requests_deferred"]) == (0, 0)


@pytest.mark.fault("R18")
async def test_a_full_queue_answers_429_with_a_retry_after_that_the_sdk_honours(ours: Llamas) -> None:
    llama = await ours.llama("a", layers=64, slots=1)
    await ours.route(llama, routing={"queue": {"max_requests": 1, "timeout_s": 30}})
    for number in range(10):  # what it frees a second decides what Retry-After says
        await ours.say(f"before {number}")
    second = (await ours.load())["second"]
    await ours.until(lambda report: report["second"] > second)
    filling = [asyncio.create_task(ours.listen(Stream(), "runs", 1500))]
    await eventually(llama.holds("runs"), "the slot is taken")
    filling.append(asyncio.create_task(ours.listen(Stream(), "waits", 4)))
    await ours.until(lambda report: report["models"][MODEL]["queued"] == 1)
    async with ours.sdk(retries=0) as client:
        with pytest.raises(openai.RateLimitError) as refused:
            await tell(client, "too many", 4)
    assert refused.value.response.status_code == 429
    assert refused.value.code == "queue_full"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    async with ours.sdk(retries=8) as client:
        retrying = asyncio.create_task(tell(client, "comes back", 4))
        await ours.until(lambda report: sum(report["models"][MODEL]["shed"]) >= 2)
        filling[0].cancel()  # whoever runs leaves: the slot is free, and the client asks again in its own time
        assert await retrying == 4
    await asyncio.gather(*filling, return_exceptions=True)
    report = await ours.quiet()
    assert report["endpoints"]["a"]["health"] == "ready"


@pytest.mark.fault("R22")
async def test_the_names_of_llama_cpps_metrics_are_the_real_ones_and_without_them_requests_go_on(ours: Llamas) -> None:
    told, mute = await ours.llama("told", layers=64, slots=1), await ours.llama("mute", "--no-metrics", slots=1)
    await ours.route(told, mute)
    streaming = [asyncio.create_task(ours.listen(Stream(), f"stream {number}", 1800)) for number in range(2)]
    report = await ours.until(lambda report: report["endpoints"]["told"]["engine"]["running"] == 1)
    assert report["endpoints"]["told"]["engine"]["waiting"] == 0
    engine = report["endpoints"]["mute"]["engine"]
    assert (engine["running"], engine["waiting"], engine["age_s"]) == (None, None, None)
    said = await asyncio.to_thread(ours.router.process.wait_log, r".*engine metrics missing.*")
    line = json.loads(said[0])
    assert (line["endpoint"], line["problem"]) == ("mute", "/metrics answered 501")
    assert (await ours.say("goes on"))[0] == 200
    for task in streaming:
        task.cancel()
    await asyncio.gather(*streaming, return_exceptions=True)


@pytest.mark.fault("R25")
async def test_a_replica_that_loads_is_not_asked_and_the_requests_wait_for_it(ours: Llamas) -> None:
    """llama.cpp listens while it loads and answers everything with 503 `Loading model`."""
    await ours.start_router()
    loading = await ours.llama("loading", layers=64, context=8192, wait=False)
    await ours.put(loading.endpoint())
    asking = [asyncio.create_task(ours.say(f"early {number}")) for number in range(4)]
    await eventually(lambda: loads(ours, loading), "it answers that it loads")
    report = await ours.load()
    assert (report["endpoints"]["loading"]["health"], report["models"][MODEL]["queued"]) == ("unknown", 4)
    assert [(await task)[0] for task in asking] == [200] * 4
    report = await ours.quiet()
    assert report["endpoints"]["loading"]["outcomes"] == {"success": 4}
    assert (await ours.say("unknown", model="tide-2"))[0] == 404


async def loads(ours: Llamas, llama: Llama) -> bool:
    """Does it say that it loads."""
    return await ours.status(f"{llama.url}/health") == 503


@asynccontextmanager
async def talkers(ours: Llamas, count: int, tokens: int) -> AsyncIterator[list[int]]:
    """So many users who stream one answer after the other with the SDK; gives the tokens of each answer. What goes wrong
    for one of them is raised.
    """
    told: list[int] = []
    stopped = False

    async def talk(number: int, client: openai.AsyncOpenAI) -> None:
        turn = 0
        while not stopped:
            turn += 1
            told.append(await tell(client, f"user {number} turn {turn}", tokens))

    async with ours.sdk() as client, asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(talk(number, client))
        try:
            yield told
        finally:
            stopped = True


@pytest.mark.fault("R9")
async def test_all_replicas_are_replaced_under_load_without_one_cut_stream(ours: Llamas) -> None:
    serving = [await ours.llama(name, "--ping-s", "1", layers=16) for name in ("a1", "b1", "c1")]
    await ours.route(*serving)
    async with talkers(ours, 8, 30) as told:
        for old in list(serving):
            new = await ours.llama(f"{old.id[0]}2", layers=16)
            serving = [llama for llama in serving if llama is not old] + [new]
            table = (*(llama.endpoint() for llama in serving), old.endpoint(intent="draining"))
            await ours.put(*table)
            await ours.healths(**{new.id: "ready"})
            await gone_quiet(ours, old, table)
            assert await old.working() == []
            old.terminate()
            await ours.put(*(llama.endpoint() for llama in serving))
            await asyncio.to_thread(old.process.wait)
            await more(told, 8)
    assert set(told) == {30}
    served = [await llama.generations() for llama in ours.started]
    assert sum(served) == len(told)
    assert all(served)


async def more(told: list[int], count: int) -> None:
    """Wait for so many further answers."""
    enough = len(told) + count
    await eventually(lambda: len(told) >= enough, "everybody was served again")


async def gone_quiet(ours: Llamas, llama: Llama, table: tuple[dict[str, Any], ...]) -> None:
    """Wait until the router says that a replica is drained, told its table again and again as a controller does."""

    async def drained() -> bool:
        return (await ours.put_again(*table))["endpoints"][llama.id]["drained"] is True

    await eventually(drained, "it is drained")


@pytest.mark.fault("R28")
async def test_a_router_killed_in_the_middle_of_a_drain_starts_again_with_it(ours: Llamas) -> None:
    draining, other = await ours.llama("draining", layers=64), await ours.llama("other")
    state = ("--state-dir", str(ours.processes.folder / "state"))
    await ours.route(draining, flags=state)
    stream = Stream()
    reading = asyncio.create_task(ours.listen(stream, "long", 1800))
    await stream.begun.wait()
    table = (draining.endpoint(intent="draining"), other.endpoint())
    answer = await ours.put(*table)
    assert answer["endpoints"]["draining"] == {"in_flight": 1, "drained": False, "health": "ready"}
    ours.router.process.kill()
    await asyncio.gather(reading, return_exceptions=True)
    await ours.start_router(*state)
    await ours.healths(other="ready")
    assert {(await ours.say(f"request {number}"))[0] for number in range(6)} == {200}
    assert (draining.begun(), await other.generations()) == (1, 6)
    await eventually(
        lambda: draining.begun() == draining.ended(), "llama.cpp stopped what the dead router had asked for"
    )
    assert (await ours.put_again(*table))["endpoints"]["draining"]["drained"] is True
