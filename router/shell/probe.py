"""Active probes: is an endpoint ready of which nothing is known yet, and is one still there that was ejected or has
failed?

Endpoints with unknown health are asked so that traffic can begin, ejected ones so that no request is risked on one that
is still down, ready ones while their last request failed, so that a death is noticed without further requests. Other
ready ones are left alone: their health follows from requests (an engine that hangs still answers /health, and a busy
one may answer it late). Engines with a known health path are asked for it, others only whether they take a connection.
Endpoints that the source calls `starting` are its own to look after. What became of a probe goes to the dispatcher,
which alone decides what it means; nothing here raises for an endpoint that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

import aiohttp

from router.shell.descriptors import is_our_want

INTERVAL_S = 0.25
"""Between two probes of one endpoint. A small engine loads in 0.1 s, so a slower pace would be seen in its start
time."""

LATE_INTERVAL_S = 1.0
"""The pace for ejected endpoints, and for unknown ones after `EAGER_S`: those have no controller that says `starting`,
or are gone."""

EAGER_S = 30.0
TIMEOUT_S = 1.0
AT_ONCE_MAX = 32
"""Probes in flight. 32 that all hang for a second still ask 1,000 endpoints in half a minute."""

HEALTH_PATHS = {
    "vllm": "/health",
    "sglang": "/health",
    "tgi": "/health",
    "llamacpp": "/health",
    "triton": "/v2/health/ready",
}
"""Where an engine says that it is ready; any other engine is probed by a connection alone."""


class Probed(Protocol):
    """What a probe needs to know of an endpoint."""

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
    @property
    def failures(self) -> int: ...


class ProbeSink(Protocol):
    """The dispatcher as far as probes see it."""

    @property
    def endpoints(self) -> Mapping[str, Probed]: ...

    def probed(self, endpoint_id: str, ok: bool, now: float) -> None:
        """The result of one probe."""


def base_url(host: str, port: int) -> str:
    """`http://HOST:PORT`, brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def in_doubt(endpoint: Probed) -> bool:
    """Whether a probe of it would say anything new."""
    if endpoint.starting or endpoint.intent == "absent":
        return False
    return endpoint.health in ("unknown", "ejected") or (endpoint.health == "ready" and endpoint.failures > 0)


def due(endpoints: Iterable[Probed], since: dict[str, float], last: dict[str, float], now: float) -> list[Probed]:
    """The endpoints to probe now. `since`: first seen in doubt, `last`: last probed; both are kept up to date and
    forget the rest."""
    doubtful = [endpoint for endpoint in endpoints if in_doubt(endpoint)]
    ids = {endpoint.id for endpoint in doubtful}
    for known in (since, last):
        for gone in [id_ for id_ in known if id_ not in ids]:
            del known[gone]
    found = []
    for endpoint in doubtful:
        eager = now - since.setdefault(endpoint.id, now) < EAGER_S and endpoint.health != "ejected"
        interval_s = INTERVAL_S if eager else LATE_INTERVAL_S
        if endpoint.id not in last or now - last[endpoint.id] >= interval_s:
            last[endpoint.id] = now
            found.append(endpoint)
    return found


class Prober:
    """Probes for as long as `run` is not cancelled; closes its session then. `timeout_s`: bound on one probe."""

    def __init__(self, sink: ProbeSink, timeout_s: float = TIMEOUT_S) -> None:
        self._sink = sink
        self._timeout_s = timeout_s
        self._since: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._running: set[str] = set()
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def run(self) -> None:
        """Never returns; ends when cancelled, with no probe and no connection left."""
        connector = aiohttp.TCPConnector(limit=AT_ONCE_MAX, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
            while True:
                self.start_due(group, session)
                await asyncio.sleep(INTERVAL_S / 2)

    def start_due(self, group: asyncio.TaskGroup, session: aiohttp.ClientSession) -> None:
        """One round: a task for each endpoint that is due and not being probed."""
        now = asyncio.get_running_loop().time()
        for endpoint in due(self._sink.endpoints.values(), self._since, self._last, now):
            if endpoint.id not in self._running:
                self._running.add(endpoint.id)
                group.create_task(self._probe(endpoint, session))

    async def _probe(self, endpoint: Probed, session: aiohttp.ClientSession) -> None:
        try:
            async with self._room:
                ok = await answers(session, endpoint, self._timeout_s)
        finally:
            self._running.discard(endpoint.id)
        if (
            ok is not None and self._sink.endpoints.get(endpoint.id) is endpoint
        ):  # it may have left the table, or come back as another
            self._sink.probed(endpoint.id, ok, asyncio.get_running_loop().time())


async def answers(session: aiohttp.ClientSession, endpoint: Probed, timeout_s: float = TIMEOUT_S) -> bool | None:
    """Whether the endpoint says that it is ready, within `timeout_s`; None = it could not be asked for want of a file
    descriptor or the like, which says nothing about it.
    """
    path = HEALTH_PATHS.get(endpoint.engine)
    try:
        async with asyncio.timeout(timeout_s):
            if path is None:
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
                writer.transport.abort()  # nothing was sent, so nothing needs to be flushed
                return True
            url = base_url(endpoint.host, endpoint.port) + path
            async with session.get(url, allow_redirects=False) as response:
                return response.status == 200
    except TimeoutError:  # an OSError too
        return False
    except OSError as error:
        return None if is_our_want(error) else False
    except (aiohttp.ClientError, ValueError):
        return False  # ValueError: a name that cannot be encoded for DNS
