"""Reads what engines say about themselves: requests running, requests waiting, use of the KV cache.

Every `INTERVAL_S` the /metrics of each routable endpoint whose engine is known; only the names needed are parsed.
Absent is not zero: a name that is not on the page, or whose value is NaN, is None. Requests are summed over the ranks
of an engine (data parallel), the KV use is the fullest rank's, because that one stalls first. llama.cpp's /slots is
never asked: it wakes a sleeping engine. Failures end in no reading, so the last one grows old, which the load report
shows; a page without an expected name is said once, because a renamed metric must not look like an idle engine.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import structlog

from router.model import EngineLoad
from router.shell.probe import base_url

INTERVAL_S = 2.0
TIMEOUT_S = 1.5
"""Shorter than the interval, so that one slow engine never has two readings under way."""

PAGE_BYTES_MAX = 1 << 20
"""A vLLM page with all histograms is about 60 KB; whatever is longer than this is not read to its end."""

AT_ONCE_MAX = 16

log = structlog.get_logger(part="scrape")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNames:
    """Metric names of one engine; several = newer first, the first on the page is taken; none = the engine does not
    say."""

    running: tuple[bytes, ...] = ()
    waiting: tuple[bytes, ...] = ()
    kv: tuple[bytes, ...] = ()


NAMES: Mapping[str, EngineNames] = {
    "vllm": EngineNames(
        running=(b"vllm:num_requests_running",),
        waiting=(b"vllm:num_requests_waiting",),
        kv=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    "sglang": EngineNames(
        running=(b"sglang:num_running_reqs",), waiting=(b"sglang:num_queue_reqs",), kv=(b"sglang:token_usage",)
    ),
    "tgi": EngineNames(running=(b"tgi_batch_current_size",), waiting=(b"tgi_queue_size",)),
    "triton": EngineNames(waiting=(b"nv_inference_pending_request_count",)),
    "llamacpp": EngineNames(running=(b"llamacpp:requests_processing",), waiting=(b"llamacpp:requests_deferred",)),
}
"""Engines that are read; any other is not asked."""


def parse_page(page: bytes, names: EngineNames) -> EngineLoad:
    """The needed values of a Prometheus text page."""
    return EngineLoad(
        running=_first(page, names.running, total=True),
        waiting=_first(page, names.waiting, total=True),
        kv=_first(page, names.kv, total=False),
        age_s=0.0,
    )


def missing(load: EngineLoad, names: EngineNames) -> list[str]:
    """Names that the engine should have given and did not."""
    pairs = ((names.running, load.running), (names.waiting, load.waiting), (names.kv, load.kv))
    return [wanted[0].decode() for wanted, value in pairs if wanted and value is None]


def _first(page: bytes, names: tuple[bytes, ...], *, total: bool) -> float | None:
    for name in names:
        values = _values(page, name)
        if values:
            found = sum(values) if total else max(values)
            return found if math.isfinite(found) else None
    return None


def _values(page: bytes, name: bytes) -> list[float]:
    """All samples of exactly this name, whatever their labels. One NaN makes the whole reading NaN: a sum of what is
    left would lie."""
    values = []
    at = page.find(name)
    while at >= 0:
        end = page.find(b"\n", at)
        line = page[at : end if end >= 0 else len(page)]
        at_line_start = at == 0 or page[at - 1 : at] == b"\n"
        rest = line[len(name) :]
        if at_line_start and rest[:1] in (b"{", b" ", b"\t"):
            if rest[:1] == b"{":
                rest = rest[rest.rfind(b"}") + 1 :]  # a label value may hold a brace, a value or time stamp never does
            words = rest.split()
            try:
                values.append(float(words[0]))
            except (IndexError, ValueError):
                values.append(math.nan)
        at = page.find(name, at + len(name))
    if any(math.isnan(value) for value in values):
        return [math.nan]
    return values


class Scraped(Protocol):
    """What a reading needs to know of an endpoint."""

    @property
    def id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def intent(self) -> str: ...
    @property
    def health(self) -> str: ...
    @property
    def starting(self) -> bool: ...


class ReadingSink(Protocol):
    """The dispatcher as far as readings see it."""

    @property
    def endpoints(self) -> Mapping[str, Scraped]: ...

    def engine_read(self, endpoint_id: str, load: EngineLoad, now: float) -> None:
        """One reading, of age 0 now."""


class Scraper:
    """Reads for as long as `run` is not cancelled; closes its session then. `timeout_s`: bound on one reading."""

    def __init__(self, sink: ReadingSink, timeout_s: float = TIMEOUT_S) -> None:
        self._sink = sink
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Never returns; ends when cancelled, with nothing left open."""
        connector = aiohttp.TCPConnector(limit=AT_ONCE_MAX, keepalive_timeout=INTERVAL_S * 2)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                await self.round(session)
                await asyncio.sleep(INTERVAL_S)

    async def round(self, session: aiohttp.ClientSession) -> None:
        """Read every routable endpoint once."""
        endpoints = list(self._sink.endpoints.values())
        for gone in self._said.keys() - self._sink.endpoints.keys():
            del self._said[gone]
        async with asyncio.TaskGroup() as group:
            for endpoint in endpoints:
                routable = endpoint.intent == "active" and endpoint.health in ("ready", "half-open")
                if routable and not endpoint.starting and endpoint.engine in NAMES:
                    group.create_task(self._read(endpoint, session))

    async def _read(self, endpoint: Scraped, session: aiohttp.ClientSession) -> None:
        names = NAMES[endpoint.engine]
        async with self._room:
            page = await fetch(session, base_url(endpoint.host, endpoint.port) + "/metrics", self._timeout_s)
        if isinstance(page, str):
            self._say(endpoint.id, page)
            return
        load = parse_page(page, names)
        absent = missing(load, names)
        self._say(endpoint.id, f"not on the page: {', '.join(absent)}" if absent else "")
        if self._sink.endpoints.get(endpoint.id) is endpoint:
            self._sink.engine_read(endpoint.id, load, asyncio.get_running_loop().time())

    def _say(self, endpoint_id: str, problem: str) -> None:
        """One line per change, none for an engine that always answered."""
        if self._said.get(endpoint_id, "") == problem:
            return
        self._said[endpoint_id] = problem
        if problem:
            log.warning("engine metrics missing", endpoint=endpoint_id, problem=problem)
        else:
            log.info("engine metrics complete again", endpoint=endpoint_id)


async def fetch(session: aiohttp.ClientSession, url: str, timeout_s: float) -> bytes | str:
    """The page, or in words why there is none."""
    try:
        async with asyncio.timeout(timeout_s), session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return f"/metrics answered {response.status}"
            page = bytearray()
            async for chunk in response.content.iter_any():
                page += chunk
                if len(page) > PAGE_BYTES_MAX:
                    response.close()
                    return f"/metrics is longer than {PAGE_BYTES_MAX} bytes"
            return bytes(page)
    except TimeoutError:
        return f"/metrics took longer than {timeout_s:g} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return f"/metrics cannot be read: {type(error).__name__}"
