"""Traces of rates: steps of `t_s` with `count` or `rate` (+ `valid`), and Prometheus range-query JSON, onto one
regular grid.

Knows nothing of how files are opened or forms are recognised. The step is the smallest distance between two rows;
rows that are missing become gaps (`valid` 0, rate NaN), because a collector that was down did not see zero load.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from loadtests.trace import RateTrace, TraceError

STEPS_MAX = 50_000_000
"""A grid longer than this comes from a wrong time column, not from a load that somebody recorded."""
FALSE_WORDS = {"false", "0", "no", "f", ""}


@dataclass(slots=True)
class RateBuilder:
    """Collects checked (t_s, load) rows; load NaN = not valid. A row that is not later than its predecessor is
    broken.
    """

    source: str
    form: str
    skip_bad_rows: bool
    bad_rows: int = 0
    t_s: array[float] = field(default_factory=lambda: array("d"))
    load: array[float] = field(default_factory=lambda: array("d"))

    def broken(self, where: str, reason: str) -> None:
        """Count a broken row, or raise `TraceError` with its place and what is wrong with it."""
        if not self.skip_bad_rows:
            raise TraceError(f"{self.source}, {where}: {reason} (--skip-bad-rows counts such rows and goes on)")
        self.bad_rows += 1

    def add(self, t_s: float, load: float) -> None:
        """Append one step; `load` NaN = gap. Raises `ValueError` with a reason when it cannot be part of a trace."""
        if not math.isfinite(t_s):
            raise ValueError(f"t_s {t_s}; allowed is a finite number of seconds")
        if self.t_s and t_s <= self.t_s[-1]:
            raise ValueError(f"t_s {t_s:g} is not after the previous one ({self.t_s[-1]:g}); sort the file")
        if load < 0 or math.isinf(load):
            raise ValueError(f"load {load}; allowed is a finite number >= 0")
        self.t_s.append(t_s)
        self.load.append(load)

    def build(self, *, counts: bool, relative: bool = False) -> RateTrace:
        """Put the rows on the grid; `counts`: loads are per step, not per second; `relative`: count time from the
        first row.

        Raises `TraceError` for fewer than two rows, or for times that do not fit one grid.
        """
        if len(self.t_s) < 2:
            raise TraceError(f"{self.source}: {len(self.t_s)} usable rows; a trace of rates needs two to know its step")
        start = self.t_s[0]
        step = min(later - earlier for earlier, later in zip(self.t_s, self.t_s[1:], strict=False))
        places = [round((t_s - start) / step) for t_s in self.t_s]
        if places[-1] + 1 > STEPS_MAX:
            raise TraceError(
                f"{self.source}: steps of {step:g} s over {self.t_s[-1] - start:g} s; allowed are {STEPS_MAX} steps"
            )
        for place, t_s in zip(places, self.t_s, strict=True):
            if abs(start + place * step - t_s) > 0.01 * step:
                raise TraceError(
                    f"{self.source}: t_s {t_s:g} does not lie on the grid of {step:g} s steps from {start:g}"
                )
        rates = array("d", [math.nan]) * (places[-1] + 1)
        for place, load in zip(places, self.load, strict=True):
            rates[place] = load / step if counts else load
        zero = 0.0 if relative else start
        return RateTrace(
            step_s=step,
            t_s=array("d", [zero + place * step for place in range(len(rates))]),
            rate_per_s=rates,
            valid=bytearray(0 if math.isnan(rate) else 1 for rate in rates),
            source=self.source,
            form=self.form,
            bad_rows=self.bad_rows,
            origin_s=start - zero,
        )


def read_rate_rows(
    builder: RateBuilder, columns: Sequence[str], rows: Iterator[tuple[str, Mapping[str, Any] | str]]
) -> RateTrace:
    """Rows with `t_s` and `count` or `rate` (+ `valid`). Raises `TraceError` for other columns or broken rows."""
    loads = [name for name in ("count", "rate") if name in columns]
    if "t_s" not in columns or len(loads) != 1:
        raise TraceError(
            f"{builder.source}: found columns {', '.join(columns)}; rates need t_s and one of count and rate"
        )
    for where, row in rows:
        try:
            if isinstance(row, str):
                raise ValueError(row)
            valid = str(row.get("valid", True)).strip().lower() not in FALSE_WORDS
            t_s, load = _number(row["t_s"], "t_s"), math.nan
            if valid:
                load = _number(row[loads[0]], loads[0])
                if math.isnan(load):
                    raise ValueError(f"{loads[0]} is NaN on a valid row; say valid = false for a gap")
            builder.add(t_s, load)
        except ValueError as error:
            builder.broken(where, str(error))
    return builder.build(counts=loads[0] == "count")


def read_prometheus(path: Path, text: IO[str], skip_bad_rows: bool) -> RateTrace:
    """The answer of `/api/v1/query_range`, or its `data`, with exactly one series: requests per second at each
    moment; NaN = gap.
    """
    try:
        document = json.load(text)
    except ValueError as error:
        raise TraceError(f"{path}: neither one JSON document nor JSON lines of a known form: {error}") from error
    if isinstance(document, dict) and document.get("status") == "error":
        raise TraceError(f"{path}: Prometheus answered with an error: {document.get('error', 'no reason given')}")
    data = document.get("data", document) if isinstance(document, dict) else {}
    series = data.get("result") if isinstance(data, dict) else None
    if not isinstance(series, list) or data.get("resultType", "matrix") != "matrix":
        raise TraceError(
            f"{path}: no data.result of type matrix in it; allowed is the answer of a Prometheus range query"
        )
    if len(series) != 1 or not isinstance(series[0], dict):
        raise TraceError(f"{path}: {len(series)} series; allowed is one: aggregate the query, such as sum(rate(...))")
    builder = RateBuilder(source=str(path), form="prometheus", skip_bad_rows=skip_bad_rows)
    for place, sample in enumerate(series[0].get("values", ()), start=1):
        try:
            if not isinstance(sample, list) or len(sample) != 2:
                raise ValueError(f"{sample!r} is not [time, value]")
            builder.add(_number(sample[0], "time"), _number(sample[1], "value"))
        except ValueError as error:
            builder.broken(f"value {place}", str(error))
    return builder.build(counts=False, relative=True)


def _number(value: object, name: str) -> float:
    """A number, NaN included. Raises `ValueError` naming the cell."""
    if not isinstance(value, bool) and isinstance(value, (int, float, str)):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError(f"{name} {value!r} is not a number")
