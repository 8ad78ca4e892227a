"""One JSON line for each request, made and written beside the data path.

Where a request ends, `record` keeps it and two values in a list: under 1 us with all that it takes. A beat of the
driver (or the 256th request) turns the list into lines, 2.6 us each, and hands them to a thread that writes. The thread
may stand still for as long as a disk or a pipe likes: lines wait in a buffer of `BUFFER_BYTES`, and what does not fit
is dropped and counted in `dropped`, as is what cannot be written; no request ever waits for its line.

A file is opened for appending and opened again when its name leads to another file than before (rotated, removed),
asked at each write. Several workers may share one target: whole lines go out in one write, to a pipe in pieces that
the kernel keeps together (`PIPE_BUF`).

The fields of a line are those of `Line`. The query of a path is left out, for it may hold secrets, and so is
everything else that a client sent, but its ids, its address and its `traceparent`.
"""

from __future__ import annotations

import os
import re
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from router.core.endpoints import OUTCOMES
from router.errors import BadInput
from router.shell.heads import RequestHead

if TYPE_CHECKING:
    from router.shell.exchange import Exchange

BATCH: Final = 256
"""Requests kept before they are made into lines: at 2.6 us each the loop stands still for 0.7 ms."""
BUFFER_BYTES: Final = 8 << 20
"""Lines that wait for the disk or the reader of a pipe: some 20,000."""
PATH_CHARS_MAX: Final = 1024
"""A longer path is cut: a line stays below `PIPE_BUF`, which is 4,096 bytes."""
NAME_CHARS_MAX: Final = 253
TARGETS_KEPT: Final = 256
STUCK_LOOK_S: Final = 0.25
PAGE: Final = "page"
"""Outcome of what the router answers itself: /health, /ready, /v1/models."""
_trace = re.compile(rb"\r\ntraceparent:[ \t]*([\x21-\x7e]{1,128})[ \t]*\r\n", re.IGNORECASE).search

log = structlog.get_logger(part="access log")


class Line(msgspec.Struct, kw_only=False, gc=False):
    """The fields, in their order; null = there is none, or it is not known."""

    time: str
    """When the request ended, UTC."""
    router: str
    """Name of the router, or of its worker."""
    id: str
    """The id that the engine got as x-request-id; a retry adds -a2."""
    client_id: str | None
    """The client's own x-request-id."""
    peer: str
    """Address of the client's connection."""
    method: str | None
    path: str | None
    """Without the query, as it came, at most 1,024 characters."""
    model: str | None
    """The name asked for, an alias as such."""
    tenant: str | None
    """Where the model has `tenants`, as the client named it."""
    status: int | None
    """What the client was sent; null when it left before."""
    outcome: str
    """How it ended: an outcome of the last attempt, the code of the refusal, `page`, or `client_gone`."""
    endpoint: str | None
    """The endpoint it was sent to last."""
    attempts: int
    queue_s: float
    ttft_s: float | None
    """From arrival to the first byte of the answer, of a stream to its first event."""
    duration_s: float | None
    """From the last byte of the request to the last byte of the answer."""
    tokens_in: int | None
    """Estimated: bytes of the body / 4."""
    events: int | None
    """Server-sent events of the answer; null = it was no event stream."""
    bytes_in: int | None
    """Bytes of the body and of the forwarded header lines."""
    stream: bool
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """What is known of a request whose head was refused."""

    id: bytes
    client_id: bytes | None
    peer: bytes
    status: int
    code: str


class AccessLog:
    """Keeps ended requests, makes lines of them and hands them to `writer`. `now`: the loop's clock, by which requests
    are timed; `router`: its name in each line."""

    def __init__(self, writer: LineWriter, router: str, now: Callable[[], float]) -> None:
        self._writer = writer
        self._router = router
        self._now = now
        self._ended: list[tuple[Exchange, int | str, float]] = []
        self._refused: list[tuple[Refused, float]] = []
        self._encoder = msgspec.json.Encoder()
        self._targets: dict[bytes, str] = {}
        self._second, self._prefix = 0, ""

    @property
    def dropped(self) -> int:
        """Lines lost since boot."""
        return self._writer.dropped

    def record(self, exchange: Exchange, outcome: int | str, now: float) -> None:
        """A request has ended: `outcome` is one of `endpoints.OUTCOMES` by number, or a word."""
        ended = self._ended
        ended.append((exchange, outcome, now))
        if len(ended) >= BATCH:
            self.flush()

    def refused(self, refused: Refused) -> None:
        """A head was refused."""
        self._refused.append((refused, self._now()))
        if len(self._refused) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Make lines of what was kept and hand them on."""
        if not self._ended and not self._refused:
            return
        ended, refused = self._ended, self._refused
        self._ended, self._refused = [], []
        ahead_s = datetime.now(UTC).timestamp() - self._now()
        lines = [self._line(exchange, outcome, now, ahead_s) for exchange, outcome, now in ended]
        lines += [self._refused_line(each, now, ahead_s) for each, now in refused]
        self._writer.put(self._encoder.encode_lines(lines), len(lines))

    def _line(self, exchange: Exchange, outcome: int | str, now: float, ahead_s: float) -> Line:
        head = exchange.head
        if isinstance(outcome, int):
            outcome = OUTCOMES[outcome]
        endpoint, first_at = exchange.sent_to, exchange.first_at
        arrived_at = getattr(exchange, "arrived_at", None)  # unset, as the next two, while it was not a whole request
        asked, tenant, client_id = (
            getattr(exchange, "asked", None),
            getattr(exchange, "tenant_name", None),
            head.client_id,
        )
        stream = exchange.events >= 0
        return Line(
            self._instant(now + ahead_s),
            self._router,
            exchange.id.decode(),
            None if client_id is None else client_id.decode(),
            exchange.client.peer.decode(),
            head.line.method.decode(),
            self._path(head.line.target),
            None if asked is None else asked[:NAME_CHARS_MAX],
            tenant or None,
            exchange.status or None,
            outcome,
            None if endpoint is None else endpoint.id,
            exchange.attempts,
            tenths_of_ms(exchange.waited_s),
            None if first_at is None or arrived_at is None else tenths_of_ms(first_at - arrived_at),
            None if arrived_at is None else tenths_of_ms(now - arrived_at),
            getattr(exchange, "tokens_in", None),
            exchange.events if stream else None,
            getattr(exchange, "size", None),
            stream,
            trace_of(head),
        )

    def _instant(self, epoch_s: float) -> str:
        """2026-01-31T12:00:00.123Z; all but the milliseconds is made once a second."""
        second = int(epoch_s)
        if second != self._second:
            self._second, self._prefix = second, datetime.fromtimestamp(second, UTC).isoformat()[:19]
        return f"{self._prefix}.{int((epoch_s - second) * 1000):03d}Z"

    def _path(self, target: bytes) -> str:
        """The target without its query, cut to `PATH_CHARS_MAX`; common ones are remembered."""
        path = self._targets.get(target)
        if path is None:
            path = target.partition(b"?")[0][:PATH_CHARS_MAX].decode("ascii")
            if len(self._targets) >= TARGETS_KEPT:
                self._targets.clear()
            if len(target) < PATH_CHARS_MAX:
                self._targets[target] = path
        return path

    def _refused_line(self, refused: Refused, now: float, ahead_s: float) -> Line:
        return Line(
            time=self._instant(now + ahead_s),
            router=self._router,
            id=refused.id.decode(),
            client_id=None if refused.client_id is None else refused.client_id.decode(),
            peer=refused.peer.decode(),
            method=None,
            path=None,
            model=None,
            tenant=None,
            status=refused.status,
            outcome=refused.code,
            endpoint=None,
            attempts=0,
            queue_s=0.0,
            ttft_s=None,
            duration_s=None,
            tokens_in=None,
            events=None,
            bytes_in=None,
            stream=False,
            traceparent=None,
        )


def tenths_of_ms(seconds: float) -> float:
    """Rounded to 0.1 ms: 0.1 us less than `round`, of which a line has three."""
    return int(seconds * 1e4 + 0.5) / 1e4


def trace_of(head: RequestHead) -> str | None:
    """The client's traceparent, if it sent one. The two finds cost half of the search and are mostly all there is."""
    lines = head.lines
    if lines.find(b"arent:") < 0 and lines.find(b"ARENT:") < 0:
        return None
    found = _trace(lines)
    return None if found is None else found[1].decode()


class LineWriter:
    """Writes lines to a file or to standard output in a thread of its own, between `start` and `close`. `dropped`:
    lines that were not written, for lack of room or because writing failed. `room`: bytes that may wait.
    """

    def __init__(self, target: str, room: int = BUFFER_BYTES) -> None:
        self._path = None if target == "-" else Path(target)
        self._room = room
        self._news = threading.Condition()
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._held = 0
        self._closing = False
        self._failing = False
        self._torn = False
        self._fd = -1
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def open(self) -> None:
        """Open the target. Raises `BadInput` when it cannot be written to."""
        if self._path is None:
            self._fd = 1
            return
        try:
            self._fd = opened(self._path)
        except OSError as error:
            raise BadInput(
                f"--access-log: {self._path} cannot be written to: {error.strerror}; "
                "allowed: a file in an existing folder, - (standard output) or off"
            ) from error

    def start(self) -> None:
        """Start writing what has come and comes."""
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def put(self, lines: bytes, count: int) -> None:
        """Take `count` whole lines, or drop them when there is no room. Never waits for the target."""
        with self._news:
            if self._held + len(lines) > self._room:
                self.dropped += count
                return
            self._held += len(lines)
            self._waiting.append((lines, count))
            self._news.notify()

    def close(self, bound_s: float) -> None:
        """Write what waits, for at most `bound_s`; then give it up."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(bound_s)
        if self._thread is None or not self._thread.is_alive():
            self._shut()

    def _run(self) -> None:
        """The thread."""
        while True:
            with self._news:
                while not self._waiting and not self._closing:
                    self._news.wait()
                if not self._waiting:
                    return
                lines, count = self._waiting.popleft()
            failed = self._write(lines)
            with self._news:
                self._held -= len(lines)
                self.dropped += min(failed, count)

    def _write(self, lines: bytes) -> int:
        """Write whole lines; returns how many of them were lost."""
        rest = memoryview(lines)
        try:
            self._follow()
            if self._torn:  # the last write ended inside a line: let the next one begin on its own
                os.write(self._fd, b"\n")
                self._torn = False
            pipe = stat.S_ISFIFO(os.fstat(self._fd).st_mode)
            while rest:
                end = len(rest) if not pipe else whole_lines(lines, len(lines) - len(rest))
                rest = rest[self._send(rest[:end]) :]
        except OSError as error:
            if not self._failing:
                log.error("access log cannot be written; its lines are dropped", problem=str(error), target=str(self))
            self._failing = True
            self._torn = self._torn or (0 < len(rest) < len(lines) and lines[-len(rest) - 1] != 0x0A)
            return lines.count(b"\n", len(lines) - len(rest))
        if self._failing:
            log.info("access log is written again", target=str(self), dropped=self.dropped)
        self._failing = False
        return 0

    def _send(self, piece: memoryview) -> int:
        """One write, which on a pipe that somebody made non-blocking may have to wait for its reader."""
        while True:
            try:
                return os.write(self._fd, piece)
            except BlockingIOError:
                select.select([], [self._fd], [], STUCK_LOOK_S)

    def _follow(self) -> None:
        """Open the file again if its name leads elsewhere by now. Raises `OSError`."""
        if self._path is None:
            return
        if self._fd >= 0:
            with suppress(FileNotFoundError):
                found, ours = os.stat(self._path), os.fstat(self._fd)
                if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                    return
            self._shut()
        self._fd = opened(self._path)
        self._torn = False

    def _shut(self) -> None:
        if self._path is not None and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __str__(self) -> str:
        return "standard output" if self._path is None else str(self._path)


def opened(path: Path) -> int:
    """A descriptor that appends; readable by others only if the umask says so. Raises `OSError`, also for a named pipe that
    nobody reads: to wait for its reader would keep the router from its start.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)


def whole_lines(lines: bytes, start: int) -> int:
    """Length of the whole lines from `start` on that a pipe takes in one piece; of one line when that is longer."""
    if len(lines) - start <= select.PIPE_BUF:
        return len(lines) - start
    end = lines.rfind(b"\n", start, start + select.PIPE_BUF)
    return (end if end >= 0 else lines.index(b"\n", start)) + 1 - start
