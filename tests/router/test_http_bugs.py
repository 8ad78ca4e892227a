"""Our own bugs: an exception inside the data plane costs the one request, is counted and reported, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.shell.exchange import Exchange
from router.shell.upstream import Upstream
from tests.router.wire import SSE_HEAD, Site, chunk, event, json_answer, on_uvloop, post, raw_answer, until


class Bug(Exception):
    """Stands for any mistake of ours."""


def buggy(*_: Any, **__: Any) -> Any:
    raise Bug


async def reported(site: Site) -> list[BaseException]:
    """Collect what the loop reports instead of failing the test."""
    seen: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
    return seen


@on_uvloop
async def test_while_reading_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(json_answer()) as site:
        seen = await reported(site)
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "message", buggy)
            caller = await site.call()
            assert (await caller.ask(post())).status == 500
        await until(lambda: site.plane.counters.bugs == 1)
        assert [type(error) for error in seen] == [Bug]
        assert site.dispatcher.endpoints["e0"].health == "ready"
        assert site.dispatcher.endpoints["e0"].in_flight == 0
        assert (await site.ask(post())).status == 200


@on_uvloop
async def test_while_dispatching_a_request() -> None:
    async with Site(json_answer()) as site:
        seen = await reported(site)
        arrived, site.dispatcher.arrived = site.dispatcher.arrived, buggy  # type: ignore[method-assign]
        caller = await site.call()
        caller.writer.write(post())
        assert await caller.closed() == b""
        site.dispatcher.arrived = arrived  # type: ignore[method-assign]
        assert site.plane.counters.bugs == 1
        assert [type(error) for error in seen] == [Bug]
        assert (await site.ask(post())).status == 200


@on_uvloop
async def test_while_reading_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(json_answer()) as site:
        seen = await reported(site)
        with monkeypatch.context() as patch:
            patch.setattr(Upstream, "_answer", buggy)
            answer = await site.ask(post())
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, "internal_error")
        assert [type(error) for error in seen] == [Bug]
        assert site.plane.counters.bugs == 1
        assert site.dispatcher.endpoints["e0"].outcomes == {"ignored": 1}
        assert site.dispatcher.endpoints["e0"].in_flight == 0


@on_uvloop
async def test_inside_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(raw_answer(SSE_HEAD, chunk(event(0)), chunk(event(1)[:9]))) as site:
        await reported(site)
        monkeypatch.setattr("router.shell.streams.Regrouping.take", buggy)
        caller = await site.call()
        caller.writer.write(post())
        assert await caller.closed() == b""
        assert site.plane.counters.bugs == 1
        assert site.dispatcher.endpoints["e0"].in_flight == 0


@on_uvloop
async def test_in_a_pipelined_request_and_in_the_timer() -> None:
    async with Site(json_answer()) as site:
        seen = await reported(site)
        arrived = site.dispatcher.arrived
        count = 0

        def second_time(made: Any, now: float) -> Any:
            nonlocal count
            count += 1
            return arrived(made, now) if count == 1 else buggy()

        site.dispatcher.arrived = second_time  # type: ignore[method-assign,assignment]
        caller = await site.call()
        caller.writer.write(post() + post())
        assert (await caller.answer()).status == 200
        assert await caller.closed() == b""
        assert site.plane.counters.bugs == 1
        expired, site.dispatcher.expired = site.dispatcher.expired, buggy  # type: ignore[method-assign]
        await until(lambda: site.plane.counters.bugs == 2)
        site.dispatcher.expired = expired  # type: ignore[method-assign]
        tick = site.plane.tick
        await until(lambda: site.plane.tick > tick)
        assert [type(error) for error in seen] == [Bug, Bug]
