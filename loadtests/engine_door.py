"""The emulated engine's listening socket, and the faults of connections as such: reset as soon as they are accepted,
closed when they are idle, closed as they are used again, closed or reset in the middle of an answer.

It knows nothing of paths and tokens. Between the kernel and aiohttp stands one function, the protocol factory.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import replace

from loadtests.engine_driver import EngineDriver
from loadtests.errors import BadInput

NO_LINGER = struct.pack("ii", 1, 0)
KNOWN_MAX = 1024


class Resetting(asyncio.Protocol):
    """A connection that is reset at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: accepted."""
        reset(transport)


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Close with RST instead of FIN; what was written and not sent is lost."""
    if transport is None:
        return
    opened = transport.get_extra_info("socket")
    if opened is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    transport.abort()  # type: ignore[attr-defined]  # uvloop's transports have no base in common with asyncio's


class Door:
    """Listens and hands connections to `factory`. `resetting`: new connections are reset from now on."""

    def __init__(self, driver: EngineDriver) -> None:
        self.resetting = False
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.AbstractServer | None = None
        self._answers: dict[asyncio.BaseTransport, int] = {}

    async def open(self, factory: Callable[[], asyncio.BaseProtocol], listener: socket.socket) -> None:
        """Begin to listen. Two that load may hold one port (SO_REUSEADDR): the second learns it only here, by
        `BadInput`.
        """

        def protocol() -> asyncio.BaseProtocol:
            faults = self._driver.faults
            if faults.reset_accept:
                self._driver.obey(replace(faults, reset_accept=faults.reset_accept - 1))
                return Resetting()
            return Resetting() if self.resetting else factory()

        try:
            self._server = await self._loop.create_server(protocol, sock=listener, backlog=1024)
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}") from error

    def close(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def closes(self, transport: asyncio.BaseTransport | None) -> bool:
        """A request begins on this connection: is it to be closed instead of answered (the keep-alive race)."""
        faults = self._driver.faults
        if transport is None or not faults.close_reused or not self._answers.get(transport):
            return False
        self._driver.obey(replace(faults, close_reused=faults.close_reused - 1))
        transport.close()
        return True

    def answered(self, transport: asyncio.BaseTransport | None) -> None:
        """A request on this connection has been answered: from here on it is idle."""
        if transport is None:
            return
        if len(self._answers) > KNOWN_MAX:
            self._answers = {each: count for each, count in self._answers.items() if not each.is_closing()}
        count = self._answers[transport] = self._answers.get(transport, 0) + 1
        if self._driver.faults.idle_close_s:
            self._loop.call_later(self._driver.faults.idle_close_s, self._idle, transport, count)

    def began(self, transport: asyncio.BaseTransport | None) -> None:
        """A request begins: the connection is not idle."""
        if transport is not None and transport in self._answers:
            self._answers[transport] += 1

    def _idle(self, transport: asyncio.BaseTransport, count: int) -> None:
        if self._answers.get(transport) == count:
            transport.close()
