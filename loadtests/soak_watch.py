"""What the routers say of themselves while the soak runs, and whether that can be true: gauges, limits, counters, memory.

Every `EVERY_S` it reads both load reports and metrics pages, memory and open files, and files what must never be: a
negative gauge, more in flight at an endpoint than this router's share, counters that fall, a bug counted. `settled`
waits for the end: all gauges 0, and engine connections closed again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtests.soak_plan import SLOTS
from loadtests.soak_requests import MODEL

EVERY_S: Final = 1.0
ANSWER_S: Final = 15.0
SETTLE_S: Final = 30.0
FILES_SPARE: Final = SLOTS + 4
"""Open files more than before the load that are no leak: a connection to each engine for its readings, those of probes and
of the soak itself.
"""

_SAMPLE = re.compile(r"^tidegate_router_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
GAUGES: Final = ("requests_in_flight", "requests_queued", "queue_bytes", "endpoint_in_flight", "body_bytes")
_PAGE_KIB: Final = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One router at one moment. `totals`: samples of its metrics page by name, summed over labels."""

    at_s: float
    begun: int
    rss_kib: int
    files: int
    in_flight: int
    queued: int
    totals: dict[str, float]


class Watch:
    """One router seen from outside. `begun` tells how many requests have begun."""

    def __init__(
        self, name: str, admin: str, pid: int, session: aiohttp.ClientSession, problem: Callable[[str], None]
    ) -> None:
        self.name = name
        self.boot = ""
        self.samples: list[Sample] = []
        self._admin = admin
        self._pid = pid
        self._session = session
        self._problem = problem
        self._highest: Counter[str] = Counter()

    async def run(self, begun: Callable[[], int]) -> None:
        """Look until cancelled."""
        while True:
            await self.look(begun())
            await asyncio.sleep(EVERY_S)

    async def look(self, begun: int) -> Sample:
        """Look once."""
        report = await self._read("/admin/v1/load")
        page = await self._read("/metrics")
        totals: defaultdict[str, float] = defaultdict(float)
        if isinstance(report, dict):
            self.boot = self.boot or str(report["boot"])
            self._check_report(report)
        if isinstance(page, str):
            for name, labels, value in _SAMPLE.findall(page):
                totals[name] += float(value)
                if 'model=""' in labels:
                    totals[f"{name} without a model"] += float(value)
            self._check_totals(totals)
        model = report["models"].get(MODEL, {}) if isinstance(report, dict) else {}
        sample = Sample(
            at_s=asyncio.get_running_loop().time(),
            begun=begun,
            rss_kib=rss_kib(self._pid),
            files=open_files(self._pid),
            in_flight=model.get("in_flight", 0),
            queued=model.get("queued", 0),
            totals=dict(totals),
        )
        self.samples.append(sample)
        return sample

    async def all_ready(self, count: int) -> bool:
        """Does the router have `count` endpoints and call all of them ready."""
        report = await self._read("/admin/v1/load")
        if not isinstance(report, dict):
            return False
        healths = [endpoint["health"] for endpoint in report["endpoints"].values()]
        return len(healths) == count and set(healths) == {"ready"}

    async def settled(self, files_before: int) -> Sample:
        """Wait until every gauge is 0 and the connections are closed; files a problem for what is not so in time."""
        sample = await self.look(-1)
        try:
            async with asyncio.timeout(SETTLE_S):
                while self._unsettled(sample, files_before):
                    await asyncio.sleep(EVERY_S / 2)
                    sample = await self.look(-1)
        except TimeoutError:
            for what in self._unsettled(sample, files_before):
                self._problem(f"{self.name}: {SETTLE_S:g} s after the last request {what}")
        return sample

    def _unsettled(self, sample: Sample, files_before: int) -> list[str]:
        found = [f"{name} is {sample.totals.get(name)}" for name in GAUGES if sample.totals.get(name) != 0]
        found += [f"{name} {value} in the load report" for name, value in _gauges(sample) if value]
        if sample.files > files_before + FILES_SPARE:
            found.append(f"{sample.files} files are open, {files_before} were before")
        return found

    def _check_report(self, report: dict[str, Any]) -> None:
        if report["boot"] != self.boot:
            self._problem(f"{self.name} has restarted: boot {report['boot']}, it was {self.boot}")
        for id_, endpoint in report["endpoints"].items():
            in_flight, limit = endpoint["in_flight"], endpoint["limit"]
            if in_flight < 0:
                self._problem(f"{self.name}: {in_flight} in flight at {id_}")
            self._over(f"{self.name} {id_}", in_flight, limit)
        for name, model in report["models"].items():
            for gauge in ("in_flight", "queued", "queued_tokens", "oldest_s"):
                if model[gauge] < 0:
                    self._problem(f"{self.name}: {gauge} of {name} is {model[gauge]}")

    def _over(self, where: str, in_flight: int, limit: int) -> None:
        """Above the limit only what was sent before the limit fell, so it may never grow there."""
        if in_flight > limit and in_flight > max(self._highest[where], limit):
            self._problem(f"{where}: {in_flight} in flight, this router's share of the limit is {limit}")
        self._highest[where] = in_flight if in_flight > limit else limit

    def _check_totals(self, totals: dict[str, float]) -> None:
        for gauge in GAUGES:
            if totals.get(gauge, 0.0) < 0:
                self._problem(f"{self.name}: {gauge} is {totals[gauge]}")
        if totals.get("bugs_total", 0.0) > self._highest["bugs"]:
            self._problem(f"{self.name}: tidegate_router_bugs_total is {totals['bugs_total']:g}")
        self._highest["bugs"] = int(totals.get("bugs_total", 0.0))
        for name in ("requests_total", "client_connections_total"):
            if totals.get(name, 0.0) < self._highest[name]:
                self._problem(f"{self.name}: {name} fell from {self._highest[name]} to {totals.get(name)}")
            self._highest[name] = int(totals.get(name, 0.0))

    async def _read(self, path: str) -> Any:
        """JSON as a value, a page as text; None (and a problem) when there is no answer."""
        try:
            async with asyncio.timeout(ANSWER_S), self._session.get(self._admin + path) as answer:
                if answer.status != 200:
                    self._problem(f"{self.name}: GET {path} answers {answer.status}")
                    return None
                return await answer.json() if answer.content_type == "application/json" else await answer.text()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._problem(f"{self.name}: GET {path}: {error!r}")
            return None


def _gauges(sample: Sample) -> tuple[tuple[str, int], ...]:
    return (("in_flight", sample.in_flight), ("queued", sample.queued))


def rss_kib(pid: int) -> int:
    """Resident memory of a process in KiB; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB
    except (OSError, IndexError):
        return 0


def open_files(pid: int) -> int:
    """How many files a process has open; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
