"""The forms that traces come in: one reader each, and how a file's form is recognised.

`FORMS` is the registry: a new form is one reader and one row. Recognition looks at content, never at the name: gzip
and Parquet by their first bytes, JSON by a brace, CSV by its header. Readers hand rows to `TraceBuilder`, which
checks them; a row's place is its line in the text (for Parquet its row, counted from 1). Numbers are read strictly:
NaN, a fraction of a token and an empty cell are broken rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from loadtests.trace import RateTrace, Trace, TraceBuilder, TraceError
from loadtests.trace_rates import RateBuilder, read_prometheus, read_rate_rows

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of requests in rows: the columns it must have, and how one row becomes (arrival_s, tokens in, tokens
    out).

    `relative`: times carry a date, so they are counted from the first row.
    """

    columns: tuple[str, ...]
    request: Callable[[Row], tuple[float, int, int]]
    relative: bool = False


def number(value: object) -> float:
    """A finite number out of a cell. Raises `ValueError` with the reason."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")
    try:
        parsed = float(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a number") from error
    if not math.isfinite(parsed):
        raise ValueError(f"{value!r} is not a finite number")
    return parsed


def whole(value: object) -> int:
    """A whole number out of a cell; 12.0 is one. Raises `ValueError` with the reason."""
    parsed = number(value)
    if parsed != int(parsed):
        raise ValueError(f"{value!r} is not a whole number")
    return int(parsed)


def epoch_s(value: object) -> float:
    """Epoch seconds out of an ISO 8601 date and time; without a zone it is UTC. Raises `ValueError` with the reason."""
    try:
        moment = datetime.fromisoformat(str(value).strip())
    except ValueError as error:
        raise ValueError(f"{value!r} is not a date and time like 2023-11-16 18:17:03.9799600") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


FORMS: dict[str, Form] = {
    "azure": Form(
        columns=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        request=lambda row: (epoch_s(row["TIMESTAMP"]), whole(row["ContextTokens"]), whole(row["GeneratedTokens"])),
        relative=True,
    ),
    "burstgpt": Form(
        columns=("Timestamp", "Request tokens", "Response tokens"),
        request=lambda row: (number(row["Timestamp"]), whole(row["Request tokens"]), whole(row["Response tokens"])),
    ),
    "mooncake": Form(
        columns=("timestamp", "input_length", "output_length"),
        request=lambda row: (
            number(row["timestamp"]) / 1000.0,
            whole(row["input_length"]),
            whole(row["output_length"]),
        ),
    ),
    "requests": Form(
        columns=("arrival_s", "input_tokens", "output_tokens"),
        request=lambda row: (number(row["arrival_s"]), whole(row["input_tokens"]), whole(row["output_tokens"])),
    ),
}
"""Forms of one row a request. `rates` and `prometheus` are rates (`trace_rates`)."""
FORM_NAMES = (*FORMS, "rates", "prometheus")
TEXT_COLUMNS = {
    "burstgpt": {"session": "Session ID", "model": "Model"},
    "requests": {name: name for name in ("session", "tenant", "model")},
}
ALLOWED = (
    "arrival_s,input_tokens,output_tokens (requests) | t_s and count or rate (rates) | "
    "TIMESTAMP,ContextTokens,GeneratedTokens (azure) | Timestamp,Request tokens,Response tokens (burstgpt) | "
    "timestamp,input_length,output_length as JSON lines (mooncake) | Prometheus range-query JSON (prometheus)"
)


def read_any(path: Path, form: str | None, skip_bad_rows: bool) -> Trace | RateTrace:
    """Read `path`; see `trace.read_trace`."""
    if form is not None and form not in FORM_NAMES:
        raise TraceError(f"trace format {form!r}; allowed: {', '.join(FORM_NAMES)}")
    try:
        with _opened(path) as stream:
            return _read(path, stream, form, skip_bad_rows)
    except (OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: neither text in UTF-8 nor Parquet ({error.reason} at byte {error.start})") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, gunzipped if they begin as gzip does."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.open(raw) as unpacked:
            yield unpacked  # type: ignore[misc]  # a GzipFile reads bytes; typeshed does not call it IO[bytes]


def _read(path: Path, stream: IO[bytes], form: str | None, skip_bad_rows: bool) -> Trace | RateTrace:
    head = stream.read(4096)
    stream.seek(0)
    if not head.strip():
        raise TraceError(f"{path}: empty")
    if head.startswith(b"PAR1"):
        columns, rows = _parquet(path, stream)
        return _read_rows(path, columns, rows, form, skip_bad_rows)
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
            return _read_json(path, text, form, skip_bad_rows)
        reader = csv.reader(text)
        columns = tuple(name.strip() for name in next(reader))
        return _read_rows(path, columns, _csv_rows(reader, columns), form, skip_bad_rows)


def _read_json(path: Path, text: IO[str], form: str | None, skip_bad_rows: bool) -> Trace | RateTrace:
    """JSON lines of requests when the first line has their fields, else one document."""
    first = text.readline()
    text.seek(0)
    if form == "prometheus" or (form is None and '"input_length"' not in first and '"arrival_s"' not in first):
        return read_prometheus(path, text, skip_bad_rows)
    columns = FORMS[form].columns if form in FORMS else tuple(_object(first))
    return _read_rows(path, columns, _json_lines(text), form, skip_bad_rows)


def recognise(columns: Sequence[str]) -> str | None:
    """The form whose columns are all there, None when there is no such form."""
    for name, form in FORMS.items():
        if set(form.columns) <= set(columns):
            return name
    if "t_s" in columns and ("count" in columns or "rate" in columns):
        return "rates"
    return None


def _read_rows(
    path: Path, columns: Sequence[str], rows: Iterator[tuple[str, Row | str]], form: str | None, skip_bad_rows: bool
) -> Trace | RateTrace:
    found = form or recognise(columns)
    if found is None:
        raise TraceError(f"{path}: found columns {', '.join(columns) or '(none)'}; allowed: {ALLOWED}")
    if found == "prometheus":
        raise TraceError(f"{path}: not JSON, which the format prometheus is")
    if found == "rates":
        return read_rate_rows(RateBuilder(source=str(path), form=found, skip_bad_rows=skip_bad_rows), columns, rows)
    if missing := [name for name in FORMS[found].columns if name not in columns]:
        raise TraceError(f"{path}: found columns {', '.join(columns)}; {found} needs {', '.join(missing)} too")
    builder = TraceBuilder(source=str(path), form=found, skip_bad_rows=skip_bad_rows)
    _fill(builder, FORMS[found], columns, rows)
    return builder.build()


def _fill(builder: TraceBuilder, form: Form, columns: Sequence[str], rows: Iterator[tuple[str, Row | str]]) -> None:
    """Check every row and add it, with the optional columns that are there."""
    text = {name: column for name, column in TEXT_COLUMNS.get(builder.form, {}).items() if column in columns}
    builder.text = {name: [] for name in text}
    ranked = builder.form == "requests" and "priority" in columns
    builder.priority = [] if ranked else None
    start_s: float | None = None if form.relative else 0.0
    for where, row in rows:
        try:
            if isinstance(row, str):
                raise ValueError(row)
            arrival_s, tokens_in, tokens_out = form.request(row)
            priority = whole(row["priority"]) if ranked else 0
            if start_s is None:
                start_s = builder.origin_s = arrival_s
            builder.add(arrival_s - start_s, tokens_in, tokens_out)
        except KeyError as error:
            builder.broken(where, f"{error.args[0]} is missing")
            continue
        except ValueError as error:
            builder.broken(where, str(error))
            continue
        for name, column in text.items():
            value = row[column]
            builder.text[name].append("" if value is None else str(value))
        if builder.priority is not None:
            builder.priority.append(priority)


def _csv_rows(reader: Any, columns: Sequence[str]) -> Iterator[tuple[str, Row | str]]:
    """(place, row, or what is wrong with it) for every line that is not empty."""
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"line {reader.line_num}", str(error)
            continue
        if not cells:
            continue
        if len(cells) != len(columns):
            yield f"line {reader.line_num}", f"{len(cells)} cells where the header has {len(columns)}"
        else:
            yield f"line {reader.line_num}", dict(zip(columns, cells, strict=True))


def _object(line: str) -> dict[str, Any]:
    """The JSON object in one line, empty when there is none."""
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _json_lines(text: IO[str]) -> Iterator[tuple[str, Row | str]]:
    for place, line in enumerate(text, start=1):
        if not line.strip():
            continue
        yield f"line {place}", _object(line) or "not a JSON object"


def _parquet(path: Path, stream: IO[bytes]) -> tuple[tuple[str, ...], Iterator[tuple[str, Row | str]]]:
    """Columns, and rows in batches. Only columns that some form knows are read: prefix hashes can be most of a file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise TraceError(f"{path}: reading Parquet needs pyarrow: pip install 'tidegate[report]'") from error
    try:
        file = pq.ParquetFile(stream)
    except pa.ArrowException as error:
        raise TraceError(f"{path}: broken Parquet: {error}") from error
    columns = tuple(file.schema_arrow.names)
    known = {name for form in FORMS.values() for name in form.columns} | {"t_s", "count", "rate", "valid", "priority"}
    known |= {column for names in TEXT_COLUMNS.values() for column in names.values()}
    wanted = [name for name in columns if name in known]

    def rows() -> Iterator[tuple[str, Row]]:
        place = 0
        try:
            for batch in file.iter_batches(batch_size=65536, columns=wanted):
                for row in batch.to_pylist():
                    place += 1
                    yield f"row {place}", row
        except pa.ArrowException as error:
            raise TraceError(f"{path}: broken Parquet after row {place}: {error}") from error

    return columns, rows()
