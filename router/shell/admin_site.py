"""The admin application on its sockets: served on the public one, and moved to a private one when a successor takes
the public one over (`workers.py`).

With the move, connections that came by the public address are closed when their answer is written, at once when they
are idle, and answered with 503 if a request comes on one all the same: whoever holds one comes back on a new
connection, which the successor takes.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from router.shell.admin import Admin
from router.shell.sockets import BACKLOG


class AdminSite:
    """Where the admin application is served. Made by `admin_site`."""

    def __init__(self, admin: Admin, runner: web.AppRunner, listener: socket.socket) -> None:
        self._admin = admin
        self._runner = runner
        self._site = web.SockSite(runner, listener, backlog=BACKLOG)

    async def start(self) -> None:
        """Begin to serve."""
        await self._site.start()

    async def move(self, listener: socket.socket | None) -> None:
        """Serve on `listener` alone from now on; None = take no further connection."""
        public, self._site = self._site, None  # type: ignore[assignment]  # set again, or never asked for any more
        await public.stop()
        assert self._runner.server is not None, "moved before it was started"
        for connection in self._runner.server.connections:
            if connection.transport is not None and connection.transport not in self._admin.at_work:
                connection.transport.close()
        if listener is not None:
            self._admin.serve_only(listener.getsockname())
            self._site = web.SockSite(self._runner, listener, backlog=BACKLOG)
            await self._site.start()
        self._admin.wakes.wake()


@asynccontextmanager
async def admin_site(admin: Admin, listener: socket.socket) -> AsyncIterator[AdminSite]:
    """The admin application on a bound socket; handlers of clients that leave are cancelled."""
    runner = web.AppRunner(admin.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = AdminSite(admin, runner, listener)
        await site.start()
        yield site
    finally:
        admin.close()
        await runner.cleanup()
