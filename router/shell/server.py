"""One router process: sockets, dispatcher, data plane, admin side, and the order in which they start and stop.

Start: settings are checked, both ports are bound (a taken one ends the start before anything else happens), the state
folder and the file are read, then the listeners open and one line on stdout says where. A worker (`workers.py`) is
given its sockets, says that it is ready to its parent instead, and opens when it is told to.

| leaves because            | accepts    | admin API   | requests in flight may take   | idle connections are closed |
|---------------------------|------------|-------------|-------------------------------|-----------------------------|
| stop: SIGTERM, SIGINT     | the grace  | stays       | the shutdown time-out         | after the grace             |
| retired: it was replaced  | no longer  | moves       | as long as they take (1 hour) | when idle for 5 s           |
| orphaned: its parent died | no longer  | closes      | the shutdown time-out         | at once                     |

In each case `accepting` turns False (/ready says 503), answers say `connection: close` from then on (`drain.py`), and
the process exits with 0 when no client is connected any more. A second signal cuts the wait short. Side tasks (probes,
readings, the file) may fail without touching requests: they are started again and the failure is logged.
"""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import structlog
import uvloop

from router.core.dispatcher import Dispatcher
from router.core.endpoints import UNKNOWN
from router.errors import RouterError
from router.settings import Settings
from router.shell import drain
from router.shell.access_log import AccessLog, LineWriter
from router.shell.admin import Admin
from router.shell.admin_site import AdminSite, admin_site
from router.shell.control import Line
from router.shell.discovery.static import StaticTable, divided, successor
from router.shell.http import DataPlane
from router.shell.logs import HealthLog, configure_logs
from router.shell.metrics import MetricsPage
from router.shell.probe import Prober
from router.shell.scrape import Scraper
from router.shell.sockets import BACKLOG, address, listening, raise_file_limit
from router.shell.table_store import TableStore

FILES_FEW = 4096
"""Below this many open files the router says so: it is the end at half as many streams."""

GC_THRESHOLD = 50_000
"""Connections make cycles, so collecting stays on, but the default of 700 costs 0.8 us a request."""

IDLE_POLL_S = 0.05
RESTART_S = 1.0
LAST_REQUEST_S = 5.0
"""An idle connection of a replaced worker is kept this long for one more request, which is told to be the last: clients
that send less often must expect a closed connection anyway (httpx drops its own after 5 s)."""

RETIRED_S = 3600.0
"""A replaced worker is cut off then. Requests have bounds of their own, half an hour by default."""

LOOK_ROUND_S = 1.0
"""A worker that takes another's place asks its endpoints for this long whether they are there before it is ready."""

LOG_CLOSE_S = 1.0

Cause = Literal["stop", "retire", "orphan"]

log = structlog.get_logger(part="server")


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises `BadInput` when the start fails."""
    configure_logs(settings.log_level)
    if (files := raise_file_limit()) < FILES_FEW:
        log.warning("few open files allowed", limit=files, streams=files // 2)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings))


async def serve(settings: Settings) -> int:
    """The whole life of the router on the running loop."""
    data = listening(settings.host, settings.port, "--port")
    try:
        admin = listening(settings.admin_host, settings.admin_port, "--admin-port")
    except RouterError:
        data.close()
        raise
    try:
        return await Server(settings, data, admin).run()
    finally:
        data.close()
        admin.close()


class Server:
    """Everything of one router. `data`, `admin`: bound sockets; `parent`: whose worker it is, None = nobody's."""

    def __init__(
        self, settings: Settings, data: socket.socket, admin: socket.socket, parent: Line | None = None
    ) -> None:
        self._settings = settings
        self._parent = parent
        self._cause: Cause = "stop"
        self._bound_s = settings.shutdown_timeout_s
        self._left_at: float | None = None
        self._may_serve = asyncio.Event()
        self._data = data
        self._admin_socket = admin
        self._loop = asyncio.get_running_loop()
        self._signalled = asyncio.Event()
        self._hurried = asyncio.Event()
        self._dispatcher = Dispatcher(
            router=settings.name or f"router-{admin.getsockname()[1]}",
            boot=secrets.token_hex(6),
            random=random.Random(secrets.randbits(128)).random,
            now=self._loop.time(),
        )
        self._plane = DataPlane(self._dispatcher, self._loop)
        self._store = TableStore(settings.state_dir) if settings.state_dir else None
        self._storing = asyncio.Lock()
        self._static = StaticTable(settings.file, self._dispatcher, share=settings.share) if settings.file else None
        self._own_source = settings.table.source if settings.table else None
        self._lines = LineWriter(settings.access_log) if settings.access_log != "off" else None
        self._admin = Admin(
            self._dispatcher,
            metrics=MetricsPage(self._dispatcher, self._plane, self._loop.time).page,
            token=settings.admin_token,
            stored=self._save if self._store else None,
        )

    async def run(self) -> int:
        """Start, serve, stop. Raises `BadInput` when the start fails; then nothing is left open."""
        self._restore()
        self._load_own()
        if self._lines is not None:
            self._lines.open()
            self._plane.access_log = AccessLog(self._lines, self._dispatcher.router, self._loop.time)
        for number in (signal.SIGTERM, *((signal.SIGINT,) if self._parent is None else ())):
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            await self._live()
        finally:
            self._plane.close()
            if self._lines is not None:
                if self._plane.access_log is not None:
                    self._plane.access_log.flush()
                await asyncio.to_thread(self._lines.close, LOG_CLOSE_S)
        async with self._storing:  # whoever sent a table may have left before it was stored
            pass
        log.info("stopped")
        return 0

    async def _live(self) -> None:
        """With the tasks beside the data path: wait until it may serve, and serve."""
        async with asyncio.TaskGroup() as group:
            self._plane.start()
            sides = [group.create_task(kept_running(name, side)) for name, side in self._sides().items()]
            gc.collect()
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            if self._parent is not None:
                sides.append(group.create_task(self._obey(self._parent)))
                await self._wait(self._looked_round, lambda: LOOK_ROUND_S)
                self._parent.say("ready")
                await self._may_serve.wait()
            await self._serve()
            for side in sides:
                side.cancel()

    async def _serve(self) -> None:
        """Open, until it is time to leave and everybody is answered; cancelled, everybody is cut off."""
        async with admin_site(self._admin, self._admin_socket) as site:
            listener = await self._loop.create_server(self._plane.protocol, sock=self._data, backlog=BACKLOG)
            try:
                self._say_ready()
                if self._lines is not None:
                    self._lines.start()
                await self._signalled.wait()
                await self._leave(listener, site)
            finally:
                listener.close()
                self._plane.close()
                self._admin.close()

    def _sides(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Tasks beside the data path."""
        sides: dict[str, Callable[[], Awaitable[None]]] = {
            "probe": Prober(self._dispatcher).run,
            "scrape": Scraper(self._dispatcher).run,
            "health log": HealthLog(self._dispatcher).run,
        }
        if self._static:
            sides["static"] = self._static.watch
        return sides

    def _looked_round(self) -> bool:
        """Is something known of every endpoint that is to serve: until then requests could only wait."""
        unknown = any(each.exists and each.health == UNKNOWN for each in self._dispatcher.endpoints.values())
        return self._signalled.is_set() or not unknown

    def _restore(self) -> None:
        """Start from the tables of the last run, if they are kept. Raises `BadInput` for an unusable folder."""
        if self._store is None:
            return
        self._store.prepare()
        tables, problem = self._store.load()
        if problem:
            log.error("stored tables ignored", problem=problem)
        for table in tables:
            try:
                self._dispatcher.apply(table, self._loop.time())
            except RouterError as error:
                log.error("stored table ignored", source=table.source, problem=str(error))
            else:
                log.info("table restored", source=table.source, epoch=table.epoch, revision=table.revision)

    def _load_own(self) -> None:
        """The file or the flags. Raises `BadInput`."""
        now = self._loop.time()
        if self._static:
            self._static.load(now)
        elif table := self._settings.table:
            held = self._dispatcher.tables().get(table.source)
            self._dispatcher.apply(successor(divided(table, self._settings.share), held), now)

    async def _save(self) -> None:
        """Keep the tables of controllers; what came from a file or from flags is read from there again."""
        assert self._store is not None
        if self._cause == "retire":  # the file is the successor's
            return
        own = self._static.source if self._static else self._own_source
        async with self._storing:
            tables = [table for source, table in self._dispatcher.tables().items() if source != own]
            problem = await asyncio.to_thread(self._store.save, tables)
        if problem:
            log.error("tables not stored", problem=problem)

    def _say_ready(self) -> None:
        data, admin = address(self._data), address(self._admin_socket)
        log.info("listening", data=data, admin=admin, router=self._dispatcher.router, boot=self._dispatcher.boot)
        if self._parent is None:
            print(f"tidegate router ready: data {data} admin {admin}", flush=True)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._parent is None and self._signalled.is_set():
            self._hurried.set()
        log.info("stopping at once" if self._hurried.is_set() else "stopping", signal=number.name)
        self._begin_to_leave("stop")

    async def _obey(self, parent: Line) -> None:
        """Do what the parent says until it is gone, and leave then."""
        while (message := await parent.hear()) is not None:
            if message.what == "go":
                self._admin.predecessors.came(message.urls)
                self._may_serve.set()
            elif message.what == "gone":
                self._admin.predecessors.gone(*message.urls)
            elif message.what == "reload":
                self._on_hangup()
            elif message.what == "retire":
                log.info("retiring")
                self._begin_to_leave("retire")
            elif message.what == "stop":
                log.info("stopping")
                self._begin_to_leave("stop")
            elif message.what == "hurry":
                self._hurried.set()
        log.warning("parent is gone; leaving")
        self._begin_to_leave("orphan")
        await asyncio.Event().wait()

    def _begin_to_leave(self, cause: Cause) -> None:
        """The first cause says how; a later one only shortens the time that is left."""
        now = self._loop.time()
        if self._left_at is None:
            self._cause = cause
            if cause == "retire":
                self._bound_s = RETIRED_S
            self._left_at = now
        elif cause != "retire":
            self._bound_s = min(self._bound_s, now - self._left_at + self._settings.shutdown_timeout_s)
        self._dispatcher.accepting = False
        self._signalled.set()
        self._may_serve.set()

    def _on_hangup(self) -> None:
        if self._static:
            self._static.reload_soon()

    async def _leave(self, listener: asyncio.Server, site: AdminSite) -> None:
        """See the table at the top."""
        drain.announce(self._plane)
        if self._cause == "stop":
            await self._wait(lambda: False, lambda: self._settings.shutdown_grace_s)
        await asyncio.sleep(0)  # what waits to be accepted is, in the loop's next turn
        listener.close()
        if self._cause == "retire":
            await self._hand_over(site)
        elif self._cause == "orphan":
            await site.move(None)
        since = self._plane.tick
        idle_s = LAST_REQUEST_S if self._cause == "retire" else 0.0

        def empty() -> bool:
            drain.close_idle(self._plane, since, idle_s)
            return not self._plane.clients

        await self._wait(empty, lambda: self._bound_s)
        if drain.busy(self._plane):
            cut = {
                endpoint.id: endpoint.in_flight
                for endpoint in self._dispatcher.endpoints.values()
                if endpoint.in_flight
            }
            log.warning("requests cut", in_flight=cut, hurried=self._hurried.is_set())

    async def _hand_over(self, site: AdminSite) -> None:
        """The public admin address is a successor's: serve on a private one, and say which."""
        assert self._parent is not None, "only a worker is replaced"
        private = listening("127.0.0.1", 0, "--admin-port")
        await site.move(private)
        self._parent.say("retired", address(private))

    async def _wait(self, done: Callable[[], bool], bound_s: Callable[[], float]) -> None:
        """Until `done()`, a second signal, or the bound, which may change meanwhile."""
        start = self._loop.time()
        while not done() and not self._hurried.is_set() and (left_s := start + bound_s() - self._loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(IDLE_POLL_S, left_s)):
                    await self._hurried.wait()


async def kept_running(name: str, side: Callable[[], Awaitable[None]], restart_s: float = RESTART_S) -> None:
    """Run a side task for ever: when it fails, say so and start it again after `restart_s`. Only cancelling ends it."""
    while True:
        (outcome,) = await asyncio.gather(side(), return_exceptions=True)
        log.error("side task failed; starting it again", task=name, exc_info=outcome or None)
        await asyncio.sleep(restart_s)
