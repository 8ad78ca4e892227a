"""Whatever the router waits for can be cancelled there: each place has a story that does it.

`test_every_place_has_a_story` fails when an `await` is added that no story names; `test_cancelled_at_each_place` fails
when a story is not cancelled at every place that it names, when a cancellation is swallowed, or when something is left.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from router.model import IntentTable
from router.settings import Settings
from router.shell import server
from router.shell.sockets import listening
from router.shell.table_store import TableStore
from router.shell.workers import Parent, Slot, WorkerFailed
from tests.router import cancel_admin, cancel_server, cancel_sides, cancel_workers
from tests.router.cancelling import ONCE, PLACES, STORIES, Before, Place, Story, at_each, told
from tests.router.wire import Caller, on_uvloop, until

TOLD = (cancel_sides, cancel_admin, cancel_server, cancel_workers)
"""Modules of stories."""

NEVER_WAITS = {
    Place(
        "shell/admin_site.py:admin_site", "await runner.setup()"
    ): "aiohttp only makes its objects; no start-up hooks",
    Place("shell/admin_site.py:AdminSite.move", "await public.stop()"): "aiohttp only closes the listener",
    Place(
        "shell/server.py:Server._serve",
        "await self._loop.create_server(self._plane.protocol, sock=self._data, backlog=BACKLOG)",
    ): "uvloop listens on a bound socket at once",
    Place(
        "shell/server.py:Server._hand_over", "await site.move(private)"
    ): "for that reason; waited at on asyncio's loop",
    Place("shell/server.py:Server._leave", "await self._hand_over(site)"): "as above",
    Place("shell/server.py:Server._leave", "await site.move(None)"): "it only closes the listener",
}
"""Places that give the loop no turn, so nothing can be cancelled there, and why."""


def test_every_place_has_a_story() -> None:
    covered = {place for of in STORIES for place in of.places()}
    bare = sorted({place for place, _ in PLACES} - covered - NEVER_WAITS.keys())
    lines = "\n".join(f"router/{place.function}: {place.text}" for place in bare)
    assert not bare, f"places where nothing shows what a cancellation does; add a story (cancelling.py):\n{lines}"


def test_every_story_names_places_that_are_there() -> None:
    known = {place.function for place, _ in PLACES}
    for of in STORIES:
        for named in of.covers:
            function, _, text = named.partition("|")
            assert function in known, f"{of.name}: {function} waits for nothing"
            assert any(p.function == function and text in p.text for p, _ in PLACES), f"{of.name}: {named}"


@pytest.mark.parametrize("of", STORIES, ids=lambda of: of.name)
def test_cancelled_at_each_place(of: Story) -> None:
    tried = {way: at_each(of, way) for way in of.ways}
    wanted = of.places() - NEVER_WAITS.keys()
    for place in sorted(wanted - of.cancelled):  # how often it waits before it gets there differs from time to time
        told(of, 0, ONCE, place)
    gc.collect()  # what was left open says so now
    assert wanted <= of.cancelled, f"never cancelled there: {wanted - of.cancelled}; waits tried: {tried}"
    strange = of.cancelled & NEVER_WAITS.keys()
    assert not strange, f"it waits there after all: {strange}"


@pytest.mark.fault("R28")
@on_uvloop
async def test_a_table_is_stored_before_the_router_ends_although_who_sent_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = threading.Event()
    save = TableStore.save

    def slowly(of: TableStore, tables: Iterable[IntentTable]) -> str | None:
        free.wait()
        return save(of, tables)

    monkeypatch.setattr(TableStore, "save", slowly)
    with cancel_server.running() as folder:
        settings = Settings(port=0, admin_port=0, state_dir=folder, access_log="off", shutdown_grace_s=0.0)
        serving = asyncio.create_task(server.serve(settings))
        await until(lambda: bool(cancel_server.OURS) and cancel_server.OURS[0]._data.fileno() >= 0)
        ours = cancel_server.OURS[0]
        callers = []
        for revision in (1, 2):  # the second waits for the first to be written
            callers.append(Caller(*await asyncio.open_connection(*ours._admin_socket.getsockname())))
            callers[-1].writer.write(cancel_admin.put(revision))
            await until(lambda revision=revision: f"m{revision}" in ours._dispatcher.names)  # type: ignore[misc]
        for caller in callers:
            caller.leave()
        cancel_server.stop()
        asyncio.get_running_loop().call_later(0.05, free.set)
        assert await serving == 0
        assert [each.revision for each in TableStore(folder).load()[0]] == [2]


async def test_a_worker_that_cannot_be_made_is_a_failure_to_try_again_after(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*words: str, **options: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", none)
    with tempfile.TemporaryDirectory() as folder, listening("127.0.0.1", 0, "--port") as data:
        settings = Settings(port=0, admin_port=0, workers=1, state_dir=Path(folder), access_log="off")
        parent = Parent(settings, data, [])
        before = Before()
        with pytest.raises(WorkerFailed, match=r"a worker process cannot be made: .*temporarily unavailable"):
            await parent._start(Slot(0, data, settings))
        await before.nothing_left()
