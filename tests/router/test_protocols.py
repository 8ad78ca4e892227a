"""Every protocol, and every fault of an answer, through the router to the emulated engine; both in the test's loop."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtests.engine_faults import changed
from tests.loadtests.engine_site import Engine, running
from tests.router.wire import Answer, Site, on_uvloop, post

STREAMS: list[tuple[str, dict[str, Any], bytes]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 6}, b"data: {"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 6}, b"data: {"),
    ("/v1/responses", {"input": "a", "max_output_tokens": 6}, b"event: error\ndata: {"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 6}, b"event: error\ndata: {"),
    ("/v2/models/tide-1/generate_stream", {"text_input": "a", "max_tokens": 6}, b"data: {"),
    ("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 6}}, b"data: {"),
    ("/completion", {"prompt": "a", "n_predict": 6}, b"data: {"),
]
PATHS = [path for path, _, _ in STREAMS]


class Through:
    """One engine behind one router."""

    def __init__(self, engine: Engine, site: Site) -> None:
        self.engine, self.site = engine, site

    def tell(self) -> None:
        """A table with the engine, and forget its failures."""
        url = self.engine.client._base_url
        assert url is not None
        self.site.engines = [AnEngine(url.port or 0)]  # type: ignore[list-item]  # as much of an engine as a site asks for
        if (at := self.site.dispatcher.endpoints.get("e0")) is not None:
            at.failures, at.paused_until = 0, 0.0
        self.site.tell("tide-1")

    def fault(self, **wanted: object) -> None:
        driver = self.engine.driver
        driver.obey(changed(driver.faults, wanted))

    async def ask(self, path: str, document: dict[str, Any], **more: object) -> Answer:
        self.tell()
        answer = await self.site.ask(post(json.dumps({**document, **more}).encode(), path=path))
        await self.site.settled()
        return answer


class AnEngine:
    """What a site wants to know of an engine of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def start(self) -> None:
        """It runs."""

    async def stop(self) -> None:
        """It is stopped elsewhere."""


@asynccontextmanager
async def through(**site: Any) -> AsyncIterator[Through]:
    async with running() as engine, Site(**site) as before:
        yield Through(engine, before)


@pytest.mark.parametrize(("path", "document", "error"), STREAMS, ids=PATHS)
@on_uvloop
@pytest.mark.fault("R11", "R12")
async def test_streams_pass_untouched_and_end_well_wherever_they_are_cut(
    path: str, document: dict[str, Any], error: bytes
) -> None:
    async with through() as world:
        world.fault(utf8=True)
        whole = await world.ask(path, document, stream=True)
        assert (whole.status, whole.whole) == (200, True)
        assert b'"error"' not in whole.body.replace(b'"error":null', b"")
        for settings in ({"split_bytes": 5}, {"burst": True}, {"join_first": True}, {"interim": 3}):
            world.fault(**settings)
            again = await world.ask(path, document, stream=True)
            assert again.whole
            assert shape(again.body) == shape(whole.body), settings
            world.fault(split_bytes=0, burst=False, join_first=False, interim=0)
        for at in ("event", "utf8", "between"):
            for how in ("close", "reset"):
                for split in (0, 3):
                    world.fault(cut_after_tokens=2, cut_at=at, cut_how=how, split_bytes=split)
                    cut = await world.ask(path, document, stream=True)
                    assert cut.whole, (at, how)
                    *before, last = cut.body.decode().removesuffix("\n\n").split("\n\n")
                    assert last.encode().startswith(error)
                    assert b"[DONE]" not in cut.body
                    value = json.loads(last.rpartition("data: ")[2])
                    assert "replica" in str(value["error"])
                    assert "".join(shape("\n\n".join([*before, ""]).encode())) in "".join(shape(whole.body))


def shape(body: bytes) -> list[str]:
    """Events without what differs from one answer to the next: ids, words, moments."""
    text = re.sub(r"(engine|boot)-[0-9a-z-]+", "ID", body.decode())
    text = re.sub(r'"(content|text|delta|generated_text|text_output)":"[^"]*"', r'"\1":WORD', text)
    return [re.sub(r'"created(_at)?":\d+', "NOW", event) for event in text.split("\n\n")]


@pytest.mark.parametrize(("path", "document", "error"), STREAMS, ids=PATHS)
@on_uvloop
@pytest.mark.fault("R9", "R11")
async def test_what_the_engine_says_of_its_own_death_passes_untouched(
    path: str, document: dict[str, Any], error: bytes
) -> None:
    async with through() as world:
        world.fault(error_after_tokens=2)
        answer = await world.ask(path, document, stream=True)
        assert answer.whole
        assert b"EngineCore encountered an issue." in answer.body
        assert world.site.plane.counters.error_events == 0
        if path in ("/v1/chat/completions", "/v1/completions"):
            assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("path", "document", "error"), STREAMS, ids=PATHS)
@on_uvloop
async def test_an_answer_that_is_no_http_is_502_in_the_form_of_the_path(
    path: str, document: dict[str, Any], error: bytes
) -> None:
    async with through() as world:
        for kind in ("text", "head", "lengths", "chunks"):  # in one read: nothing of it was forwarded
            world.fault(garbage=kind)
            answer = await world.ask(path, document, stream=True)
            assert answer.status == 502
            assert "replica" in str(json.loads(answer.body)["error"])


@pytest.mark.parametrize(("path", "document", "error"), STREAMS, ids=PATHS)
@on_uvloop
@pytest.mark.fault("R7")
async def test_a_silent_engine_is_told_in_the_form_of_the_path(
    path: str, document: dict[str, Any], error: bytes
) -> None:
    timeouts = {"timeouts": {"first_byte_s": 0.3, "between_bytes_s": 0.3}}
    async with through(routing=timeouts) as world:
        world.fault(stall_after_tokens=2)
        answer = await world.ask(path, document, stream=True)
        assert answer.whole
        assert answer.body.decode().removesuffix("\n\n").rpartition("\n\n")[2].encode().startswith(error)
        assert b"did not answer in time" in answer.body


@on_uvloop
@pytest.mark.fault("R10")
async def test_connections_that_an_engine_closes_when_idle_or_as_they_are_used_cost_nobody_an_answer() -> None:
    async with through() as world:
        path, document, _ = STREAMS[1]
        world.fault(close_reused=20, idle_close_s=0.02)
        world.tell()
        caller = await world.site.call()
        body = json.dumps({**document, "max_tokens": 1}).encode()
        for _ in range(40):
            assert (await caller.ask(post(body, path=path))).status == 200
        assert world.engine.driver.faults.close_reused < 20  # it did happen
        await world.site.settled()
        ids = [row["request_id"] for row in world.engine.rows()]
        assert len(ids) == len(set(ids)) == 40


@on_uvloop
@pytest.mark.fault("R3")
async def test_a_connection_reset_after_the_request_was_sent_is_502_and_not_sent_again() -> None:
    async with through() as world:
        path, document, _ = STREAMS[1]
        world.fault(reset_accept=1)
        assert (await world.ask(path, document)).status == 502
        assert (await world.ask(path, document)).status == 200
        assert len(world.engine.rows()) == 1


@on_uvloop
@pytest.mark.fault("R13")
async def test_a_body_that_the_engine_reads_slowly_arrives_whole() -> None:
    async with through() as world:
        path, document, _ = STREAMS[1]
        world.fault(read_bytes_per_s=40_000_000.0)
        answer = await world.ask(path, document, padding="x" * 4_000_000)
        assert answer.status == 200


@on_uvloop
async def test_a_sleeping_engine_ends_what_runs_and_the_answer_passes() -> None:
    async with through() as world:
        path, document, _ = STREAMS[0]
        world.tell()
        caller = await world.site.call()
        caller.writer.write(post(json.dumps({**document, "max_tokens": 90_000}).encode(), path=path))
        while not world.engine.driver.totals.generation_tokens:
            async with world.engine.client.get("/health"):
                pass
        async with world.engine.client.post("/sleep"):
            pass
        answer = await caller.answer()
        assert json.loads(answer.body)["choices"][0]["finish_reason"] == "abort"
        await world.site.settled()
