"""Chunk framing, judged by llhttp only: a parser primed with a constant head sees nothing but the chunks.

`Chunks` reads an engine's chunked answers, message after message on one connection; `ChunkedBody` reads one chunked
request body. Both collect the body's pieces through a bound method of a list or a bytearray, so no Python frame runs per
chunk (feeding one event costs 0.09 us). Request bodies are collected in one piece: a list of the smallest pieces would
hold up to 17 times their bytes. llhttp stays dead after an error; the connection it belongs to is dropped then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import httptools

from router.shell.lines import BadHead

TERMINAL: Final = b"0\r\n\r\n"
ANSWER_PRIME: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
REQUEST_PRIME: Final = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
EMPTY_LINE: Final = b"\r\n\r\n"
EMPTY_LINES_MAX: Final = 64
"""More empty lines in one read are not looked at one by one: 0.3 us each, and JSON has none. A body that ends behind
so many of them must end with its read.
"""
BadChunk = httptools.HttpParserError


def chunk(data: bytes) -> bytes:
    """`data` as one chunk; it must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Surplus(Exception):
    """Bytes of a second message followed the first one's end. llhttp wraps it into a `BadChunk`."""


class Chunks:
    """Framing of one connection's chunked answers. `feed` raises `BadChunk`, also for bytes behind the end of an
    answer; `ended`: the answer that began with `start` is complete; `pieces`: body bytes that nobody took yet, always
    one list.
    """

    __slots__ = ("_seen", "ended", "feed", "on_body", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.ended = False
        self.feed = httptools.HttpResponseParser(self).feed_data

    def on_message_begin(self) -> None:
        """llhttp: a message begins."""
        if self.ended:
            raise Surplus

    def on_message_complete(self) -> None:
        """llhttp: the terminal chunk and its trailers are read."""
        self.ended = True

    def start(self) -> None:
        """Be ready for the next answer's chunks."""
        self.pieces.clear()
        self.ended = False
        self._seen = b""
        self.feed(ANSWER_PRIME)

    def up_to_end(self, data: bytes) -> bytes:
        """What of a read that was fed belongs to the answer; asked for each read that is forwarded as it came.

        llhttp skips line ends behind a message without a word. The message's own end is a line that is not empty (the
        last chunk's size, or a trailer) and an empty one: what follows is surplus.
        """
        seen = self._seen
        if not self.ended:
            self._seen = (seen + data[-3:])[-3:]
            return data
        text = len(data.rstrip(b"\r\n"))
        before = 0 if text else len(seen) - len(seen.rstrip(b"\r\n"))
        return data[: text + len(EMPTY_LINE) - before]

    def take(self) -> bytes:
        """The body bytes collected so far."""
        pieces = self.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body


class ChunkedBody:
    """One chunked request body, collected whole in `store`, at most `limit` bytes. Trailers and chunk extensions are
    dropped. The parser and this object hold each other until `close`, which its owner calls when it is done.

    llhttp does not tell where in a read the body ended, so it is fed up to each empty line, where alone a body can end,
    and asked. What follows is the next request, however the bytes were cut into reads.
    """

    __slots__ = ("_feed", "_seen", "ended", "limit", "on_body", "size", "store")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.store = bytearray()
        self.on_body = self.store.extend
        self.ended = False
        self.size = 0
        self._seen = b""
        self._feed: Callable[[bytes], None] = httptools.HttpRequestParser(self).feed_data
        self._feed(REQUEST_PRIME)

    def on_message_begin(self) -> None:
        """llhttp: a message begins."""
        if self.ended:
            raise Surplus

    def on_message_complete(self) -> None:
        """llhttp: the terminal chunk and its trailers are read."""
        self.ended = True

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; None when more are needed, else what follows the body. Raises `BadHead`: bad framing, or too
        large.
        """
        try:
            stop = self._stop(data)
        except BadChunk:
            raise BadHead(400, "the chunked body is malformed") from None
        self.size += stop
        if self.size > self.limit:  # framing counts too: a body of one-byte chunks costs its bytes on the wire
            raise BadHead(413, f"the body is larger than {self.limit} bytes")
        if not self.ended:
            self._seen = (self._seen + data[-3:])[-3:]
            return None
        return data[stop:]

    def _stop(self, data: bytes) -> int:
        """Feed a read; gives how much of it belongs to the body. Raises `BadChunk`."""
        start = 0
        for stop in islice(_empty_lines(self._seen, data), EMPTY_LINES_MAX):
            self._feed(data[start:stop])
            if self.ended:
                return stop
            start = stop
        self._feed(data[start:])  # if the body ends here nevertheless, then with the read, or llhttp finds a surplus
        return len(data)

    def close(self) -> None:
        """Let go of the parser, so that the body is freed with its last user and not when cycles are collected."""
        self._feed = _closed


def _empty_lines(seen: bytes, data: bytes) -> Iterator[int]:
    """Where in `data` empty lines end; `seen`: the last bytes before it, at most 3."""
    seam = seen + data[:3]
    found = seam.find(EMPTY_LINE)
    while found >= 0:
        yield found + 4 - len(seen)
        found = seam.find(EMPTY_LINE, found + 1)
    found = data.find(EMPTY_LINE)
    while found >= 0:
        yield found + 4
        found = data.find(EMPTY_LINE, found + 1)


def _closed(data: bytes) -> None:
    raise AssertionError(f"{len(data)} bytes fed into a body that has ended")


class CountedBody:
    """A body of known length that comes in more than one read, collected in `store`."""

    __slots__ = ("left", "store")

    def __init__(self, length: int) -> None:
        self.store = bytearray()
        self.left = length

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; None when more are needed, else what follows the body."""
        left = self.left - len(data)
        if left > 0:
            self.left = left
            self.store += data
            return None
        self.store += data[: self.left]
        surplus = data[self.left :]
        self.left = 0
        return surplus

    def close(self) -> None:
        """Nothing to let go of."""
