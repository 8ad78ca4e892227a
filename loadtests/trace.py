"""Recorded load: one row a request (`Trace`) or one row a step of time (`RateTrace`), whatever file it came from.

Knows nothing of how load is played or forecast. `read_trace` recognises the form (see `trace_forms`), checks every
row and stops at the first broken one with file, line and reason, or counts broken rows when told to skip them.
Columns are `array`s of the standard library, so reading CSV and JSONL needs neither numpy nor pyarrow; Parquet
imports pyarrow when it meets such a file.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


class TraceError(Exception):
    """A trace that cannot be used; the message names the file, where in it, and why."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival.

    `arrival_s`: seconds, never decreasing, first >= 0 ('d'); `input_tokens`, `output_tokens`: >= 0 ('q'). The
    optional columns have one entry a request, or are None when the source does not know. `source` and `form` say
    where it came from; `bad_rows` were skipped; `origin_s` is time 0 on the source's own clock (epoch seconds where
    times carry dates).
    """

    arrival_s: array[float]
    input_tokens: array[int]
    output_tokens: array[int]
    session: Sequence[str] | None = None
    tenant: Sequence[str] | None = None
    model: Sequence[str] | None = None
    priority: Sequence[int] | None = None
    source: str = "generated"
    form: str = "generated"
    bad_rows: int = 0
    origin_s: float = 0.0

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From time 0 to the last arrival; 0 for an empty trace."""
        return self.arrival_s[-1] if self.arrival_s else 0.0

    def pick(self, rows: Sequence[int]) -> Trace:
        """The rows with these indices, ascending."""
        return replace(
            self,
            arrival_s=array("d", [self.arrival_s[row] for row in rows]),
            input_tokens=array("q", [self.input_tokens[row] for row in rows]),
            output_tokens=array("q", [self.output_tokens[row] for row in rows]),
            session=_rows(self.session, rows),
            tenant=_rows(self.tenant, rows),
            model=_rows(self.model, rows),
            priority=_rows(self.priority, rows),
        )

    def slice(self, start_s: float, end_s: float = math.inf) -> Trace:
        """Arrivals in [start_s, end_s), moved so that `start_s` becomes 0."""
        first, last = bisect_left(self.arrival_s, start_s), bisect_left(self.arrival_s, end_s)
        part = self.pick(range(first, last))
        arrival_s = array("d", [at - start_s for at in part.arrival_s])
        return replace(part, arrival_s=arrival_s, origin_s=self.origin_s + start_s)

    def first(self, requests: int) -> Trace:
        """The first `requests` rows."""
        return self.pick(range(min(max(0, requests), len(self))))

    def scale(self, speed: float) -> Trace:
        """The same requests `speed` times faster. Raises `TraceError` unless `speed` is finite and above 0."""
        if not (math.isfinite(speed) and speed > 0):
            raise TraceError(f"speed: {speed}; allowed is a finite number above 0")
        return replace(self, arrival_s=array("d", [at / speed for at in self.arrival_s]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateTrace:
    """Requests per second on a regular grid.

    Step i covers [t_s[i], t_s[i] + step_s). `rate_per_s` is NaN exactly where `valid` is 0: the collector was down,
    which is not zero load. Steps that the source leaves out are filled in as such gaps. `origin_s` as in `Trace`.
    """

    step_s: float
    t_s: array[float]
    rate_per_s: array[float]
    valid: bytearray
    source: str = "generated"
    form: str = "rates"
    bad_rows: int = 0
    origin_s: float = 0.0

    def __len__(self) -> int:
        return len(self.t_s)

    @property
    def duration_s(self) -> float:
        """Length of the grid in seconds."""
        return len(self.t_s) * self.step_s

    def slice(self, start_s: float, end_s: float = math.inf) -> RateTrace:
        """Steps that begin in [start_s, end_s), moved so that `start_s` becomes 0."""
        first, last = bisect_left(self.t_s, start_s), bisect_left(self.t_s, end_s)
        return replace(
            self,
            t_s=array("d", [at - start_s for at in self.t_s[first:last]]),
            rate_per_s=self.rate_per_s[first:last],
            valid=self.valid[first:last],
            origin_s=self.origin_s + start_s,
        )

    def scale(self, speed: float) -> RateTrace:
        """Time runs `speed` times faster and as many times more requests come per second, so that as many come in all.

        Raises `TraceError` unless `speed` is finite and above 0.
        """
        if not (math.isfinite(speed) and speed > 0):
            raise TraceError(f"speed: {speed}; allowed is a finite number above 0")
        return replace(
            self,
            step_s=self.step_s / speed,
            t_s=array("d", [at / speed for at in self.t_s]),
            rate_per_s=array("d", [rate * speed for rate in self.rate_per_s]),
        )


def read_trace(path: Path | str, form: str | None = None, skip_bad_rows: bool = False) -> Trace | RateTrace:
    """Read a trace of any known form (`trace_forms.FORMS`), gzip or not.

    Times of forms that carry dates (Azure, Prometheus) are counted from the first row. Raises `TraceError` for a
    missing file, an unknown form, wrong columns, an empty trace, or the first broken row unless `skip_bad_rows`.
    """
    from loadtests.trace_forms import read_any

    return read_any(Path(path), form, skip_bad_rows)


@dataclass(slots=True)
class TraceBuilder:
    """Collects checked rows. A row that arrives before its predecessor is broken like any other broken row."""

    source: str
    form: str
    skip_bad_rows: bool
    bad_rows: int = 0
    origin_s: float = 0.0
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    text: dict[str, list[str]] = field(default_factory=dict)
    priority: list[int] | None = None

    def broken(self, where: str, reason: str) -> None:
        """Count a broken row, or raise `TraceError` with its place and what is wrong with it."""
        if not self.skip_bad_rows:
            raise TraceError(f"{self.source}, {where}: {reason} (--skip-bad-rows counts such rows and goes on)")
        self.bad_rows += 1

    def add(self, arrival_s: float, input_tokens: int, output_tokens: int) -> None:
        """Append one request. Raises `ValueError` with a reason when it cannot be part of a trace."""
        if not math.isfinite(arrival_s) or arrival_s < 0:
            raise ValueError(f"arrival time {arrival_s}; allowed is a finite number of seconds >= 0")
        if self.arrival_s and arrival_s < self.arrival_s[-1]:
            raise ValueError(
                f"arrival time {arrival_s:.6f} s is before the previous one ({self.arrival_s[-1]:.6f} s); sort the file"
            )
        for name, tokens in (("input tokens", input_tokens), ("output tokens", output_tokens)):
            if not 0 <= tokens <= 2**40:
                raise ValueError(f"{name} {tokens}; allowed is a whole number >= 0")
        self.arrival_s.append(arrival_s)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)

    def build(self) -> Trace:
        """The trace. Raises `TraceError` when there is not a single row in it."""
        if not self.arrival_s:
            raise TraceError(
                f"{self.source}: no requests in it" + (f" ({self.bad_rows} broken rows)" if self.bad_rows else "")
            )
        return Trace(
            arrival_s=self.arrival_s,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            session=self.text.get("session"),
            tenant=self.text.get("tenant"),
            model=self.text.get("model"),
            priority=self.priority,
            source=self.source,
            form=self.form,
            bad_rows=self.bad_rows,
            origin_s=self.origin_s,
        )


def _rows(column: Sequence[Item] | None, rows: Iterable[int]) -> list[Item] | None:
    return None if column is None else [column[row] for row in rows]
