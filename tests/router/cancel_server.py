"""Stories of cancellation: the life of a router process, alone and as a worker."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from router.model import EndpointIntent, IntentTable, ModelIntent
from router.settings import Settings
from router.shell import server, worker
from router.shell.control import Line, Message
from router.shell.server import Server
from router.shell.sockets import listening
from router.shell.table_store import TableStore
from tests.router.cancel_admin import table
from tests.router.cancel_sides import engine, never
from tests.router.cancelling import Part, story
from tests.router.wire import Caller, post

OURS: list[Server] = []
"""The one that runs."""


class Known(Server):
    """A server that a story can find."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        OURS[:] = [self]


@contextmanager
def running() -> Iterator[Path]:
    """What a whole router needs to run inside a test; gives a folder for it."""
    quiet = SimpleNamespace(collect=lambda: 0, freeze=lambda: None, set_threshold=lambda count: None)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(server, "gc", quiet)  # it would collect and set aside the whole test run
        patch.setattr(server, "Server", Known)
        patch.setattr(worker, "Server", Known)
        patch.setattr(worker, "configure_logs", lambda level, router: None)
        patch.setattr(server, "IDLE_POLL_S", 0.002)
        patch.setattr(server, "LOOK_ROUND_S", 0.004)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: None)  # the loop keeps its sockets for it
        OURS.clear()
        yield Path(folder)


def settings(folder: Path, engine_port: int) -> Settings:
    """A router with one endpoint that keeps its tables and logs to a file."""
    endpoint = EndpointIntent(id="e0", url=f"http://127.0.0.1:{engine_port}", model="m")
    return Settings(
        port=0,
        admin_port=0,
        state_dir=folder / "state",
        access_log=str(folder / "access.log"),
        table=IntentTable(source="t", models=(ModelIntent(name="m"),), endpoints=(endpoint,)),
        shutdown_grace_s=0.006,
        shutdown_timeout_s=0.006,
    )


def stop() -> None:
    """As SIGTERM does."""
    if OURS:
        OURS[0]._on_signal(signal.SIGTERM)


async def ask(callers: list[Caller]) -> None:
    """A request that its engine never answers."""
    while not OURS or not OURS[0]._dispatcher.endpoints or OURS[0]._dispatcher.endpoints["e0"].health != "ready":  # noqa: ASYNC110  # nobody tells when
        await asyncio.sleep(0.001)
    callers.append(Caller(*await asyncio.open_connection(*OURS[0]._data.getsockname())))
    callers[-1].writer.write(post())


async def store() -> None:
    """A table is being stored when the router stops."""
    while not OURS:  # noqa: ASYNC110  # nobody tells when one is made
        await asyncio.sleep(0.001)
    async with OURS[0]._storing:
        while OURS[0]._left_at is None:  # noqa: ASYNC110  # nor when it stops
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)


@story(
    "shell/server.py:serve",
    "shell/server.py:Server.run",
    "shell/server.py:Server._live|._serve",
    "shell/server.py:Server._live|TaskGroup",
    "shell/server.py:Server._serve",
    "shell/server.py:Server._leave|grace",
    "shell/server.py:Server._leave|sleep",
    "shell/server.py:Server._leave|empty",
    "shell/server.py:Server._wait",
    patience_s=0.4,
)
async def a_router_serves_and_stops() -> AsyncIterator[Part]:
    loop = asyncio.get_running_loop()
    async with engine(never) as port:
        with running() as folder:
            callers: list[Caller] = []
            asking = loop.create_task(ask(callers))
            await asyncio.sleep(0)
            timer = loop.call_later(0.02, stop)
            storing = loop.create_task(store())

            def leave() -> None:
                asking.cancel()
                storing.cancel()
                timer.cancel()
                for caller in callers:
                    caller.leave()

            yield Part(server.serve(settings(folder, port)), then=leave)
            assert not OURS or not OURS[0]._plane.clients
            OURS.clear()
            again = loop.create_task(server.serve(settings(folder, port)))
            while not OURS or not OURS[0]._dispatcher.has_table:  # noqa: ASYNC110  # nobody tells when
                await asyncio.sleep(0.001)
            stop()
            assert await again == 0


async def say(theirs: socket.socket, folder: Path, port: int, words: list[str]) -> None:
    """What a parent says to its worker, each word when the worker has said something, or after a moment."""
    loop = asyncio.get_running_loop()
    theirs.setblocking(False)
    text = Line.__new__(Line)
    sent: list[bytes] = []
    text._send = lambda line: sent.append(line)  # type: ignore[method-assign]
    text.say_settings(settings(folder, port))
    await asyncio.sleep(0.005)
    await loop.sock_sendall(theirs, sent[0] + b"\n")
    for word in words:
        await loop.sock_recv(theirs, 1 << 16)
        if word == "(gone)":
            break
        await asyncio.sleep(0.002)
        await loop.sock_sendall(theirs, msgspec.json.encode(Message(what=word)) + b"\n")
        if word == "go":
            await asyncio.sleep(0.02)
    theirs.close()


async def _worker(*words: str) -> AsyncIterator[Part]:
    loop = asyncio.get_running_loop()
    async with engine(never) as port:
        with running() as folder:
            control, theirs = socket.socketpair()
            data, admin = listening("127.0.0.1", 0, "--port"), listening("127.0.0.1", 0, "--admin-port")
            callers: list[Caller] = []
            asking = loop.create_task(ask(callers))
            saying = loop.create_task(say(theirs, folder, port, list(words)))
            await asyncio.sleep(0)

            def leave() -> None:
                asking.cancel()
                saying.cancel()
                theirs.close()
                for caller in callers:
                    caller.leave()
                for each in (control, data, admin):
                    each.close()

            yield Part(worker.work(control, data, admin), then=leave)
            assert not OURS or not OURS[0]._plane.clients


@story(
    "shell/worker.py:work",
    "shell/server.py:Server._live|_looked_round",
    "shell/server.py:Server._live|_may_serve",
    "shell/server.py:Server._leave|_hand_over",
    "shell/server.py:Server._hand_over",
)
async def a_worker_serves_and_is_replaced() -> AsyncIterator[Part]:
    async for part in _worker("go", "retire"):
        yield part


@story("shell/worker.py:work", "shell/server.py:Server._leave|site.move")
async def a_worker_serves_and_is_orphaned() -> AsyncIterator[Part]:
    async for part in _worker("go"):
        yield part


@story("shell/server.py:Server._obey", points=6)
async def a_worker_obeys() -> AsyncIterator[Part]:
    with running() as folder:
        control, theirs = socket.socketpair()
        with listening("127.0.0.1", 0, "--port") as data, listening("127.0.0.1", 0, "--admin-port") as admin, theirs:
            line = await Line.over(control)
            of = Server(settings(folder, 1), data, admin, line)
            loop = asyncio.get_running_loop()
            said = loop.call_later(0.001, theirs.send, b'{"what":"reload"}\n')
            left = loop.call_later(0.002, theirs.close)
            yield Part(of._obey(line), then=line.close)
            said.cancel()
            left.cancel()


@story("shell/server.py:Server._save")
async def tables_are_stored() -> AsyncIterator[Part]:
    loop = asyncio.get_running_loop()
    with running() as folder, ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        await asyncio.to_thread(lambda: None)
        with listening("127.0.0.1", 0, "--port") as data, listening("127.0.0.1", 0, "--admin-port") as admin:
            of = Server(Settings(state_dir=folder), data, admin)
            of._dispatcher.apply(table(1), loop.time())
            await of._storing.acquire()
            loop.call_later(0.002, of._storing.release)
            yield Part(of._save())
            await asyncio.to_thread(lambda: None)  # behind whatever was being written
            stored, problem = TableStore(folder).load()
            assert problem is None
            assert stored in ((), (table(1),)), "whole or not at all"
            of._dispatcher.apply(table(2), loop.time())
            await of._save()
            assert TableStore(folder).load() == ((table(2),), None)
