"""The answers of one connection, read more strictly than any client does: whatever is not exactly HTTP/1.1 with one
framing, or not exactly an event stream, is `Malformed`.

No socket and no clock: bytes in, state out, so that every refusal can be shown by a table of bytes. It knows nothing
of what was asked; that is `soak_judge`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

HEAD_MAX: Final = 16 << 10
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\x20-\x7e]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
HEAD, COUNTED, CHUNK_SIZE, CHUNK_DATA, ENDED = range(5)


class Malformed(Exception):
    """Bytes that a strict client refuses; the message says which."""


class Events:
    """A body as server-sent events: `data: VALUE` lines, one an event, each ended by an empty line. `values`: parsed
    JSON objects in order; `done`: [DONE] came, after which nothing may.
    """

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.done = False
        self._part = b""

    def feed(self, data: bytes) -> None:
        """Body bytes. Raises `Malformed`."""
        *whole, self._part = (self._part + data).split(b"\n\n")
        for event in whole:
            self._event(event)

    def end(self) -> None:
        """The body is complete. Raises `Malformed` for half an event."""
        if self._part:
            raise Malformed(f"the stream ends inside an event: {self._part[-80:]!r}")

    def _event(self, event: bytes) -> None:
        if self.done:
            raise Malformed(f"an event after [DONE]: {event[:80]!r}")
        if not event.startswith(b"data: ") or b"\n" in event or b"\r" in event:
            raise Malformed(f"not an event of one data line: {event[:120]!r}")
        if event == b"data: [DONE]":
            self.done = True
            return
        try:
            value = orjson.loads(event[6:])
        except orjson.JSONDecodeError as error:
            raise Malformed(f"an event that is not JSON ({error}): {event[:120]!r}") from error
        if not isinstance(value, dict):
            raise Malformed(f"an event that is not an object: {event[:120]!r}")
        self.values.append(value)


class Reader:
    """One answer. `status` 0 until its head is whole; `fields` lower-cased; `events` for an event stream, else `body`
    grows. `expect`: one 100 Continue may come before it, `continued` says that it did.
    """

    def __init__(self, *, expect: bool = False) -> None:
        self.status = 0
        self.fields: dict[str, str] = {}
        self.body = bytearray()
        self.events: Events | None = None
        self.continued = False
        self._expect = expect
        self._state = HEAD
        self._data = b""
        self._left = 0

    @property
    def begun(self) -> bool:
        """Has any byte come."""
        return bool(self.status or self._data or self.continued)

    @property
    def ended(self) -> bool:
        """Is the answer whole."""
        return self._state == ENDED

    def feed(self, data: bytes) -> bytes:
        """Bytes of the connection; gives those behind this answer's end. Raises `Malformed`."""
        self._data += data
        while self._state != ENDED and self._step():
            pass
        if self._state != ENDED:
            return b""
        rest, self._data = self._data, b""
        return rest

    def _step(self) -> bool:
        """Take one element from the bytes at hand; False when it is not whole yet."""
        if self._state == HEAD:
            return self._head()
        if self._state == CHUNK_SIZE:
            return self._chunk_size()
        take = self._data[: self._left]
        if not take:
            return False
        self._data = self._data[len(take) :]
        self._left -= len(take)
        if self._state == COUNTED:
            self._take(take)
            if not self._left:
                self._end()
            return True
        return self._chunk(take)

    def _head(self) -> bool:
        if self._expect and not self.continued and self._data.startswith(_CONTINUE):
            self._data = self._data[len(_CONTINUE) :]
            self.continued = True
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if len(head) > HEAD_MAX:
            raise Malformed(f"a head of more than {HEAD_MAX} bytes")
        if not end:
            if self._data and not b"HTTP/1.1 ".startswith(self._data[:9]):
                raise Malformed(f"not an answer: {self._data[:80]!r}")
            return False
        self._data = rest
        self._read_head(head)
        return True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        found = _STATUS_LINE.fullmatch(first)
        if found is None:
            raise Malformed(f"the status line {first[:120]!r}")
        self.status = int(found[1])
        if self.status < 200 or self.status in (204, 304):
            raise Malformed(f"status {self.status}, which nobody asked for")
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise Malformed(f"the header line {line[:120]!r}")
            name = field[1].decode().lower()
            if name in self.fields:
                raise Malformed(f"the header {name!r} twice")
            self.fields[name] = field[2].decode()
        self._framing()

    def _framing(self) -> None:
        length, coding = self.fields.get("content-length"), self.fields.get("transfer-encoding")
        if (length is None) == (coding is None):
            raise Malformed(f"content-length {length!r} with transfer-encoding {coding!r}: exactly one is needed")
        if self.fields.get("content-type", "").startswith("text/event-stream"):
            self.events = Events()
        if coding is not None:
            if coding.lower() != "chunked":
                raise Malformed(f"transfer-encoding {coding!r}")
            self._state = CHUNK_SIZE
            return
        if length is None or not length.isascii() or not length.isdigit():
            raise Malformed(f"content-length {length!r}")
        self._left = int(length)
        self._state = COUNTED
        if not self._left:
            self._end()

    def _chunk_size(self) -> bool:
        line, end, rest = self._data.partition(b"\r\n")
        if not end:
            if len(line) > 10:
                raise Malformed(f"the chunk size {line[:40]!r}")
            return False
        if not _CHUNK_SIZE.fullmatch(line):
            raise Malformed(f"the chunk size {line[:40]!r}")
        size = int(line, 16)
        if size:
            self._left, self._data = size + 2, rest
            self._state = CHUNK_DATA
            return True
        if not rest.startswith(b"\r\n"):
            if len(rest) >= 2 or not b"\r\n".startswith(rest):
                raise Malformed(f"behind the last chunk: {rest[:40]!r}")
            return False
        self._data = rest[2:]
        self._end()
        return True

    def _chunk(self, take: bytes) -> bool:
        """Part of a chunk with the line end behind it: the last two of `_left` bytes are that."""
        total = len(take) + self._left
        inside, ends_at = max(total - 2, 0), 2 - min(total, 2)
        self._take(take[:inside])
        tail = take[inside:]
        if tail != b"\r\n"[ends_at : ends_at + len(tail)]:
            raise Malformed(f"a chunk that is not ended by a line end but by {tail!r}")
        if not self._left:
            self._state = CHUNK_SIZE
        return True

    def _take(self, data: bytes) -> None:
        if self.events is not None:
            self.events.feed(data)
        else:
            self.body += data

    def _end(self) -> None:
        if self.events is not None:
            self.events.end()
        self._state = ENDED
