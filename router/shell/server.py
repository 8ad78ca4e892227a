"""One router process: sockets, dispatcher, data plane, admin side, and the order in which they start and stop.

Start: settings are checked, both ports are bound (a taken one ends the start before anything else happens), the state
folder and the file are read, then the listeners open and one line on stdout says where. Stop (SIGTERM or SIGINT):
`accepting` turns False, so /ready says 503 while requests are still served; after the grace the listener closes,
requests in flight and queued end, then idle connections are closed and the process exits with 0. A second signal cuts
the wait short. Side tasks (probes, readings, the file) may fail without touching requests: they are started again and
the failure is logged.
"""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog
import uvloop
from aiohttp import web

from router.core.dispatcher import Dispatcher
from router.errors import RouterError
from router.settings import Settings
from router.shell.admin import Admin
from router.shell.discovery.static import StaticTable, successor
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
    """Everything of one router. `data`, `admin`: bound sockets."""

    def __init__(self, settings: Settings, data: socket.socket, admin: socket.socket) -> None:
        self._settings = settings
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
        self._static = StaticTable(settings.file, self._dispatcher) if settings.file else None
        self._own_source = settings.table.source if settings.table else None

    async def run(self) -> int:
        """Start, serve, stop. Raises `BadInput` when the start fails; then nothing is left open."""
        self._restore()
        self._load_own()
        metrics = MetricsPage(self._dispatcher, self._plane, self._loop.time)
        admin = Admin(
            self._dispatcher,
            metrics=metrics.page,
            token=self._settings.admin_token,
            stored=self._save if self._store else None,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        async with admin_site(admin, self._admin_socket), asyncio.TaskGroup() as group:
            self._plane.start()
            listener = await self._loop.create_server(self._plane.protocol, sock=self._data, backlog=BACKLOG)
            sides = [group.create_task(kept_running(name, side)) for name, side in self._sides().items()]
            gc.collect()
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            self._say_ready()
            await self._signalled.wait()
            await self._drain(listener)
            self._plane.close()
            admin.close()
            for side in sides:
                side.cancel()
        log.info("stopped")
        return 0

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
            self._dispatcher.apply(successor(table, held), now)

    async def _save(self) -> None:
        """Keep the tables of controllers; what came from a file or from flags is read from there again."""
        assert self._store is not None
        own = self._static.source if self._static else self._own_source
        async with self._storing:
            tables = [table for source, table in self._dispatcher.tables().items() if source != own]
            problem = await asyncio.to_thread(self._store.save, tables)
        if problem:
            log.error("tables not stored", problem=problem)

    def _say_ready(self) -> None:
        data, admin = address(self._data), address(self._admin_socket)
        log.info("listening", data=data, admin=admin, router=self._dispatcher.router, boot=self._dispatcher.boot)
        print(f"tidegate router ready: data {data} admin {admin}", flush=True)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signalled.is_set():
            self._hurried.set()
        self._signalled.set()
        self._dispatcher.accepting = False
        log.info("stopping at once" if self._hurried.is_set() else "stopping", signal=number.name)

    def _on_hangup(self) -> None:
        if self._static:
            self._static.reload_soon()

    async def _drain(self, listener: asyncio.Server) -> None:
        """Grace, then no new connections, then until idle or out of time."""
        await self._wait(lambda: False, self._settings.shutdown_grace_s)
        listener.close()
        await self._wait(lambda: self._plane.idle, self._settings.shutdown_timeout_s)
        if not self._plane.idle:
            cut = {
                endpoint.id: endpoint.in_flight
                for endpoint in self._dispatcher.endpoints.values()
                if endpoint.in_flight
            }
            log.warning("requests cut", in_flight=cut, hurried=self._hurried.is_set())

    async def _wait(self, done: Callable[[], bool], bound_s: float) -> None:
        """Until `done()`, a second signal, or the bound."""
        deadline = self._loop.time() + bound_s
        while not done() and not self._hurried.is_set() and (left_s := deadline - self._loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(IDLE_POLL_S, left_s)):
                    await self._hurried.wait()


async def kept_running(name: str, side: Callable[[], Awaitable[None]], restart_s: float = RESTART_S) -> None:
    """Run a side task for ever: when it fails, say so and start it again after `restart_s`. Only cancelling ends it."""
    while True:
        (outcome,) = await asyncio.gather(side(), return_exceptions=True)
        log.error("side task failed; starting it again", task=name, exc_info=outcome or None)
        await asyncio.sleep(restart_s)


@asynccontextmanager
async def admin_site(admin: Admin, listener: socket.socket) -> AsyncIterator[None]:
    """The admin application on a bound socket; handlers of clients that leave are cancelled."""
    runner = web.AppRunner(admin.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        yield
    finally:
        admin.close()
        await runner.cleanup()
