"""The last tables of controllers on disk, so that a restarted router starts from them and not from nothing (fail
static).

One JSON file in the state folder, replaced as a whole: written beside, fsynced, renamed, the folder fsynced. A file
that cannot be read is reported and ignored, a folder that cannot be written to is reported and the router goes on:
losing the copy must not stop requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from router.errors import BadInput, BadTable
from router.model import IntentTable, checked

FILE_NAME = "router-tables.json"


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    tables: tuple[IntentTable, ...]


class TableStore:
    """The tables under one folder. Blocking; the caller runs `save` in a thread, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def prepare(self) -> None:
        """Make the folder. Raises `BadInput` when it cannot be made or written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._beside()
            beside.write_bytes(b"")
            beside.unlink()
        except OSError as error:
            raise BadInput(
                f"--state-dir: {self.path.parent} cannot be written to: {error.strerror}; allowed: a writable folder"
            ) from error

    def load(self) -> tuple[tuple[IntentTable, ...], str | None]:
        """The stored tables, and why there are none if the file cannot be used. A missing file is no problem."""
        try:
            stored = msgspec.json.decode(self.path.read_bytes(), type=_Stored)
            if stored.version != 1:
                return (), f"{self.path}: version {stored.version}; allowed: 1"
            return tuple(checked(table) for table in stored.tables), None
        except FileNotFoundError:
            return (), None
        except (OSError, msgspec.DecodeError, RecursionError, BadTable) as error:
            return (), f"{self.path}: {error}"

    def save(self, tables: Iterable[IntentTable]) -> str | None:
        """Replace the file; returns what went wrong, None when it is on disk."""
        beside = self._beside()
        try:
            with beside.open("wb") as file:
                file.write(msgspec.json.encode(_Stored(version=1, tables=tuple(tables))))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            return f"{self.path}: {error}"
        return None

    def _beside(self) -> Path:
        """A name of this process alone, so that two routers by mistake in one folder never mix half files."""
        return self.path.with_name(f".{FILE_NAME}.{os.getpid()}")
