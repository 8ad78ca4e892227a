"""What the dispatcher decides about waiting requests is carried out for each of them, whatever happens to the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.core.endpoints import Endpoint
from router.shell.client import Client
from router.shell.exchange import Exchange
from tests.router.wire import Caller, Site, json_answer, on_uvloop, post, until


async def queued(site: Site, count: int) -> list[tuple[Caller, Client]]:
    """Callers whose requests wait because the endpoint only starts, each with the router's end of its connection."""
    site.tell(starting=True)
    found = []
    for number in range(count):
        known = set(site.plane.clients)
        caller = await site.call()
        caller.writer.write(post(b'{"model":"m","n":%d}' % number))
        await until(lambda number=number: site.dispatcher.model_states()[0].queue.count == number + 1)  # type: ignore[misc]
        (ours,) = site.plane.clients - known
        found.append((caller, ours))
    return found


@on_uvloop
async def test_a_client_that_leaves_after_a_table_started_its_request_costs_nobody_else_theirs() -> None:
    async with Site(json_answer(), limit=3) as site:
        (_, gone), *others = await queued(site, 4)
        gone.transport.abort()  # its end is noticed in the loop's next turn, before what the table started is sent
        site.tell()
        assert [(await caller.answer()).status for caller, _ in others] == [200, 200, 200]
        await site.settled()
        assert sorted(received.body for received in site.engines[0].received) == [
            b'{"model":"m","n":%d}' % number for number in (1, 2, 3)
        ]
        assert site.dispatcher.endpoints["e0"].outcomes == {"client_gone": 1, "success": 3}


@on_uvloop
async def test_a_client_that_leaves_after_a_table_refused_its_request_is_not_answered() -> None:
    async with Site(json_answer()) as site:
        (_, gone), (stayed, _) = await queued(site, 2)
        gone.transport.abort()
        site.tell(name="other")
        assert (await stayed.answer()).status == 503
        await until(lambda: gone not in site.plane.clients)
        assert (site.plane.counters.local_answers, site.plane.counters.left) == (1, 1)
        await site.settled()


class Bug(Exception):
    """Stands for any mistake of ours."""


@pytest.mark.parametrize("buggy", [0, 1, 2])
@on_uvloop
async def test_a_bug_with_one_of_a_batch_costs_that_one_only(buggy: int) -> None:
    async with Site(json_answer(), limit=3) as site:
        seen: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        waiting = await queued(site, 3)
        send, wrong = site.plane.send, waiting[buggy][1]

        def sometimes(exchange: Exchange, endpoint: Endpoint, fresh: bool = False) -> None:
            if exchange.client is wrong:
                raise Bug
            send(exchange, endpoint, fresh)

        site.plane.send = sometimes  # type: ignore[method-assign]
        site.tell()
        for number, (caller, _) in enumerate(waiting):
            if number == buggy:
                assert await caller.closed() == b""
            else:
                assert (await caller.answer()).status == 200
        assert [type(error) for error in seen] == [Bug]
        assert site.plane.counters.bugs == 1
        site.plane.counters.bugs = 0
        await site.settled()


@on_uvloop
async def test_a_bug_with_who_waits_does_not_keep_the_one_that_ended_from_its_next_request() -> None:
    gate = asyncio.Event()

    async def behave(received: Any, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await json_answer()(received, writer)

    async with Site(behave, limit=1) as site:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        first, second = await site.call(), await site.call()
        first.writer.write(post())
        await site.engines[0].got(1)
        second.writer.write(post())
        await until(lambda: site.dispatcher.model_states()[0].queue.count == 1)
        send = site.plane.send

        def never(*_: Any, **__: Any) -> None:
            raise Bug

        site.plane.send = never  # type: ignore[method-assign]
        gate.set()
        assert (await first.answer()).status == 200
        assert await second.closed() == b""
        site.plane.send = send  # type: ignore[method-assign]
        assert (await first.ask(post())).status == 200
        assert site.plane.counters.bugs == 1
        site.plane.counters.bugs = 0
        await site.settled()
