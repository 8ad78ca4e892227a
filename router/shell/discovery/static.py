"""The intent table of one file: read at the start, read again when the file changes or on SIGHUP.

A file that cannot be used stops the start (`BadTable`, exit code 2); later it is logged and the last good table stays
in force. A file has no controller that counts revisions, so they are counted here: whatever differs from what the
dispatcher holds for this source is its successor. Change is seen by time, size and inode, asked once a second (an
inotify watch would miss mounts that swap symlinks).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from router.core.dispatcher import Dispatcher
from router.errors import BadTable, RouterError
from router.model import IntentTable
from router.shell.discovery.document import parse_document

POLL_S = 1.0

log = structlog.get_logger(part="static")

Signature = tuple[int, int, int] | None


class StaticTable:
    """One file and the dispatcher it feeds. `share`: of every limit in it that this process may use; `poll_s`: how often
    `watch` looks at it; `looks`: how often it has, each look done when it is counted; `source`: known after `load`.
    """

    def __init__(self, path: Path, dispatcher: Dispatcher, poll_s: float = POLL_S, share: float = 1.0) -> None:
        self._path = path
        self._share = share
        self._dispatcher = dispatcher
        self._poll_s = poll_s
        self.looks = 0
        self._seen: Signature = None
        self._asked = asyncio.Event()
        self.source: str | None = None

    def load(self, now: float) -> None:
        """Read and apply. Raises `BadTable` that starts with the file's name; then nothing was changed."""
        self._seen = signature(self._path)
        table = read_table(self._path)
        if self.source not in (None, table.source):
            raise BadTable(
                f"{self._path.name}: `source`: {table.source!r}; allowed while running: {self.source!r}, as before"
            )
        held = self._dispatcher.tables().get(table.source)
        following = successor(divided(table, self._share), held)
        try:
            self._dispatcher.apply(following, now)
        except RouterError as error:
            raise BadTable(f"{self._path.name}: {error}") from error
        self.source = table.source
        if following is not held:
            log.info("table applied", file=str(self._path), **summary(following))

    def reload_soon(self) -> None:
        """Read the file again within moments, changed or not (SIGHUP)."""
        self._asked.set()

    async def watch(self) -> None:
        """Reload for ever. Only cancelling ends it; a broken or vanished file is logged once per change."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._asked.wait()
            if self._asked.is_set() or signature(self._path) != self._seen:
                self._asked.clear()
                try:
                    self.load(loop.time())
                except RouterError as error:
                    log.error("file not applied; the last good table stays", file=str(self._path), problem=str(error))
            self.looks += 1


def signature(path: Path) -> Signature:
    """What changes when a file's content does; None while there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_table(path: Path) -> IntentTable:
    """The table in a file. Raises `BadTable` naming the file, the field, the value and what is allowed."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadTable(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_document(text, path.name)


def divided(table: IntentTable, share: float) -> IntentTable:
    """The same table for one of several routers that have its endpoints in common."""
    return table if share == 1.0 else msgspec.structs.replace(table, share=table.share * share)


def successor(table: IntentTable, held: IntentTable | None) -> IntentTable:
    """The table with a revision the dispatcher takes: the held one itself when nothing else differs, else a later pair
    than it."""
    if held is None:
        return table
    if msgspec.structs.replace(table, epoch=held.epoch, revision=held.revision) == held:
        return held
    if (table.epoch, table.revision) > (held.epoch, held.revision):
        return table
    return msgspec.structs.replace(table, epoch=held.epoch, revision=held.revision + 1)


def summary(table: IntentTable) -> dict[str, object]:
    """A table in one log line."""
    return {
        "source": table.source,
        "epoch": table.epoch,
        "revision": table.revision,
        "models": [model.name for model in table.models][:20],
        "endpoints": len(table.endpoints),
    }
