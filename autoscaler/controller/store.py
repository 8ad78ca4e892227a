"""The state folder's file and lock: opens the SQLite store, brings its schema up, and keeps a second controller out.

Only `history.py` uses it; it knows the tables, not what the rows mean. A newer schema is refused, an older one is
migrated forward when the folder is taken; a reader takes it as it is.

| schema | what it brought |
|---|---|
| 1 | the tables |
| 2 | a replica's row says since when it drains |
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import IO

from autoscaler.errors import BadInput

SCHEMA_VERSION = 2
FILE_NAME = "history.sqlite3"
NAME_FILE = "controller.name"
NAME_BYTES = 4

_SCHEMA = f"""
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE series_block (series TEXT NOT NULL, grid REAL NOT NULL, hour INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (series, grid, hour)) WITHOUT ROWID;
CREATE TABLE start_sample (id INTEGER PRIMARY KEY, policy TEXT NOT NULL, variant TEXT NOT NULL, stage TEXT NOT NULL,
    seconds REAL NOT NULL);
CREATE INDEX start_sample_of ON start_sample (policy, variant, id);
CREATE TABLE replica (id TEXT PRIMARY KEY, policy TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE decision (id INTEGER PRIMARY KEY, policy TEXT NOT NULL, epoch_s REAL NOT NULL, complete INTEGER NOT NULL,
    body TEXT NOT NULL);
CREATE INDEX decision_of ON decision (policy, epoch_s);
CREATE INDEX decision_at ON decision (epoch_s);
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}');
COMMIT;
"""


_REPAIR = "repair the row, or move the file away to start a new history"

_MIGRATIONS = {1: "UPDATE replica SET body = json_set(body, '$.draining_epoch_s', NULL);"}
"""From a version to the one after it."""


def hold(folder: Path) -> IO[str]:
    """Take the folder's lock for as long as the returned file is open. Raises `BadInput` when it is held or cannot be
    made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "controller.lock").open("a+", encoding="ascii")
    except OSError as error:
        raise BadInput(
            f"--state-dir {folder}: {error.strerror or error}; a folder that can be written is needed"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read(20).strip() or "unknown"
        lock.close()
        raise BadInput(
            f"--state-dir {folder}: held by another controller (process {holder}); give each its own folder"
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def named(folder: Path) -> str:
    """The folder's own name, eight hex digits, made at its first use. It lies beside the store, not in it: routers know
    a controller by it, and one whose store was lost must still be the owner of its models there. Raises `BadInput`.
    """
    file = folder / NAME_FILE
    try:
        name = file.read_text(encoding="ascii").strip() if file.exists() else ""
        if not name:
            name = os.urandom(NAME_BYTES).hex()
            file.write_text(name, encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be used ({error}); remove it, and a new name is made") from error
    return name


def opened(file: Path, read_only: bool) -> sqlite3.Connection:
    """Open the store and bring its schema up. Raises `BadInput`."""
    if read_only and not file.exists():
        raise BadInput(
            f"--state-dir {file.parent}: no history there ({FILE_NAME} is missing);"
            " name the folder of a controller that has run"
        )
    mode = "ro" if read_only else "rwc"
    db = None
    try:
        db = sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False, timeout=5.0)
        if not read_only:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
        version = _version(db, file)
        if version == 0 and not read_only:
            db.executescript(_SCHEMA)
        elif not read_only:
            for step in range(version, SCHEMA_VERSION):
                db.executescript(
                    f"BEGIN; {_MIGRATIONS[step]} UPDATE meta SET value = '{step + 1}' WHERE key = 'schema'; COMMIT;"
                )
        if not read_only and version <= SCHEMA_VERSION:
            _check_counters(db, file)
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise BadInput(f"{file}: cannot be used as a history ({error}); move it away to start a new one") from error
    except BadInput:
        if db is not None:
            db.close()
        raise
    if version > SCHEMA_VERSION or (read_only and version == 0):
        db.close()
        raise BadInput(
            f"{file}: schema version {version}, this program knows {SCHEMA_VERSION}; use the program that wrote it"
        )
    return db


def _version(db: sqlite3.Connection, file: Path) -> int:
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'").fetchone() is None:
        return 0
    row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if row and not str(row[0]).isdecimal():
        raise BadInput(f"{file}: table meta: schema is {row[0]!r}, must be a whole number; {_REPAIR}")
    return int(row[0]) if row else 0


def _check_counters(db: sqlite3.Connection, file: Path) -> None:
    """Numbers that were given must never be given again, so one that cannot be read is not begun anew in silence."""
    bad = db.execute("SELECT name, value FROM counter WHERE typeof(value) != 'integer'").fetchone()
    if bad is not None:
        raise BadInput(f"{file}: table counter: {bad[0]} is {bad[1]!r}, must be a whole number; {_REPAIR}")
