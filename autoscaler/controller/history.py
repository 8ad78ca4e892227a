"""What outlives the controller's process: load series, measured start times, replicas, decisions and counters, in
SQLite.

It knows nothing of policies, forecasts or HTTP: callers give names, steps and numbers. The store lives in the state
folder as `history.sqlite3` in WAL mode. Appends go to memory and are written by `commit`, one transaction a tick, on
the one writer thread; reads are synchronous and see what is not written yet. Numbers that must never be given twice
(replica numbers, the start counter) are written before they are handed out. A process killed at any moment loses at
most the last uncommitted tick. A read that the disk refuses is logged and gives nothing known: ticks go on without it.

Load is kept in blocks of one hour per series and step: float32, NaN = gap. A block index is `first step of the block
/ steps per block`, steps counted from the epoch, so any step length works and equal moments of different runs meet in
the same block.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from autoscaler.controller.store import FILE_NAME, hold, named, opened
from autoscaler.model import DecisionRecord, StartTime

BLOCK_S = 3600.0
KEEP_DECISIONS_S = 7 * 86400.0
KEEP_LOAD_S = 35 * 86400.0
"""Four weeks are used by the longest season; one more so that a week's holiday can be looked at."""
KEEP_START_SAMPLES = 50
"""Start times drift with images and disks: only the newest count."""
PRIOR_WEIGHT = 2.0
"""The policy's prior counts as two measured starts, so that one odd first start does not decide alone."""
PENDING_MAX = 20_000
"""Writes kept for a retry while the disk refuses them; beyond it the oldest are lost, the loop goes on."""

Write = tuple[str, tuple[Any, ...]]
BlockKey = tuple[str, float, int]
Block = np.ndarray[Any, np.dtype[np.float32]]

_PUT_BLOCK = "INSERT OR REPLACE INTO series_block VALUES (?, ?, ?, ?)"
_PUT_COUNTER = "INSERT OR REPLACE INTO counter VALUES (?, ?)"
_PUT_REPLICA = "INSERT OR REPLACE INTO replica VALUES (?, ?, ?)"
_OLD_STARTS = """DELETE FROM start_sample WHERE id IN (SELECT id FROM (SELECT id, row_number()
    OVER (PARTITION BY policy, variant ORDER BY id DESC) AS age FROM start_sample) WHERE age > ?)"""

log = structlog.get_logger(part="history")


class SqliteHistory:
    """`ports.History` on one SQLite file, plus what the local adapter keeps: replicas and counters.

    `path`: the state folder (made if it does not exist). Raises `BadInput` when another controller holds it, when its
    schema is newer than this program's, or when the file is no history. `read_only` takes no lock and changes nothing
    (for `tidegate why`).
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        folder = Path(path)
        self.file = folder / FILE_NAME
        self._lock = None if read_only else hold(folder)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._pending: list[Write] = []
        self._blocks: dict[BlockKey, Block] = {}
        self._dirty: dict[BlockKey, None] = {}
        self._starts: dict[tuple[str, str], deque[float]] = {}
        try:
            self.name = "" if read_only else named(folder)
            """Short and random, made once for this state folder: tells its controller from others."""
            self._db = opened(self.file, read_only)
        except BaseException:
            self._release()
            raise
        self._closed = False

    # ---- load

    def append_load(self, policy: str, step_s: float, first_epoch_s: float, values: Sequence[float | None]) -> None:
        """Merge consecutive steps of arrivals per second into the series; None or NaN = gap, which never erases a
        known value.
        """
        new = np.array([np.nan if value is None else value for value in values], dtype=np.float32)
        steps = _steps_per_block(step_s)
        position = round(first_epoch_s / step_s)
        done = 0
        while done < len(new):
            hour, offset = divmod(position + done, steps)
            part = new[done : done + steps - offset]
            try:
                block = self._block((policy, float(step_s), hour), steps)
            except sqlite3.Error as error:
                log.error("load not kept: what is there cannot be read", policy=policy, error=str(error))
                return
            held = block[offset : offset + len(part)]
            np.copyto(held, part, where=~np.isnan(part))
            self._dirty[(policy, float(step_s), hour)] = None
            done += len(part)

    def load(self, policy: str, step_s: float, since_epoch_s: float) -> tuple[float, list[float]]:
        """(epoch of the first known step at or after `since_epoch_s`, values up to the last known one, NaN for gaps);
        [] when none.
        """
        try:
            return self._load(policy, step_s, since_epoch_s)
        except sqlite3.Error as error:
            log.error("load cannot be read", policy=policy, error=str(error))
            return since_epoch_s, []

    def _load(self, policy: str, step_s: float, since_epoch_s: float) -> tuple[float, list[float]]:
        steps = _steps_per_block(step_s)
        first = int(np.ceil(since_epoch_s / step_s - 1e-9))
        rows = self._db.execute(
            "SELECT hour FROM series_block WHERE series = ? AND grid = ? AND hour >= ?",
            (policy, float(step_s), first // steps),
        )
        hours = {int(row[0]) for row in rows}
        hours.update(h for (s, g, h) in self._blocks if s == policy and g == float(step_s) and h >= first // steps)
        if not hours:
            return since_epoch_s, []
        low, high = min(hours), max(hours)
        whole = np.full((high - low + 1) * steps, np.nan, dtype=np.float32)
        for hour in sorted(hours):
            whole[(hour - low) * steps : (hour - low + 1) * steps] = self._block((policy, float(step_s), hour), steps)
        start = max(first - low * steps, 0)
        known = np.flatnonzero(~np.isnan(whole[start:]))
        if not len(known):
            return since_epoch_s, []
        start, end = start + int(known[0]), start + int(known[-1]) + 1
        return (low * steps + start) * step_s, whole[start:end].astype(np.float64).tolist()

    def _block(self, key: BlockKey, steps: int) -> Block:
        block = self._blocks.get(key)
        if block is None:
            row = self._db.execute(
                "SELECT body FROM series_block WHERE series = ? AND grid = ? AND hour = ?", key
            ).fetchone()
            block = np.full(steps, np.nan, dtype=np.float32)
            if row is not None and isinstance(row[0], bytes) and len(row[0]) == block.nbytes:
                block = np.frombuffer(row[0], dtype="<f4").copy()
            elif row is not None:
                log.error("damaged hour of load taken for a gap", series=key[0], file=str(self.file), hour=key[2])
            self._blocks[key] = block
        return block

    # ---- start times

    def add_start_time(self, policy: str, variant: str, seconds: float) -> None:
        """One measured start, command to ready."""
        self._samples(policy, variant).append(seconds)
        self._pending.append(("INSERT INTO start_sample VALUES (NULL, ?, ?, 'total', ?)", (policy, variant, seconds)))

    def start_time(self, policy: str, variant: str, prior: StartTime) -> StartTime:
        """P50 and P90 of the newest starts, blended with the prior: weight n / (n + 2) for n measured starts, 1 from
        20 on.
        """
        samples = list(self._samples(policy, variant))
        if not samples:
            return StartTime(p50_s=prior.p50_s, p90_s=prior.p90_s)
        weight = 1.0 if len(samples) >= 20 else len(samples) / (len(samples) + PRIOR_WEIGHT)
        p50, p90 = (float(np.quantile(samples, q)) for q in (0.5, 0.9))
        return StartTime(
            p50_s=weight * p50 + (1 - weight) * prior.p50_s,
            p90_s=weight * p90 + (1 - weight) * prior.p90_s,
            samples=len(samples),
        )

    def _samples(self, policy: str, variant: str) -> deque[float]:
        key = (policy, variant)
        if key not in self._starts:
            try:
                rows = self._db.execute(
                    "SELECT seconds FROM start_sample WHERE policy = ? AND variant = ? ORDER BY id DESC LIMIT ?",
                    (*key, KEEP_START_SAMPLES),
                ).fetchall()
            except sqlite3.Error as error:
                log.error("start times cannot be read", policy=policy, variant=variant, error=str(error))
                return deque(maxlen=KEEP_START_SAMPLES)
            self._starts[key] = deque([float(row[0]) for row in rows][::-1], maxlen=KEEP_START_SAMPLES)
        return self._starts[key]

    # ---- counters

    def next_replica_number(self, policy: str, variant: str) -> int:
        """A number never given before for this policy and variant; written before it is returned."""
        return self._next(f"replica/{policy}/{variant}")

    def next_epoch(self) -> int:
        """The start counter: grows by one for each controller that ran on this folder; the epoch of its tables."""
        return self._next("epoch")

    def _next(self, name: str) -> int:
        row = self._db.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        value = 1 if row is None else int(row[0]) + 1
        self._writer.submit(self._write, [(_PUT_COUNTER, (name, value))]).result()
        return value

    # ---- replicas

    def save_replica(self, policy: str, replica: str, row: Mapping[str, object]) -> None:
        """Remember a running replica, so that the next controller can adopt it; written at once, after what waits to be.
        Raises `sqlite3.Error`, and is written by a later commit then.
        """
        self._pending.append((_PUT_REPLICA, (replica, policy, json.dumps(dict(row)))))
        self.flush()

    def drop_replica(self, replica: str) -> None:
        """Forget a replica that is gone."""
        self._pending.append(("DELETE FROM replica WHERE id = ?", (replica,)))

    def saved_replicas(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(id, policy, row) of each replica remembered, oldest first; a row that is no JSON object is logged and left out."""
        self.flush()
        found = []
        for name, policy, text in self._db.execute("SELECT id, policy, body FROM replica ORDER BY rowid"):
            body = _document(text)
            if body is None:
                log.error("damaged replica passed over", replica=name, file=str(self.file), table="replica")
            else:
                found.append((str(name), str(policy), body))
        return found

    # ---- decisions

    def record(self, record: DecisionRecord) -> None:
        """Append a decision to the journal; one with `inputs` is complete, one without holds numbers only."""
        body = json.dumps(
            {"decision": dict(record.decision), "inputs": record.inputs, "commands": list(record.commands)}
        )
        row = (record.policy, record.epoch_s, int(record.inputs is not None), body)
        self._pending.append(("INSERT INTO decision VALUES (NULL, ?, ?, ?, ?)", row))

    def last_decision(
        self, policy: str | None, before_epoch_s: float | None = None, *, complete: bool = False
    ) -> DecisionRecord | None:
        """The newest record (of one policy, at or before a moment, only those with inputs), None when there is none.
        Damaged rows are logged and passed over.
        """
        self.flush()
        damaged, batch, found = 0, 1, None
        while found is None:
            rows = self._db.execute(
                "SELECT policy, epoch_s, body FROM decision WHERE (? IS NULL OR policy = ?)"
                " AND (? IS NULL OR epoch_s <= ?) AND complete >= ? ORDER BY epoch_s DESC, id DESC LIMIT ? OFFSET ?",
                (policy, policy, before_epoch_s, before_epoch_s, int(complete), batch, damaged),
            ).fetchall()
            read = [_decision(*row) for row in rows]
            found = next((record for record in read if record is not None), None)
            damaged += len(read) if found is None else read.index(found)
            if len(rows) < batch:
                break
            batch *= 10  # one is enough but for damaged ones: a week has 600,000
        if damaged:
            log.error("damaged decisions passed over", rows=damaged, file=str(self.file), table="decision")
        return found

    def policies(self) -> list[str]:
        """Names of all policies that have a decision."""
        self.flush()
        return [str(row[0]) for row in self._db.execute("SELECT DISTINCT policy FROM decision ORDER BY policy")]

    # ---- writing

    async def commit(self) -> None:
        """Write all that was appended, in one transaction off the event loop. Raises `sqlite3.Error`, and keeps it
        then.
        """
        batch = self._batch()
        if batch:
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, self._write, batch)
            except sqlite3.Error:
                self._keep(batch)
                raise

    def flush(self) -> None:
        """The same, and wait for it."""
        batch = self._batch()
        if batch:
            try:
                self._writer.submit(self._write, batch).result()
            except sqlite3.Error:
                self._keep(batch)
                raise

    def prune(self, epoch_s: float) -> None:
        """Drop decisions and load older than they are kept, and starts that do not count any more."""
        self._pending.append((_OLD_STARTS, (KEEP_START_SAMPLES,)))
        self._pending.append(("DELETE FROM decision WHERE epoch_s < ?", (epoch_s - KEEP_DECISIONS_S,)))
        oldest = epoch_s - KEEP_LOAD_S
        blocks = "DELETE FROM series_block WHERE (hour + 1) * grid * max(1, round(? / grid)) < ?"
        self._pending.append((blocks, (BLOCK_S, oldest)))
        old = [key for key in self._blocks if (key[2] + 1) * key[1] * _steps_per_block(key[1]) < oldest]
        for key in old:
            del self._blocks[key]
            self._dirty.pop(key, None)

    def close(self) -> None:
        """Write what is left and let the folder go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._lock is not None:
                self.flush()
        finally:
            self._writer.shutdown()
            self._db.close()
            self._release()

    def _batch(self) -> list[Write]:
        batch, self._pending = self._pending, []
        batch += [(_PUT_BLOCK, (*key, self._blocks[key].astype("<f4").tobytes())) for key in self._dirty]
        self._dirty = {}
        return batch

    def _keep(self, batch: list[Write]) -> None:
        self._pending = (batch + self._pending)[-PENDING_MAX:]

    def _write(self, batch: list[Write]) -> None:
        with self._db:  # one transaction
            for statement, values in batch:
                self._db.execute(statement, values)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _steps_per_block(step_s: float) -> int:
    return max(1, round(BLOCK_S / step_s))


def _document(text: str | bytes) -> dict[str, Any] | None:
    """A row's JSON object, None when it is damaged."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _decision(policy: str, epoch_s: float, text: str | bytes) -> DecisionRecord | None:
    """A row of the journal, None when it is damaged."""
    body = _document(text) or {}
    decision, inputs, commands = (body.get(key) for key in ("decision", "inputs", "commands"))
    if not isinstance(decision, dict) or not isinstance(decision.get("desired"), int):
        return None
    if not isinstance(commands, list) or not isinstance(inputs, dict | None) or not isinstance(epoch_s, float):
        return None
    return DecisionRecord(policy=policy, epoch_s=epoch_s, decision=decision, inputs=inputs, commands=tuple(commands))
