"""The status API over real HTTP, told by real ticks among the fakes."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autoscaler.adapters.processes import Identity
from autoscaler.adapters.runs import Run
from autoscaler.controller.tick import Tick
from autoscaler.controller.web.app import Desk, serve
from autoscaler.errors import BadInput
from tests.autoscaler.controller_fakes import Story
from tests.builders import EPOCH_S, a_policy, at, variant_document


class NoProcess:
    """A process that is none."""

    identity = Identity(pid=1, start_ticks=0, boot_id="")
    exit_code: int | None = None

    async def exited(self) -> None: ...

    def signal_group(self, number: int) -> None: ...


def a_run(name: str, **fields: Any) -> Run:
    defaults: dict[str, Any] = {"started": at(10), "ready": at(20)}
    return Run(
        id=name,
        policy="chat",
        variant="gpu",
        version="v1",
        process=NoProcess(),
        port=1,
        device=None,
        log=Path("log"),
        path="/health",
        standby=False,
        **{**defaults, **fields},
    )


class Facts:
    """What the target would say."""

    runs: tuple[Run, ...] = ()

    def lives(self) -> tuple[Run, ...]:
        return self.runs

    def pids(self) -> dict[str, int]:
        return {"chat-gpu-1": 4711}


class Site:
    """A desk that listens, and a client."""

    def __init__(self) -> None:
        self.facts = Facts()
        policy = a_policy([variant_document(resource={"name": "nvidia.com/mig-3g.40gb", "count": 1})])
        self.story = Story(policy)
        self.desk = Desk([policy], self.facts, lambda: at(self.story.now_s))
        self.base = ""

    async def ticks(self, count: int) -> Tick:
        for _ in range(count):
            tick = await self.story.tick()
            self.desk.tick(tick)
        return tick

    async def get(self, path: str, status: int = 200) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.base + path) as answer:
            assert answer.status == status
            text = await answer.text()
            return json.loads(text) if answer.content_type == "application/json" else text


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    runner, port = await serve(site.desk.application(), "127.0.0.1", 0)
    site.base = f"http://127.0.0.1:{port}"
    yield site
    await runner.cleanup()


async def test_status_before_and_after_the_first_tick(site: Site) -> None:
    assert await site.get("/api/v1/status") == {"epoch_s": EPOCH_S + 100, "policies": []}
    site.story.source.per_s = 15.0
    site.story.forecasts.maximum = 28.0
    tick = await site.ticks(1)
    (row,) = (await site.get("/api/v1/status"))["policies"]
    assert (row["name"], row["model"], row["mode"], row["law"], row["desired"]) == ("chat", "m", "Auto", "tidegate", 3)
    assert row["counts"] == {"ready": 0, "starting": 3, "standby": 0, "draining": 0, "sleeping": 0}
    assert row["load"] == {"arrivals_per_s": 15.0, "demand": 15.0, "service_s": 1.0, "in_flight": 0, "queued": 0}
    forecast = row["forecast"]
    assert (forecast["p50"], forecast["need"], forecast["horizon_s"], forecast["unit"]) == (
        28.0,
        28.0,
        13.0,
        "requests/s",
    )
    assert row["champion"] == "flat"
    assert [step["name"] for step in row["steps"]] == [step.name for step in tick.decision.steps]
    assert row["start_times"] == {"gpu": {"p50_s": 10, "p90_s": 12, "samples": 0}}
    first = row["replicas"][0]
    assert (first["id"], first["state"], first["pid"], first["age_s"], first["eta_s"]) == (
        "chat-gpu-1",
        "starting",
        4711,
        0,
        10,
    )


async def test_what_is_not_known_is_null(site: Site) -> None:
    site.story.source.per_s = None
    await site.ticks(1)
    (row,) = (await site.get("/api/v1/status"))["policies"]
    assert row["load"] | {"service_s": None} == dict.fromkeys(row["load"])
    assert (row["forecast"], row["champion"]) == (None, None)
    assert row["gaps"] == ["no router has reported load yet"]
    metrics = await site.get("/metrics")
    assert "tidegate_demand" not in [line.split("{")[0] for line in metrics.splitlines()]
    assert 'tidegate_load_trusted{policy="chat"} 0.0' in metrics


async def test_replicas_of_the_whole_life(site: Site) -> None:
    gone = a_run("chat-gpu-1", draining=at(40), gone=at(50), exit_code=-15, why="")
    site.facts.runs = (gone, a_run("chat-gpu-2", ready=None))
    first, second = await site.get("/api/v1/replicas")
    assert first == {
        "id": "chat-gpu-1",
        "policy": "chat",
        "variant": "gpu",
        "gpu_share": pytest.approx(3 / 7),
        "started_epoch_s": EPOCH_S + 10,
        "ready_epoch_s": EPOCH_S + 20,
        "draining_epoch_s": EPOCH_S + 40,
        "gone_epoch_s": EPOCH_S + 50,
        "exit": -15,
        "why": "",
    }
    assert [second[key] for key in ("ready_epoch_s", "draining_epoch_s", "gone_epoch_s", "exit")] == [None] * 4


async def test_the_timeline_has_one_row_a_tick(site: Site) -> None:
    site.story.source.per_s = 15.0
    await site.ticks(5)
    rows = await site.get("/api/v1/timeline?after=0")
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["seq"] for row in await site.get("/api/v1/timeline?after=3")] == [4, 5]
    assert (rows[-1]["desired"], rows[-1]["starting"], rows[-1]["arrivals_per_s"], rows[-1]["forecast_p50"]) == (
        2,
        2,
        15.0,
        None,
    )
    assert "not a sequence number" in (await site.get("/api/v1/timeline?after=-1", 400))["error"]["message"]


async def test_metrics_and_health(site: Site) -> None:
    site.story.source.per_s = 15.0
    await site.ticks(2)
    site.desk.failed("chat")
    lines = (await site.get("/metrics")).splitlines()
    assert 'tidegate_desired_replicas{policy="chat"} 2.0' in lines
    assert 'tidegate_replicas{policy="chat",state="starting"} 2.0' in lines
    assert 'tidegate_commands_total{action="start",outcome="done",policy="chat"} 2.0' in lines
    assert 'tidegate_ticks_total{outcome="failed",policy="chat"} 1.0' in lines
    assert await site.get("/health") == {"status": "ok"}


async def test_the_root_names_every_path(site: Site) -> None:
    paths = (await site.get("/"))["paths"]
    assert set(paths) == {"/api/v1/status", "/api/v1/replicas", "/api/v1/timeline", "/metrics", "/health"}
    for path in paths:
        await site.get(path)


async def test_a_port_that_is_taken_is_bad_input() -> None:
    site = Site()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(BadInput, match=f"--web-port {port}: in use by another process"):
            await serve(site.desk.application(), "127.0.0.1", port)
