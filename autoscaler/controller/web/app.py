"""The controller's HTTP API: status, replicas, timeline, metrics, health. Reading only; it changes nothing.

It knows ticks as they are told and what the target remembers of replicas; rows are made when they are asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson
from aiohttp import web

from autoscaler.controller.telemetry import DecisionLog, Metrics
from autoscaler.controller.tick import Tick
from autoscaler.controller.web.rows import Life, Timeline, gpu_shares, life_row, status_row
from autoscaler.errors import BadInput
from autoscaler.model import Now
from autoscaler.policy import ScalingPolicy

PATHS = {
    "/api/v1/status": "each policy's newest decision, load, forecast, replicas and conditions",
    "/api/v1/replicas": "every replica of this controller's life",
    "/api/v1/timeline": "one row a tick; ?after=SEQ gives the newer ones",
    "/metrics": "Prometheus metrics",
    "/health": "200 while the process answers",
}


class Facts(Protocol):
    """What is asked beside the ticks."""

    def lives(self) -> Sequence[Life]:
        """Every replica of this controller's life."""

    def pids(self) -> Mapping[str, int]:
        """Process of each replica that runs."""


class Desk:
    """Keeps the newest tick of each policy and answers from it."""

    def __init__(self, policies: Sequence[ScalingPolicy], facts: Facts, clock: Callable[[], Now]) -> None:
        self.metrics = Metrics()
        self._policies = tuple(policies)
        self._facts = facts
        self._clock = clock
        self._log = DecisionLog()
        self._timeline = Timeline()
        self._ticks: dict[str, Tick] = {}

    def tick(self, tick: Tick) -> None:
        """Take one tick in, tell it everywhere."""
        self._ticks[tick.policy.key] = tick
        for teller in (self._log, self.metrics, self._timeline):
            teller(tick)

    def failed(self, policy: str) -> None:
        """A tick that ended in an error."""
        self.metrics.failed(policy)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/v1/status", self._status)
        app.router.add_get("/api/v1/replicas", self._replicas)
        app.router.add_get("/api/v1/timeline", self._rows)
        return app

    async def _index(self, request: web.Request) -> web.Response:
        return _json({"paths": PATHS})

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.text(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _status(self, request: web.Request) -> web.Response:
        pids = self._facts.pids()
        rows = [status_row(tick, pids) for tick in self._ticks.values()]
        return _json({"epoch_s": self._clock().epoch_s, "policies": rows})

    async def _replicas(self, request: web.Request) -> web.Response:
        shares = gpu_shares(self._policies)
        return _json([life_row(life, shares) for life in self._facts.lives()])

    async def _rows(self, request: web.Request) -> web.Response:
        text = request.query.get("after", "0")
        if not (text.isascii() and text.isdigit()):
            return _json({"error": {"message": f"after: {text!r} is not a sequence number; allowed is 0 or more"}}, 400)
        return _json(self._timeline.after(int(text)))


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; gives the runner (to clean up) and the port taken. Raises `BadInput` when the port cannot be had."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "in use by another process" if in_use else str(error)
        raise BadInput(f"--web-port {port}: {why}; allowed is a free port, or 0 for any") from error
    address: Any = runner.addresses[0]
    return runner, int(address[1])


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, headers={"content-type": "application/json"})
