"""A connection to an engine as such: made, given a request, paused and resumed for a slow client, dropped.

What comes back on it is read by `Upstream`, which derives from this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from router.core.endpoints import Endpoint
from router.shell.exchange import Exchange

if TYPE_CHECKING:
    from router.shell.http import DataPlane

IDLE, CONNECTING, HEAD, FIRST_EVENT, EVENTS, CHUNKED, COUNTED, UNTIL_END, UNCHUNK = range(9)
"""What a connection waits for. Those from FIRST_EVENT on are bodies of answers: an event stream before and after its
first event, other chunks, a known length, whatever comes until the end, and chunks for a client of HTTP/1.0.
"""
JOIN_MAX: Final = 64 << 10
"""Head and body are joined for one write up to this size; above, `writelines` saves the copy."""


class EngineConnection(asyncio.Protocol):
    """`stamp`: tick of the last byte · `dead`: not to be used again · `paused`: reading waits for the client ·
    `connecting`: the task that connects, while it does.
    """

    __slots__ = (
        "_interim_of",
        "_interims",
        "_part",
        "_used",
        "_write",
        "connecting",
        "dead",
        "endpoint",
        "exchange",
        "paused",
        "plane",
        "stamp",
        "state",
        "transport",
    )

    _write: Callable[[bytes], None]

    def __init__(self, plane: DataPlane, endpoint: Endpoint, exchange: Exchange) -> None:
        self.plane = plane
        self.endpoint = endpoint
        self.exchange: Exchange | None = exchange
        self.transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.state = CONNECTING
        self.stamp = plane.tick
        self.dead = False
        self.paused = False
        self._used = 0
        self._interim_of: Exchange | None = None
        self._interims = 0
        self._part = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected. The client may have left meanwhile."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's transports have no base in common
        self.plane.counters.engine_connections += 1
        connecting, self.connecting = self.connecting, None
        if self.exchange is None:
            self.drop()
            return
        try:
            self.start(self.exchange)
        except Exception as error:  # uvloop would tell neither the task that connects nor `connection_lost`
            self.connection_lost(error)
            transport.close()
            if connecting is not None:
                connecting.cancel()
            raise

    def start(self, exchange: Exchange) -> None:
        """Send a request on this connection, fresh or from the pool."""
        self.exchange = exchange
        exchange.upstream = self  # type: ignore[assignment]  # only Upstreams are made
        self.state = HEAD
        self.stamp = self.plane.tick
        self._used += 1
        client = exchange.client
        self._write = client.write
        transport = self.transport
        assert transport is not None, "started before it was connected"
        head, body = exchange.message(self.endpoint)
        if not body:
            transport.write(head)
        elif len(body) <= JOIN_MAX:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if client.stalled is not None:
            self.pause()

    def drop(self) -> None:
        """Close at once; what was written and not sent is lost. The engine sees it and stops its work."""
        self.dead = True
        self.exchange = None
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """The client reads too slowly."""
        if self.transport is not None and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        if self.transport is not None and self.paused:
            self.paused = False
            self.stamp = self.plane.tick
            self.transport.resume_reading()
