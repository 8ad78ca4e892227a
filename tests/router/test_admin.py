"""The admin API over real sockets around a real dispatcher: tables in, reports out, waits that end."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from router.core.dispatcher import Dispatcher
from router.model import EndpointIntent, IntentTable, ModelIntent
from router.shell.admin import TABLE_BYTES_MAX, WAITERS_MAX, Admin, Wakes
from router.shell.admin_site import admin_site
from router.shell.sockets import address, listening

ENDPOINT = EndpointIntent(id="m-full-1", url="http://127.0.0.1:1", model="m", engine="vllm", limit=4, capacity=4.0)


def table(revision: int, *endpoints: EndpointIntent, source: str = "controller") -> IntentTable:
    return IntentTable(source=source, epoch=1, revision=revision, models=(ModelIntent(name="m"),), endpoints=endpoints)


class Client:
    """A router's admin side and a client of it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, dispatcher: Dispatcher, admin: Admin) -> None:
        self.url = url
        self.session = session
        self.dispatcher = dispatcher
        self.admin = admin
        self.saves = 0

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def put(self, body: bytes | IntentTable, **headers: str) -> tuple[int, Any]:
        data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        async with self.session.put(f"{self.url}/admin/v1/endpoints", data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())


@asynccontextmanager
async def serving(token: str | None = None) -> AsyncIterator[Client]:
    """The admin side on a free port."""
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(router="r", boot="b", random=lambda: 0.5, now=loop.time())
    listener = listening("127.0.0.1", 0, "--admin-port")

    async def stored() -> None:
        client.saves += 1

    admin = Admin(dispatcher, metrics=lambda: (b"up 1\n", "text/plain; version=0.0.4"), token=token, stored=stored)
    async with admin_site(admin, listener), aiohttp.ClientSession() as session:
        client = Client(address(listener), session, dispatcher, admin)
        yield client
    listener.close()


async def until(condition: Any) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for belongs to the code under test and sets no event
            await asyncio.sleep(0)


async def test_a_table_is_applied_acknowledged_shown_and_stored_once() -> None:
    async with serving() as client:
        expected = {
            "applied": [1, 1],
            "endpoints": {"m-full-1": {"in_flight": 0, "drained": False, "health": "unknown"}},
        }
        assert await client.put(table(1, ENDPOINT)) == (200, expected)
        assert await client.put(table(1, ENDPOINT)) == (200, expected)
        assert client.saves == 1
        status, shown = await client.get("/admin/v1/endpoints")
        assert (status, shown["version"]) == (200, 1)
        assert msgspec.convert(shown["tables"]["controller"], IntentTable) == table(1, ENDPOINT)
        assert shown["acknowledged"] == {"controller": expected}


async def test_a_drained_endpoint_is_said_to_be_drained() -> None:
    async with serving() as client:
        await client.put(table(1, ENDPOINT))
        draining = msgspec.structs.replace(ENDPOINT, intent="draining")
        _, answer = await client.put(table(2, draining))
        assert answer["endpoints"]["m-full-1"]["drained"] is True
        assert await client.put(table(3)) == (200, {"applied": [1, 3], "endpoints": {}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": 0}, "`endpoints[0].limit`: 0; expected int >= 1"),
        ({"intent": "resting"}, "`endpoints[0].intent`: 'resting'; allowed: active, draining, standby"),
        ({"url": "ftp://h:1"}, "`endpoints[0].url`: 'ftp://h:1' is not of the form http://HOST:PORT"),
        ({"model": "x"}, "`endpoints[0].model`: 'x' is not one of the table's models: ['m']"),
    ],
)
async def test_a_bad_table_changes_nothing_and_says_which_field(change: dict[str, Any], message: str) -> None:
    async with serving() as client:
        await client.put(table(1, ENDPOINT))
        document = msgspec.to_builtins(table(2, ENDPOINT))
        document["endpoints"][0].update(change)
        status, answer = await client.put(msgspec.json.encode(document))
        assert (status, answer) == (400, {"error": {"message": message, "type": "invalid_request_error", "code": 400}})
        assert client.dispatcher.tables()["controller"] == table(1, ENDPOINT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "xpected `object`, got `array`"),
        (b"[]", "`the table`: []; expected object, got array"),
        (b'{"source": "s", "version": 7}', "`version`: 7; allowed: 1"),
        (b'{"version": 1}', "`source`: missing"),
    ],
)
async def test_what_is_no_table_is_refused(body: bytes, message: str) -> None:
    async with serving() as client:
        status, answer = await client.put(body)
        assert status == 400
        assert message in answer["error"]["message"]
        assert client.dispatcher.has_table is False


async def test_an_older_table_is_refused_with_what_is_held_and_another_body_under_the_same_pair_too() -> None:
    async with serving() as client:
        await client.put(table(5, ENDPOINT))
        status, answer = await client.put(table(4, ENDPOINT))
        assert (status, answer["held"], answer["error"]["code"]) == (409, [1, 5], 409)
        assert "held is epoch 1 revision 5" in answer["error"]["message"]
        status, answer = await client.put(table(5))
        assert (status, answer["held"], answer["error"]["code"]) == (422, [1, 5], 422)
        assert client.saves == 1


async def test_a_model_of_another_source_is_refused() -> None:
    async with serving() as client:
        await client.put(table(1, ENDPOINT))
        status, answer = await client.put(table(1, source="other"))
        assert status == 400
        assert "'m' belongs to the source 'controller'" in answer["error"]["message"]


async def test_a_table_beyond_the_bound_is_refused_unread() -> None:
    async with serving() as client:
        status, answer = await client.put(b" " * (TABLE_BYTES_MAX + 1))
        assert (status, answer["error"]["code"]) == (413, 413)
        assert str(TABLE_BYTES_MAX) in answer["error"]["message"]


async def test_other_paths_and_methods_are_refused_in_the_same_form() -> None:
    async with serving() as client:
        status, answer = await client.get("/nothing")
        assert (status, answer["error"]["message"]) == (404, "GET /nothing: Not Found")
        async with client.session.post(f"{client.url}/admin/v1/endpoints") as response:
            assert (response.status, response.headers["allow"]) == (405, "GET,HEAD,PUT")


async def test_ready_needs_a_table_and_ends_with_the_drain() -> None:
    async with serving() as client:
        assert await client.get("/health") == (200, {"status": "alive"})
        assert await client.get("/ready") == (503, {"status": "no table yet"})
        await client.put(table(1))
        assert await client.get("/ready") == (200, {"status": "ready"})
        client.dispatcher.accepting = False
        assert await client.get("/ready") == (503, {"status": "draining"})
        assert await client.get("/health") == (200, {"status": "alive"})


async def test_the_report_comes_at_once_without_after() -> None:
    async with serving() as client:
        await client.put(table(1, ENDPOINT))
        status, report = await client.get("/admin/v1/load?wait_s=50")
        assert (status, report["router"], report["boot"], report["seq"]) == (200, "r", "b", 0)
        assert report["held"] == {"controller": [1, 1]}
        assert report["endpoints"]["m-full-1"]["engine"] == {
            "running": None,
            "waiting": None,
            "kv": None,
            "age_s": None,
        }


async def test_a_wait_ends_when_the_dispatcher_wakes() -> None:
    async with serving() as client:
        await client.put(table(1, ENDPOINT))
        waiting = asyncio.create_task(client.get("/admin/v1/load?after=0&wait_s=50"))
        await until(lambda: len(client.admin.wakes) == 1)
        client.admin.wakes.wake()  # a wake without news: it goes on waiting
        await until(lambda: len(client.admin.wakes) == 1)
        assert not waiting.done()
        await client.put(table(2, msgspec.structs.replace(ENDPOINT, intent="draining")))
        _, report = await waiting
        assert report["seq"] == 1
        assert len(client.admin.wakes) == 0


@pytest.mark.parametrize("after", [0, 500])
async def test_a_report_that_is_news_to_the_reader_comes_at_once(after: int) -> None:
    async with serving() as client:
        await client.put(table(1, msgspec.structs.replace(ENDPOINT, intent="draining")))
        _, report = await client.get(f"/admin/v1/load?after={after}&wait_s=50")
        assert report["seq"] == 1


async def test_a_wait_ends_when_its_time_is_up_and_when_the_router_stops() -> None:
    async with serving() as client:
        status, report = await client.get("/admin/v1/load?after=0&wait_s=0.01")
        assert (status, report["seq"]) == (200, 0)
        waiting = asyncio.create_task(client.get("/admin/v1/load?after=0&wait_s=50"))
        await until(lambda: len(client.admin.wakes) == 1)
        client.admin.close()
        assert (await waiting)[1]["seq"] == 0


async def test_a_waiting_client_that_leaves_is_forgotten() -> None:
    async with serving() as client:
        leaving = [asyncio.create_task(client.get("/admin/v1/load?after=0&wait_s=50")) for _ in range(3)]
        await until(lambda: len(client.admin.wakes) == 3)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await until(lambda: len(client.admin.wakes) == 0)


async def test_too_many_waits_are_answered_at_once() -> None:
    wakes = Wakes()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wakes.wait(lambda: False, 50.0)) for _ in range(WAITERS_MAX)]
        await until(lambda: len(wakes) == WAITERS_MAX)
        await wakes.wait(lambda: False, 50.0)
        for task in tasks:
            task.cancel()
    assert len(wakes) == 0


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=0&wait_s=nan", "wait_s=inf"])
async def test_a_query_that_is_no_number_is_refused(query: str) -> None:
    async with serving() as client:
        status, answer = await client.get(f"/admin/v1/load?{query}")
        assert status == 400
        assert "allowed: a number of 0 or more" in answer["error"]["message"]


async def test_the_token_guards_all_but_health_and_readiness() -> None:
    async with serving(token="0123456789abcdef") as client:
        right, wrong = {"Authorization": "Bearer 0123456789abcdef"}, {"Authorization": "Bearer 0123456789abcdeg"}
        for path in ("/admin/v1/endpoints", "/admin/v1/load", "/metrics"):
            for headers in ({}, wrong, {"Authorization": "Bearer \xff"}):
                async with client.session.get(client.url + path, headers=headers) as response:
                    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
            async with client.session.get(client.url + path, headers=right) as response:
                assert response.status == 200
        assert (await client.put(table(1)))[0] == 401
        assert client.dispatcher.has_table is False
        assert (await client.put(table(1), **right))[0] == 200
        assert (await client.get("/health"))[0] == 200
        assert (await client.get("/ready"))[0] == 200


async def test_metrics_are_passed_on_as_they_are() -> None:
    async with serving() as client, client.session.get(f"{client.url}/metrics") as response:
        assert (response.headers["content-type"], await response.read()) == ("text/plain; version=0.0.4", b"up 1\n")
