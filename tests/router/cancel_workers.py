"""Stories of cancellation: the parent of several workers. Its workers are real processes, but light ones: they keep to
the line (`control.py`) and serve nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from router.settings import Settings
from router.shell import workers
from router.shell.sockets import listening
from router.shell.workers import Parent, Slot
from tests.router.cancelling import LATE, ONCE, PATIENCE_WITH_PROCESSES_S, Part, story

LIGHT = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[-3]))
heard = line.makefile("rb")
settings = heard.readline()
if settings:
    line.sendall(b'{"what":"ready"}\\n')
    for said in heard:
        if b"retire" in said:
            time.sleep(0.005)
            line.sendall(b'{"what":"retired","urls":["http://127.0.0.1:1"]}\\n')
        if b"stop" in said or b"hurry" in said:
            break
"""

OURS: list[Parent] = []
"""The one that runs."""


class Known(Parent):
    """A parent that a story can find."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        OURS[:] = [self]


def children() -> set[int]:
    """Processes that this one has started and not seen the end of."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if int((folder / "stat").read_text().rpartition(") ")[2].split()[1]) == os.getpid():
                found.add(int(folder.name))
    return found


@contextmanager
def light() -> Iterator[Path]:
    """Light workers; gives a folder. Fails when one is left."""
    before = children()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "light"
        program.write_text(f"#!{sys.executable} -IS\n{LIGHT}")
        program.chmod(0o755)
        patch.setattr(sys, "executable", str(program))
        patch.setattr(workers, "Parent", Known)
        patch.setattr(workers, "KILL_AFTER_S", 1.0)
        patch.setattr(workers, "PAUSE_S", 0.002)
        OURS.clear()
        yield Path(folder)
    assert children() <= before, "a worker is left"


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that the parent is about to do."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the parent sets no event
            await asyncio.sleep(0.001)


def settings(folder: Path) -> Settings:
    """A router of one worker."""
    return Settings(
        port=0,
        admin_port=0,
        workers=1,
        state_dir=folder / "state",
        access_log="off",
        shutdown_grace_s=0.0,
        shutdown_timeout_s=0.0,
    )


def serving() -> bool:
    """Has the parent a worker that serves."""
    return bool(OURS) and OURS[0]._slots[0].current is not None


def stop() -> None:
    """As SIGTERM does."""
    OURS[0]._on_stop(None)


async def stop_when_serving() -> None:
    await until(serving)
    stop()


@story(
    "shell/workers.py:keep",
    "shell/workers.py:Parent.run",
    "shell/workers.py:Parent._first",
    "shell/workers.py:Parent._end",
    unix=True,
    patience_s=PATIENCE_WITH_PROCESSES_S,
    ways=(ONCE, LATE),
)
async def a_parent_keeps_its_workers_and_stops() -> AsyncIterator[Part]:
    before = children()
    with light() as folder:
        stopping = asyncio.create_task(stop_when_serving())
        await asyncio.sleep(0)
        yield Part(workers.keep(settings(folder)), then=stopping.cancel)
        await until(lambda: children() <= before)
        OURS.clear()
        again = asyncio.create_task(stop_when_serving())
        assert await workers.keep(settings(folder)) == 0
        await again


async def _with_parent(
    part: Callable[[Parent, Slot], Coroutine[Any, Any, Any]],
    first: Callable[[Parent, Slot], Awaitable[Any]] | None = None,
    soon: Callable[[Parent, Slot], object] | None = None,
) -> AsyncIterator[Part]:
    """A part of a parent in which a worker can be started; it goes on to work afterwards. `first` is done before, `soon`
    in a moment.
    """
    loop = asyncio.get_running_loop()
    with (
        light() as folder,
        listening("127.0.0.1", 0, "--port") as data,
        listening("127.0.0.1", 0, "--admin-port") as admin,
    ):
        slot = Slot(0, admin, settings(folder))
        parent = Parent(settings(folder), data, [slot])
        async with asyncio.TaskGroup() as parent._group:
            if first is not None:
                await first(parent, slot)

            def end() -> None:
                for each in parent._alive:
                    each.kill()

            ahead = [soon] if soon is not None else []

            def happen() -> None:
                if ahead:
                    ahead.pop()(parent, slot)

            loop.call_later(0.02, happen)
            yield Part(part(parent, slot), then=end)
            happen()
            assert not slot.lock.locked()
            await until(lambda: not parent._alive)
            slot.vacant.clear()
            slot.current = None
            worker = await parent._start(slot)
            slot.serve(worker)
            worker.kill()


async def serve_one(parent: Parent, slot: Slot) -> None:
    """A worker in the place."""
    slot.serve(await parent._start(slot))


@story(
    "shell/workers.py:Parent._start",
    "shell/workers.py:Worker.said",
    unix=True,
    patience_s=PATIENCE_WITH_PROCESSES_S,
    ways=(ONCE, LATE),
)
async def a_worker_is_started() -> AsyncIterator[Part]:
    async for part in _with_parent(lambda parent, slot: parent._start(slot)):
        yield part


async def hold(parent: Parent, slot: Slot) -> None:
    """The place is being replaced."""
    await slot.lock.acquire()


def release(parent: Parent, slot: Slot) -> None:
    """It no longer is."""
    slot.lock.release()


async def hold_a_vacant_one(parent: Parent, slot: Slot) -> None:
    await hold(parent, slot)
    asyncio.get_running_loop().call_later(0.002, slot.vacant.set)


async def asked_to_replace(parent: Parent, slot: Slot) -> None:
    await serve_one(parent, slot)
    await hold(parent, slot)
    asyncio.get_running_loop().call_later(0.002, parent._replace.set)


@story(
    "shell/workers.py:Parent._keep",
    "shell/workers.py:Parent._fill",
    unix=True,
    patience_s=PATIENCE_WITH_PROCESSES_S,
    ways=(ONCE, LATE),
    points=7,
)
async def a_place_is_kept() -> AsyncIterator[Part]:
    async for part in _with_parent(lambda parent, slot: parent._keep(slot), hold_a_vacant_one, release):
        yield part


@story(
    "shell/workers.py:Parent._replacements",
    "shell/workers.py:Parent._succeed",
    unix=True,
    patience_s=PATIENCE_WITH_PROCESSES_S,
    ways=(ONCE, LATE),
    points=7,
)
async def workers_are_replaced() -> AsyncIterator[Part]:
    async for part in _with_parent(lambda parent, slot: parent._replacements(), asked_to_replace, release):
        yield part


def kill_one(parent: Parent, slot: Slot) -> None:
    """Its worker dies."""
    for each in parent._alive:
        each.kill()


async def watch(parent: Parent, slot: Slot) -> None:
    """Watch a worker of one's own."""
    (worker,) = parent._alive
    await parent._watch(slot, worker)


@story("shell/workers.py:Parent._watch", unix=True, patience_s=PATIENCE_WITH_PROCESSES_S, ways=(ONCE, LATE))
async def a_worker_is_watched() -> AsyncIterator[Part]:
    async for part in _with_parent(watch, serve_one, kill_one):
        yield part
