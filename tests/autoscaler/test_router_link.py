"""The two wires over real HTTP, against a small router that remembers what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from autoscaler.adapters.router_link import Author, HttpLoadSource, HttpRouterLink, admin_url
from autoscaler.adapters.table import table
from autoscaler.controller.history import SqliteHistory
from autoscaler.errors import BadInput
from autoscaler.model import Replica, ReplicaState, StartTime
from autoscaler.policy import ScalingPolicy
from tests.builders import a_policy, a_replica, at, starting, variant_document

POLICY = a_policy()


def start_times(policy: ScalingPolicy, variant: str) -> StartTime:
    return StartTime(p50_s=10, p90_s=12)


@dataclass
class FakeRouter:
    """Takes tables as a router does, the newest of each source; `answers` overrides the next answers as (status,
    document). With a `token` it answers nobody else.
    """

    url: str = ""
    token: str | None = None
    held: dict[str, list[int]] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    answers: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=lambda: {"router": "r", "boot": "b", "seq": 0, "second": 0})
    seq: int = 0
    waited: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, request: web.Request) -> None:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized

    async def put(self, request: web.Request) -> web.Response:
        self.check(request)
        document = await request.json()
        self.tables.append(document)
        if self.answers:
            status, answer = self.answers.pop(0)
            return web.json_response(answer, status=status)
        pair, held = [document["epoch"], document["revision"]], self.held.get(document["source"], [0, 0])
        if pair < held:
            return web.json_response({"held": held}, status=409)
        self.held[document["source"]] = pair
        rows = {
            e["id"]: {"in_flight": 1, "drained": e["id"] in self.drained, "health": "ready"}
            for e in document["endpoints"]
        }
        return web.json_response({"applied": [document["epoch"], document["revision"]], "endpoints": rows})

    async def load(self, request: web.Request) -> web.Response:
        self.check(request)
        if "after" in request.query:
            self.waited.append(request.query["after"])
            await self.news.wait()
            self.news.clear()
        return web.json_response(self.report)


@pytest.fixture
async def routers() -> AsyncIterator[tuple[FakeRouter, FakeRouter]]:
    fakes = (FakeRouter(), FakeRouter())
    runners = []
    for fake in fakes:
        app = web.Application()
        app.router.add_put("/admin/v1/endpoints", fake.put)
        app.router.add_get("/admin/v1/load", fake.load)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    yield fakes
    for fake in fakes:
        fake.news.set()
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def link(routers: tuple[FakeRouter, FakeRouter]) -> AsyncIterator[HttpRouterLink]:
    made = HttpRouterLink([routers[0].url], author(3), start_times)
    yield made
    await made.close()


def author(epoch: int, source: str = "local/tidegate-a") -> Author:
    return Author(source=source, epoch=epoch)


def pairs(fake: FakeRouter) -> list[tuple[int, int]]:
    return [(document["epoch"], document["revision"]) for document in fake.tables]


async def publish(link: HttpRouterLink, replicas: tuple[Replica, ...], now_s: float) -> dict[str, bool]:
    return dict(await link.publish([POLICY], {"chat": replicas}, at(now_s)))


async def test_a_table_is_sent_when_it_changed_and_every_second(
    routers: tuple[FakeRouter, FakeRouter], link: HttpRouterLink
) -> None:
    one, two = (a_replica("r1"),), (a_replica("r1"), a_replica("r2"))
    for moment_s, rows in ((0, one), (0.5, one), (0.7, two), (1.2, two), (1.8, two)):
        await publish(link, rows, moment_s)
    assert pairs(routers[0]) == [(3, 1), (3, 2), (3, 2)]
    assert [e["id"] for e in routers[0].tables[-1]["endpoints"]] == ["r1", "r2"]


@pytest.mark.fault("R28")
async def test_every_router_gets_it_and_drained_is_the_word_of_all(routers: tuple[FakeRouter, FakeRouter]) -> None:
    link = HttpRouterLink([fake.url for fake in routers], author(1), start_times)
    rows = (a_replica("r1", "draining"), a_replica("r2"))
    routers[0].drained = {"r1"}
    assert await publish(link, rows, 0) == {"r1": False, "r2": False}
    routers[1].drained = {"r1"}
    assert await publish(link, rows, 1) == {"r1": True, "r2": False}  # asked again although nothing changed
    assert link.in_flight() == {"r1": 2, "r2": 2}
    await link.close()


@pytest.mark.fault("R28")
async def test_an_unreachable_router_acknowledges_nothing_and_is_asked_again(
    routers: tuple[FakeRouter, FakeRouter],
) -> None:
    link = HttpRouterLink([routers[0].url, "http://127.0.0.1:9"], author(1), start_times)
    assert link.unacknowledged() == {}
    routers[0].drained = {"r1"}
    rows = (a_replica("r1", "draining"),)
    assert await publish(link, rows, 0) == {"r1": False}
    assert list(link.unacknowledged()) == ["http://127.0.0.1:9"]
    assert "connect" in link.unacknowledged()["http://127.0.0.1:9"].lower()
    await publish(link, rows, 0.1)
    assert len(routers[0].tables) == 2
    await link.close()


@pytest.mark.parametrize(("count", "slots"), [(1, [10]), (2, [5, 5])])
async def test_routers_share_every_limit(routers: tuple[FakeRouter, FakeRouter], count: int, slots: list[int]) -> None:
    """What a router makes of a limit is max(1, round(limit x share)); together they must not exceed it."""
    link = HttpRouterLink([fake.url for fake in routers[:count]], author(1), start_times)
    await publish(link, (a_replica("r1"),), 0)
    documents = [fake.tables[-1] for fake in routers[:count]]
    assert [max(1, round(d["endpoints"][0]["limit"] * d["share"])) for d in documents] == slots
    await link.close()


async def test_another_share_alone_is_news(link: HttpRouterLink, routers: tuple[FakeRouter, FakeRouter]) -> None:
    await publish(link, (a_replica("r1"),), 0)
    assert link._table is not None
    assert not link._renew(msgspec.structs.replace(link._table))
    assert link._renew(msgspec.structs.replace(link._table, share=0.25))


async def test_two_controllers_share_a_router_without_overtaking_each_other(
    routers: tuple[FakeRouter, FakeRouter], tmp_path: Path
) -> None:
    """Two state folders: each has a name of its own, and keeps it when its history is lost."""
    links = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        history = SqliteHistory(folder)
        links.append(HttpRouterLink([routers[0].url], author(history.next_epoch(), history.name), start_times))
        history.close()
    for moment_s in (0.0, 1.0, 2.0, 3.0):
        for link, rows in zip(links, ((a_replica("r1"),), (a_replica("r2"),)), strict=True):
            await publish(link, rows, moment_s)
            assert link.unacknowledged() == {}
    assert pairs(routers[0]) == [(1, 1)] * 8
    assert len(routers[0].held) == 2
    for file in (tmp_path / "a").glob("history.sqlite3*"):
        file.unlink()
    history = SqliteHistory(tmp_path / "a")
    assert history.name in routers[0].held
    history.close()
    for link in links:
        await link.close()


async def test_a_router_that_asks_for_a_token(routers: tuple[FakeRouter, FakeRouter]) -> None:
    routers[0].token = "open-sesame"
    rows, url = (a_replica("r1"),), routers[0].url
    routers[0].report |= {"second": 1, "models": {"m": {"arrived": [4]}}, "seq": 7}
    for token, answered in ((None, False), ("wrong", False), ("open-sesame", True)):
        link, source = HttpRouterLink([url], author(1), start_times, token), HttpLoadSource([url], token)
        await publish(link, rows, 0)
        assert (list(link.unacknowledged()) == []) is answered
        assert answered or "401" in link.unacknowledged()[url]
        assert (await source.read(POLICY, at(0)) is not None) is answered
        await link.close()
        await source.close()
    woken = asyncio.Event()
    watching = asyncio.create_task(HttpLoadSource([url], "open-sesame").watch(woken.set))
    routers[0].news.set()
    async with asyncio.timeout(20):
        await woken.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("status", [409, 422])
async def test_a_router_that_holds_a_newer_table_is_overtaken(
    routers: tuple[FakeRouter, FakeRouter], link: HttpRouterLink, status: int
) -> None:
    """The history was lost: our epoch began anew, the router remembers a later one."""
    routers[0].answers = [(status, {"held": [12, 345]})]
    routers[0].drained = {"r1"}
    assert await publish(link, (a_replica("r1", "draining"),), 0) == {"r1": True}
    assert pairs(routers[0]) == [(3, 1), (13, 1)]
    await publish(link, (a_replica("r2"),), 1)
    assert pairs(routers[0])[-1] == (13, 2)


@pytest.mark.parametrize(
    "answer", [(500, {}), (400, {"error": {"message": "no"}}), (200, {"applied": "x"}), (409, {"error": "?"})]
)
async def test_an_answer_that_makes_no_sense_is_no_acknowledgement(
    routers: tuple[FakeRouter, FakeRouter], link: HttpRouterLink, answer: tuple[int, dict[str, Any]]
) -> None:
    routers[0].answers = [answer]
    routers[0].drained = {"r1"}
    rows = (a_replica("r1", "draining"),)
    assert await publish(link, rows, 0) == {"r1": False}
    assert await publish(link, rows, 1) == {"r1": True}


async def test_without_routers_nothing_is_ever_drained() -> None:
    link = HttpRouterLink([], author(1), start_times)
    assert await publish(link, (a_replica("r1", "draining"),), 0) == {"r1": False}


async def test_load_is_read_from_those_that_answer(routers: tuple[FakeRouter, FakeRouter]) -> None:
    source = HttpLoadSource([routers[0].url, "http://127.0.0.1:9"])
    routers[0].report |= {
        "second": 2,
        "models": {"m": {"arrived": [4, 5], "in_flight": 3, "queued": 1, "oldest_s": 0.5}},
    }
    sample = await source.read(POLICY, at(0))
    assert sample is not None
    assert (sample.arrivals, sample.in_flight, sample.queued) == ((4, 5), 3, 1)
    assert sample.routers_missing == ("http://127.0.0.1:9",)
    routers[0].report["second"] = "two"
    assert await source.read(POLICY, at(1)) is None  # what cannot be read is missing, never zero
    await source.close()


async def test_the_standing_request_wakes(routers: tuple[FakeRouter, FakeRouter]) -> None:
    source = HttpLoadSource([routers[0].url])
    woken = asyncio.Event()
    watching = asyncio.create_task(source.watch(woken.set))
    async with asyncio.timeout(20):
        routers[0].report["seq"] = 7
        routers[0].news.set()
        await woken.wait()
        woken.clear()
        routers[0].report["seq"] = 9
        routers[0].news.set()
        await woken.wait()
    assert routers[0].waited[:2] == ["0", "7"]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert watching.cancelled()


@pytest.mark.parametrize("text", ["127.0.0.1:9190", "https://h:1", "http://h", "http://h:1/path", "http://h:x", ""])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--router"):
        admin_url(text)


def the_table(*replicas: Replica, policy: ScalingPolicy = POLICY, now_s: float = 5.0) -> Any:
    return table("s", [policy], {policy.key: replicas}, start_times, at(now_s))


@pytest.mark.parametrize(
    ("replica", "row"),
    [
        (a_replica("r"), ("active", False)),
        (a_replica("r", standby=True), ("standby", False)),
        (a_replica("r", "draining"), ("draining", False)),
        (a_replica("r", "draining", standby=True), ("draining", False)),
        (a_replica("r", "starting"), ("active", True)),
        (a_replica("r", "starting", standby=True), ("standby", True)),
        (a_replica("r", "draining", ready_s=None), ("draining", True)),
        (a_replica("r", "starting", url=None), None),
        (a_replica("r", "stopping"), None),
        (a_replica("r", failed=True), None),
    ],
)
def test_what_a_router_is_told_of_a_replica(replica: Replica, row: tuple[str, bool] | None) -> None:
    found = the_table(replica).endpoints
    assert [(endpoint.intent, endpoint.starting) for endpoint in found] == ([row] if row else [])


@pytest.mark.parametrize(
    ("capacity", "signal", "limit"),
    [
        (10, {"type": "concurrency"}, 10),
        (2.9, {"type": "concurrency"}, 2),
        (0.5, {"type": "concurrency"}, 1),
        (4, {"type": "requestRate", "serviceSeconds": 2.5}, 10),
    ],
)
def test_limits(capacity: float, signal: dict[str, Any], limit: int) -> None:
    policy = a_policy([variant_document(capacity=capacity)], signal=signal)
    (endpoint,) = the_table(a_replica("r"), policy=policy).endpoints
    assert (endpoint.limit, endpoint.capacity) == (limit, capacity)


@pytest.mark.parametrize(
    ("age_s", "eta_s"),
    [(0, 10), (3.5, 7), (9.5, 1), (10, 1), (10.5, 2), (12, 1), (12.1, 3), (14.1, 1), (14.3, None), (1000, None)],
)
@pytest.mark.parametrize("state", ["requested", "starting"])
def test_what_clients_are_told_of_a_replica_that_loads(state: str, age_s: float, eta_s: float | None) -> None:
    """P50 10 s, P90 12 s, P99 14.18 s: dead supply is promised to nobody."""
    (model,) = the_table(a_replica("r", state), now_s=age_s).models
    assert model.supply.eta_s == eta_s


def test_the_supply_is_the_first_that_is_due() -> None:
    def due(*replicas: Replica) -> float | None:
        return the_table(*replicas).models[0].supply.eta_s  # type: ignore[no-any-return]  # the_table is Any for brevity

    assert due(*starting(1, started_s=0.0), a_replica("x", "starting", started_s=4.0)) == 5
    assert due(a_replica("r", ReplicaState.READY)) is None
    assert due(a_replica("x", "starting", overdue=True)) is None
    late = (a_replica("late", "starting", started_s=-500.0), a_replica("x", "starting", started_s=4.0))
    assert due(*late) == 9


def test_a_policys_routing_is_sent_in_seconds() -> None:
    policy = a_policy(
        aliases=["mm"],
        slo={"queueSeconds": 3},
        routing={"queue": {"timeoutSeconds": 7}, "timeouts": {"connectSeconds": 1}},
    )
    (model,) = the_table(policy=policy).models
    assert (model.name, model.aliases, model.slo.queue_s) == ("m", ("mm",), 3)
    assert (model.routing.queue.timeout_s, model.routing.timeouts.connect_s, model.routing.policy) == (
        7,
        1,
        "least-load",
    )
