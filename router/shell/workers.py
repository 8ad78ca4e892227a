"""`--workers N`: a parent that owns the listening sockets and keeps N router processes on them.

All workers accept from one data socket, which only the parent binds and nobody closes before the end: when a worker
dies or is replaced, connections wait in the one accept queue for the others and are neither refused nor reset. (With a
socket for each worker, SO_REUSEPORT, closing one resets what waits in its queue.) Each worker has an admin socket of its
own, also the parent's, and a folder for its tables, so that whoever follows it starts from them. Workers are started as
new programs, not forked.

| signal to the parent | does                                                                                   |
|----------------------|----------------------------------------------------------------------------------------|
| SIGTERM, SIGINT      | all workers stop as a single router does; exit code 0; a second one does not wait      |
| SIGHUP               | all workers read their file again                                                      |
| SIGUSR2              | replaces the workers one after the other by new ones, for instance after an upgrade    |

A replacement: the new worker starts and reads its tables; the old one stops accepting, moves its admin API to a private
port and finishes its streams for as long as they take; the new one serves. Only the step between is short: streams of
old workers may outlast it, and the next worker's turn does not wait for them. A worker that dies is started again after
a pause that doubles while it keeps dying. Workers whose parent is killed leave by themselves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog

import router
from router.errors import BadInput, RouterError
from router.settings import Settings
from router.shell.access_log import LineWriter
from router.shell.control import Line
from router.shell.discovery.static import read_table
from router.shell.logs import configure_logs
from router.shell.sockets import address, listening
from router.shell.table_store import TableStore

START_BOUND_S = 60.0
"""A worker that is not ready by then is ended; one on two slow shared cores takes about 2 s."""
LIVED_S = 10.0
"""A worker that lived for this long did not fail at its start: the pause before the next one begins anew."""
PAUSE_S, PAUSE_MAX_S = 0.2, 10.0
KILL_AFTER_S = 10.0
"""Beyond the time that a worker may take to stop."""
RETIRE_S = 10.0
"""An old worker says within moments that it accepts nothing more; one that does not is stuck, and is killed."""

log = structlog.get_logger(part="workers")


class WorkerFailed(RouterError):
    """A worker did not become ready; `args` say why."""


class Worker:
    """One worker process. `url`: its private admin address once it is retired."""

    def __init__(self, process: asyncio.subprocess.Process, line: Line, started_at: float) -> None:
        self.process = process
        self.line = line
        self.started_at = started_at
        self.url: str | None = None
        self.lived_s = 0.0
        self.ended = asyncio.Event()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with suppress(ProcessLookupError):
            if not self.ended.is_set():
                self.process.kill()

    async def said(self, wanted: str, bound_s: float) -> tuple[str, ...]:
        """Wait until it says `wanted`; gives the addresses that came along. Raises `WorkerFailed`."""
        try:
            async with asyncio.timeout(bound_s):
                message = await self.line.hear()
        except TimeoutError:
            raise WorkerFailed(f"a worker said nothing for {bound_s:g} s") from None
        if message is None:
            raise WorkerFailed("a worker ended at its start")
        if message.what == "failed":
            raise BadInput(message.why)
        assert message.what == wanted, message
        return message.urls


class Slot:
    """One of the N places: its admin socket, the worker in it and those before it that still finish."""

    def __init__(self, index: int, admin: socket.socket, settings: Settings) -> None:
        self.index = index
        self.admin = admin
        self.settings = settings
        self.current: Worker | None = None
        self.predecessors: list[Worker] = []
        self.vacant = asyncio.Event()
        self.lock = asyncio.Lock()

    def serve(self, worker: Worker) -> None:
        """This worker is in the place now."""
        self.current = worker
        if worker.ended.is_set():
            self.vacant.set()
        worker.line.say("go", *[before.url for before in self.predecessors if before.url])


class Parent:
    """Keeps workers on `data`, one for each of `slots`."""

    def __init__(self, settings: Settings, data: socket.socket, slots: Sequence[Slot]) -> None:
        self._settings = settings
        self._data = data
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._alive: set[Worker] = set()
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._replace = asyncio.Event()
        self._group: asyncio.TaskGroup

    async def run(self) -> int:
        """Start, keep, stop. Raises `RouterError` when the first workers cannot start."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._loop.add_signal_handler(signal.SIGUSR2, self._replace.set)
        failure: RouterError | None = None
        try:
            async with asyncio.TaskGroup() as self._group:
                try:
                    await self._first()
                except RouterError as error:
                    if not self._stopping.is_set():
                        failure = error
                    self._on_stop(None)
                    self._on_stop(None)
                keepers = [self._group.create_task(self._keep(slot)) for slot in self._slots]
                keepers.append(self._group.create_task(self._replacements()))
                await self._stopping.wait()
                for keeper in keepers:
                    keeper.cancel()
                self._data.close()
                await self._end()
        finally:
            for worker in tuple(self._alive):  # cut short, by a bug say: nobody would watch them any more
                worker.kill()
                worker.line.close()
        if failure is not None:
            raise failure
        log.info("stopped")
        return 0

    async def _first(self) -> None:
        """Start all, and let them serve together. Raises `RouterError`."""
        started = await asyncio.gather(*(self._start(slot) for slot in self._slots), return_exceptions=True)
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        if self._stopping.is_set():
            return
        data, admins = address(self._data), ",".join(address(slot.admin) for slot in self._slots)
        log.info("listening", data=data, admin=admins, workers=len(self._slots))
        print(f"tidegate router ready: data {data} admin {admins}", flush=True)
        for slot, worker in zip(self._slots, started, strict=True):
            assert isinstance(worker, Worker)
            slot.serve(worker)

    async def _start(self, slot: Slot) -> Worker:
        """A new worker for a slot that has read its tables and waits. Raises `RouterError`; then it is ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            line = await Line.over(ours)  # first: between its start and its watch nothing may be waited for
            descriptors = (theirs.fileno(), self._data.fileno(), slot.admin.fileno())
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "router.shell.worker", *map(str, descriptors)),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=descriptors,
                    env=environment(),
                )
            except BaseException as error:
                line.close()
                if isinstance(error, OSError):  # no process, memory or file descriptor left: there may be one later
                    raise WorkerFailed(f"a worker process cannot be made: {error}") from error
                raise
        worker = Worker(process, line, self._loop.time())
        self._alive.add(worker)
        self._group.create_task(self._watch(slot, worker))
        worker.line.say_settings(slot.settings)
        if self._stopping.is_set():
            worker.line.say("stop")
        try:
            await worker.said("ready", START_BOUND_S)
        except BaseException:  # a cancellation too: nobody would tell it to serve
            worker.kill()
            raise
        return worker

    async def _watch(self, slot: Slot, worker: Worker) -> None:
        """Notice its end."""
        code = await worker.process.wait()
        worker.lived_s = self._loop.time() - worker.started_at
        worker.ended.set()
        worker.line.close()
        self._alive.discard(worker)
        tell = log.info if code == 0 else log.warning
        tell("worker ended", worker=slot.index, pid=worker.process.pid, code=code)
        if worker is slot.current:
            slot.vacant.set()
        if worker in slot.predecessors:
            slot.predecessors.remove(worker)
            if slot.current is not None and worker.url is not None:
                slot.current.line.say("gone", worker.url)

    async def _keep(self, slot: Slot) -> None:
        """Fill the place again whenever its worker has died."""
        pause_s = PAUSE_S
        while True:
            await slot.vacant.wait()
            slot.vacant.clear()
            if slot.current is not None and slot.current.lived_s > LIVED_S:
                pause_s = PAUSE_S
            while slot.current is None or slot.current.ended.is_set():
                log.warning("worker is started again", worker=slot.index, pause_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                async with slot.lock:
                    if slot.current is None or slot.current.ended.is_set():  # else it was replaced meanwhile
                        await self._fill(slot)

    async def _fill(self, slot: Slot) -> None:
        """Try once to start a worker in an empty place."""
        try:
            worker = await self._start(slot)
        except RouterError as error:
            log.error("worker cannot start", worker=slot.index, problem=str(error))
        else:
            slot.serve(worker)

    async def _replacements(self) -> None:
        """Replace all workers, one after the other, each time it is asked for; a failure leaves the others as they
        are."""
        while True:
            await self._replace.wait()
            self._replace.clear()
            log.info("replacing workers")
            try:
                for slot in self._slots:
                    async with slot.lock:
                        await self._succeed(slot)
            except RouterError as error:
                log.error("replacement failed; the other workers stay", problem=str(error))
            else:
                log.info("workers replaced")

    async def _succeed(self, slot: Slot) -> None:
        """Put a new worker in the place of a slot's old one. Raises `RouterError`; then the old one serves on."""
        new = await self._start(slot)
        old = slot.current
        if old is not None and not old.ended.is_set():
            old.line.say("retire")
            slot.predecessors.append(old)
            try:
                (old.url,) = await old.said("retired", RETIRE_S)
            except RouterError:
                log.error("worker does not retire; killed", worker=slot.index, pid=old.process.pid)
                old.kill()
        slot.serve(new)

    def _on_stop(self, number: signal.Signals | None) -> None:
        word = "hurry" if self._stopping.is_set() else "stop"
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()
        if number is not None:
            log.info("stopping at once" if word == "hurry" else "stopping", signal=number.name)
        for worker in self._alive:
            worker.line.say(word)

    def _on_hangup(self) -> None:
        for worker in self._alive:
            worker.line.say("reload")

    async def _end(self) -> None:
        """Wait for all workers; kill those that take longer than they may."""
        bound_s = self._settings.shutdown_grace_s + self._settings.shutdown_timeout_s + KILL_AFTER_S
        deadline = self._loop.time() + bound_s
        while self._alive and self._loop.time() < deadline:
            if self._hurried.is_set():
                deadline = min(deadline, self._loop.time() + KILL_AFTER_S)
                self._hurried.clear()
            (worker, *_) = self._alive
            with suppress(TimeoutError):
                async with asyncio.timeout(min(0.2, max(0.0, deadline - self._loop.time()))):
                    await worker.ended.wait()
        for worker in tuple(self._alive):
            log.error("worker killed", pid=worker.process.pid)
            worker.kill()


def environment() -> dict[str, str]:
    """Ours, with the folder of this very package first: a worker must not take another that lies where it starts."""
    assert router.__file__ is not None
    here = str(Path(router.__file__).parent.parent)
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{others}" if others else here}


async def keep(settings: Settings) -> int:
    """Bind, check what can be checked before anything is started, and keep the workers. Raises `BadInput`."""
    with ExitStack() as opened:
        data = opened.enter_context(listening(settings.host, settings.port, "--port"))
        admins = []
        for index in range(settings.workers):
            port = settings.admin_port and settings.admin_port + index
            admins.append(opened.enter_context(listening(settings.admin_host, port, "--admin-port")))
        state = settings.state_dir
        if state is None:  # who follows a dead worker starts from its tables, kept or not
            state = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-router-")))
        if settings.file is not None:
            read_table(settings.file)
        if settings.access_log != "off":
            writer = LineWriter(settings.access_log)
            writer.open()
            writer.close(0.0)
        slots = []
        for index, admin in enumerate(admins):
            folder = state / f"worker-{index}"
            TableStore(folder).prepare()
            slots.append(Slot(index, admin, settings.for_worker(index, admin.getsockname()[1], folder)))
        return await Parent(settings, data, slots).run()


def run(settings: Settings) -> int:
    """Serve with several workers until SIGTERM or SIGINT; returns the exit code. Raises `BadInput`."""
    configure_logs(settings.log_level)
    with asyncio.Runner() as runner:
        return runner.run(keep(settings))
