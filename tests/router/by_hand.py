"""A data plane without sockets: a transport that only records, for moments that real sockets cannot be made to hit."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from router.core.dispatcher import Dispatcher
from router.model import table_from
from router.shell.client import Client
from router.shell.connection import IDLE
from router.shell.http import DataPlane, Limits
from router.shell.upstream import Upstream


class Hand:
    """A transport held in one's hand: what was done to it, in order; its end comes when the test says so."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.sent = b""
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return bool({"close", "abort"}.intersection(self.done))

    def pause_reading(self) -> None:
        self.done.append("pause reading")

    def write_eof(self) -> None:
        self.done.append("eof")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        self.done.append(type(protocol).__name__)

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name == "peername" else None


def plane(limits: Limits | None = None) -> DataPlane:
    """On the running loop, with the model "m" and no endpoint: a request for it waits. The timer is beaten by hand."""
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(router="r", boot="b", random=random.Random(1).random, now=loop.time())
    dispatcher.apply(table_from({"source": "t", "models": [{"name": "m"}]}), loop.time())
    return DataPlane(dispatcher, loop, limits)


def client(of: DataPlane) -> tuple[Client, Hand]:
    """A connection to it."""
    transport: Any = Hand()
    made = Client(of)
    made.connection_made(transport)
    return made, transport


def beats(of: DataPlane, count: int) -> None:
    """Let the timer fire this often."""
    for _ in range(count):
        of.driver.beat()


def engine(of: DataPlane) -> tuple[Upstream, Hand]:
    """An idle connection to the one endpoint of the model "m", as if it had served before; it is the next to be used."""
    now = of.loop.time()
    row = {"id": "e0", "url": "http://127.0.0.1:1", "model": "m", "limit": 100}
    table = {"source": "t", "revision": 1, "models": [{"name": "m"}], "endpoints": [row]}
    of.dispatcher.apply(table_from(table), now)
    of.dispatcher.probed("e0", True, now)
    endpoint = of.dispatcher.endpoints["e0"]
    endpoint.failures, endpoint.paused_until = 0, 0.0
    transport: Any = Hand()
    nobody: Any = None
    made = Upstream(of, endpoint, nobody)
    made.state, made.transport, made._used = IDLE, transport, 1
    if endpoint.pool is None:
        endpoint.pool = deque()
        of.pooled.add(endpoint)
    endpoint.pool.append(made)
    return made, transport
