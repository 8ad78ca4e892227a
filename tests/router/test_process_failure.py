"""Engines that die or leave while they serve: nothing else is lost, and every count returns to zero."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from tests.processes import Processes
from tests.router.fleet import Stream, fleet

pytestmark = pytest.mark.processes

SLOW = ("--decode-tokens-per-s", "50")


@pytest.mark.fault("R11")
async def test_an_engine_killed_in_the_middle_of_a_stream(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engines = {name: await ours.engine(name, *SLOW) for name in ("a", "b")}
        await ours.start_router()
        await ours.put(*(engine.endpoint() for engine in engines.values()))
        await ours.healths(a="ready", b="ready")

        doomed, other = Stream(), Stream()
        async with asyncio.TaskGroup() as group:
            group.create_task(ours.stream(doomed, 4000))
            await doomed.begun.wait()
            report = await ours.load()
            (hit,) = [id_ for id_, load in report["endpoints"].items() if load["in_flight"] == 1]
            kept = "b" if hit == "a" else "a"
            group.create_task(ours.stream(other, 50))
            await other.begun.wait()
            queued = [group.create_task(ours.ask()) for _ in range(3)]
            await ours.until(lambda report: report["models"]["tide-1"]["queued"] == 3)
            engines[hit].process.kill()

        assert [task.result()[0] for task in queued] == [200, 200, 200], [task.result() for task in queued]
        assert doomed.status == 200
        assert b"[DONE]" not in doomed.body
        assert doomed.body.endswith(b"\n\n")
        *before, last = doomed.events()
        assert b"error" not in b"".join(before)
        assert json.loads(last.split(b"data: ", 1)[1])["error"]["message"]
        assert other.events()[-1] == b"data: [DONE]"
        assert other.words() == 50

        report = await ours.until(lambda report: report["endpoints"][hit]["health"] == "ejected")
        model = report["models"]["tide-1"]
        assert (model["in_flight"], model["queued"], model["arrived"] != []) == (0, 0, True)
        assert {id_: load["in_flight"] for id_, load in report["endpoints"].items()} == {"a": 0, "b": 0}
        assert sorted(row["tokens"] for row in engines[kept].generations()) == [2, 2, 2, 50]


@pytest.mark.fault("R9")
async def test_a_drained_endpoint_ends_its_stream_and_gets_nothing_new(processes: Processes) -> None:
    async with fleet(processes) as ours:
        old, new = (
            await ours.engine("old", *SLOW),
            await ours.engine("new", *SLOW),
        )  # before the stream: a start takes time
        await ours.start_router()
        await ours.put(old.endpoint())
        await ours.healths(old="ready")
        long = Stream()
        async with asyncio.TaskGroup() as group:
            group.create_task(ours.stream(long, 100))
            await long.begun.wait()
            table = (old.endpoint(intent="draining"), new.endpoint())
            answer = await ours.put(*table)
            assert answer["endpoints"]["old"] == {"in_flight": 1, "drained": False, "health": "ready"}
            await ours.healths(new="ready")
            statuses = [(await ours.ask())[0] for _ in range(4)]
            answer = await ours.put_again(*table)
            assert (answer["endpoints"]["old"]["drained"], long.events()[-1] == b"data: [DONE]") == (False, False)
        assert statuses == [200] * 4
        assert (long.events()[-1], long.words()) == (b"data: [DONE]", 100)
        answer = await ours.put_again(*table)
        assert answer["endpoints"]["old"] == {"in_flight": 0, "drained": True, "health": "ready"}
        assert [row["tokens"] for row in old.generations()] == [100]
        assert [row["tokens"] for row in new.generations()] == [2] * 4


@pytest.mark.fault("R7", "R9")
async def test_an_engine_that_hangs_on_sigterm_cuts_nothing_when_drained_first(processes: Processes) -> None:
    """vLLM: its port closes, its streams fall silent, and it stays until it is killed. Told too early, the stream ends with
    an error event at the bound between bytes; told when the drain is acknowledged, nobody notices.
    """
    bounds = {"routing": {"timeouts": {"between_bytes_s": 0.5}}}
    async with fleet(processes) as ours:
        await ours.start_router()
        engines = [await ours.engine(name, *SLOW, "--sigterm", "hang") for name in ("early", "late")]
        for engine in engines:
            drain = engine.id == "late"
            await ours.put(engine.endpoint(), **bounds)
            await ours.healths(**{engine.id: "ready"})
            stream = Stream()
            async with asyncio.TaskGroup() as group:
                group.create_task(ours.stream(stream, 60 if drain else 4000))
                await stream.begun.wait()
                if drain:
                    row = engine.endpoint(intent="draining")
                    answer = await ours.put(row, **bounds)
                    while not answer["endpoints"]["late"]["drained"]:
                        await asyncio.sleep(0.02)
                        answer = await ours.put_again(row, **bounds)
                engine.process.signal(signal.SIGTERM)
            last = stream.events()[-1]
            if drain:
                assert (last, stream.words()) == (b"data: [DONE]", 60)
            else:
                assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == 504
            assert engine.process.running
            engine.process.kill()


async def test_a_client_that_leaves_frees_its_slot_and_stops_the_generation(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", *SLOW)
        await ours.start_router()
        await ours.put(engine.endpoint())
        await ours.healths(a="ready")
        leaving = Stream()
        streaming = asyncio.create_task(ours.stream(leaving, 4000))
        await leaving.begun.wait()
        waiting = asyncio.create_task(ours.ask())
        await ours.until(lambda report: report["models"]["tide-1"]["queued"] == 1)
        streaming.cancel()
        await asyncio.gather(streaming, return_exceptions=True)
        assert (await waiting)[0] == 200
        await ours.until(lambda report: report["models"]["tide-1"]["in_flight"] == 0)
        assert [(row["aborted"], row["stream"]) for row in engine.generations()] == [(True, True), (False, False)]


async def test_a_request_for_a_model_at_zero_wakes_the_controller_and_is_held_until_a_replica_comes(
    processes: Processes,
) -> None:
    async with fleet(processes) as ours:
        await ours.start_router()
        await ours.put()
        seq = (await ours.load())["seq"]
        standing = asyncio.create_task(ours.load(f"?after={seq}&wait_s=30"))
        held = asyncio.create_task(ours.ask())
        report = await standing
        assert report["seq"] > seq
        assert report["models"]["tide-1"]["held_from_zero"] == 1
        engine = await ours.engine("first")
        await ours.put(engine.endpoint())
        assert (await held)[0] == 200
        assert (await ours.load())["models"]["tide-1"]["held_from_zero"] == 0


async def test_engine_metrics_reach_the_load_report_and_the_metrics_page(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", *SLOW)
        await ours.start_router()
        await ours.put(engine.endpoint())
        report = await ours.until(lambda report: report["endpoints"]["a"]["engine"]["running"] is not None)
        assert report["endpoints"]["a"]["engine"]["waiting"] == 0
        async with ours.session.get(f"{ours.router.admin}/metrics") as response:
            page = await response.text()
        assert 'tidegate_router_endpoint_engine_running{endpoint="a",model="tide-1"} 0.0' in page
        assert 'tidegate_router_endpoint_state{endpoint="a",health="ready",intent="active",model="tide-1"} 1.0' in page


async def test_the_death_of_an_engine_wakes_the_controller_without_further_requests(processes: Processes) -> None:
    async with fleet(processes) as ours:
        engine = await ours.engine("a", *SLOW)
        await ours.start_router()
        await ours.put(engine.endpoint())
        await ours.healths(a="ready")
        stream = Stream()
        streaming = asyncio.create_task(ours.stream(stream, 4000))
        await stream.begun.wait()
        seq = (await ours.load())["seq"]
        standing = asyncio.create_task(ours.load(f"?after={seq}&wait_s=30"))
        engine.process.kill()
        await streaming
        assert b"error" in stream.events()[-1]
        report = await standing
        assert report["seq"] > seq
        assert report["endpoints"]["a"]["health"] == "ejected"
