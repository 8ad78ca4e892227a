"""Reading engine metrics: absent, NaN and zero stay three things; ranks add up; a page is bounded; nothing raises."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from router.model import EngineLoad
from router.shell.scrape import NAMES, PAGE_BYTES_MAX, Scraper, missing, parse_page

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
"""


def read(engine: str, page: bytes) -> tuple[float | None, float | None, float | None]:
    load = parse_page(page, NAMES[engine])
    return load.running, load.waiting, load.kv


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        ("vllm", VLLM, (5.0, 1.0, 0.75)),
        ("vllm", VLLM.replace(b"\n", b"\r\n"), (5.0, 1.0, 0.75)),
        ("vllm", b"vllm:gpu_cache_usage_perc 0.5\n", (None, None, 0.5)),
        ("vllm", b"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25", (None, None, 0.25)),
        ("vllm", b"", (None, None, None)),
        ("vllm", b"<html>vllm:num_requests_running 4</html>", (None, None, None)),
        ("vllm", b"vllm:num_requests_running NaN\n", (None, None, None)),
        ("vllm", b'vllm:num_requests_running{r="0"} NaN\nvllm:num_requests_running{r="1"} 2\n', (None, None, None)),
        ("vllm", b"vllm:num_requests_running +Inf\n", (None, None, None)),
        ("vllm", b"vllm:num_requests_running nonsense\n", (None, None, None)),
        ("vllm", b"vllm:num_requests_running\n", (None, None, None)),
        ("vllm", b'vllm:num_requests_running{model_name="a} 7 {b"} 1 1712345678000\n', (1.0, None, None)),
        ("vllm", b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", (0.0, 0.0, None)),
        ("sglang", b"sglang:num_running_reqs 2\nsglang:num_queue_reqs 5\nsglang:token_usage 0.1\n", (2.0, 5.0, 0.1)),
        ("tgi", b"tgi_batch_current_size 4\ntgi_queue_size 6\n", (4.0, 6.0, None)),
        ("triton", b'nv_inference_pending_request_count{model="m",version="1"} 8\n', (None, 8.0, None)),
        ("llamacpp", b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n", (1.0, 2.0, None)),
    ],
)
def test_a_page_is_read(engine: str, page: bytes, expected: tuple[float | None, ...]) -> None:
    assert read(engine, page) == expected


def test_what_an_engine_never_gives_is_not_missing() -> None:
    assert missing(EngineLoad(waiting=0.0), NAMES["triton"]) == []
    assert missing(EngineLoad(running=1.0), NAMES["vllm"]) == ["vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]


@dataclass
class Known:
    """An endpoint as the scraper sees it."""

    id: str
    port: int
    engine: str = "vllm"
    intent: str = "active"
    health: str = "ready"
    starting: bool = False
    host: str = "127.0.0.1"


@dataclass
class Sink:
    """Takes readings as the dispatcher does."""

    endpoints: dict[str, Known]
    readings: list[tuple[str, EngineLoad]] = field(default_factory=list)

    def engine_read(self, endpoint_id: str, load: EngineLoad, now: float) -> None:
        assert math.isfinite(now)
        self.readings.append((endpoint_id, load))


@asynccontextmanager
async def engine(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """A small server whose /metrics is `handler`; gives its port."""
    application = web.Application()
    application.router.add_get("/metrics", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def one_round(sink: Sink, scraper: Scraper | None = None) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        await (scraper or Scraper(sink)).round(session)


async def test_only_routable_endpoints_of_known_engines_are_read() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=VLLM)

    async with engine(page) as port:
        sink = Sink(
            {
                "a": Known("a", port),
                "b": Known("b", port, health="half-open"),
                "c": Known("c", port, health="ejected"),
                "d": Known("d", port, health="unknown"),
                "e": Known("e", port, intent="standby"),
                "f": Known("f", port, intent="draining"),
                "g": Known("g", port, engine="generic"),
                "h": Known("h", port, starting=True),
            }
        )
        await one_round(sink)
    assert sorted(sink.readings) == [(id_, EngineLoad(running=5.0, waiting=1.0, kv=0.75, age_s=0.0)) for id_ in "ab"]


async def test_failures_are_said_once_and_end_in_no_reading() -> None:
    answers: list[web.Response] = []

    async def page(request: web.Request) -> web.Response:
        return answers.pop(0)

    async with engine(page) as port:
        sink = Sink({"a": Known("a", port)})
        scraper = Scraper(sink)
        with capture_logs() as logs:
            for answer in (
                web.Response(status=500),
                web.Response(status=500),
                web.Response(body=b"x" * (PAGE_BYTES_MAX + 1)),
                web.Response(body=b"vllm:num_requests_running 1\n"),
                web.Response(body=VLLM),
                web.Response(status=302, headers={"location": "/metrics"}),
            ):
                answers.append(answer)
                await one_round(sink, scraper)
    assert [(line["log_level"], line.get("problem")) for line in logs] == [
        ("warning", "/metrics answered 500"),
        ("warning", f"/metrics is longer than {PAGE_BYTES_MAX} bytes"),
        ("warning", "not on the page: vllm:num_requests_waiting, vllm:kv_cache_usage_perc"),
        ("info", None),
        ("warning", "/metrics answered 302"),
    ]
    assert [(load.running, load.waiting) for _, load in sink.readings] == [(1.0, None), (5.0, 1.0)]


async def test_an_endpoint_that_refuses_or_never_answers_costs_nothing_but_its_reading() -> None:
    hanging = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await hanging.wait()
        return web.Response()

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=VLLM)

    async with engine(hang) as slow, engine(page) as good:
        sink = Sink({"slow": Known("slow", slow), "none": Known("none", 1), "good": Known("good", good)})
        await one_round(sink, Scraper(sink, timeout_s=0.2))
        hanging.set()
    assert [id_ for id_, _ in sink.readings] == ["good"]


async def test_a_reading_of_an_endpoint_that_left_meanwhile_is_dropped() -> None:
    sink = Sink({})

    async def page(request: web.Request) -> web.Response:
        sink.endpoints["a"] = Known("a", 1)  # the same id, another replica
        return web.Response(body=VLLM)

    async with engine(page) as port:
        sink.endpoints["a"] = Known("a", port)
        await one_round(sink)
    assert sink.readings == []


async def test_the_running_scraper_ends_when_cancelled_with_nothing_left() -> None:
    asked = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        return web.Response()

    async with engine(hang) as port:
        before = asyncio.all_tasks()
        running = asyncio.create_task(Scraper(Sink({"a": Known("a", port)})).run())
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        left = {task for task in asyncio.all_tasks() - before if task is not running and "Scraper" in repr(task)}
        assert left == set()
