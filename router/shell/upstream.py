"""One connection to an engine: sends a request, frames the answer, forwards it as it comes, and goes back to its
pool.

The plane decides who is sent where; this protocol only knows its current exchange. Framing is by content-length,
chunks (llhttp reads them BEFORE they are forwarded, so nothing of a second, smuggled answer leaks) or the
connection's end; 1xx answers are swallowed. How exchanges end stands in `endings.py`. States are ints and tested in
the order of how often they occur; a chunk of an event stream costs 0.4 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from router.core.endpoints import Endpoint
from router.shell.answers import form_of
from router.shell.connection import CHUNKED, COUNTED, EVENTS, FIRST_EVENT, HEAD, IDLE, UNCHUNK, UNTIL_END
from router.shell.endings import EndingConnection
from router.shell.exchange import Exchange
from router.shell.framing import TERMINAL, BadChunk, Chunks, chunk
from router.shell.heads import END, HEAD_MAX, AnswerHead, read_answer
from router.shell.lines import BadHead
from router.shell.saturated import SATURATED_ANSWERS, retry_after_of, with_retry_after
from router.shell.streams import Regrouping, events_in, first_number, only_comments

if TYPE_CHECKING:
    from router.shell.http import DataPlane

INTERIM_MAX: Final = 8
"""So many 1xx heads may stand before an answer, in one read or in many."""


class Upstream(EndingConnection):
    """A connection to one endpoint's engine and the answer that it is reading.

    `_through`: the reads of an event stream may pass as they come, for the last one closed both framings.
    """

    __slots__ = (
        "_feed",
        "_left",
        "_pieces",
        "_reusable",
        "_through",
    )

    _feed: Callable[[bytes], None]
    _left: int
    _pieces: list[bytes]
    _through: bool
    _reusable: bool

    def __init__(self, plane: DataPlane, endpoint: Endpoint, exchange: Exchange) -> None:
        super().__init__(plane, endpoint, exchange)
        self._chunks = None

    # ---- bytes of the answer

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes from the engine."""
        state = self.state
        if state == EVENTS:
            self.stamp = self.plane.tick
            pieces = self._pieces
            pieces.clear()  # what the last read gave stays until now: if the engine dies, was that the stream's end
            try:
                self._feed(data)
            except BadChunk:
                pieces.clear()
                self._broken()
                return
            count = 0
            if data[-4:] == b"\n\n\r\n" and len(pieces) == 1 and self._through:
                piece = pieces[0]
                if piece.find(b"\n") == len(piece) - 2:  # one event of one line, the commonest: 0.1 us instead of 0.25
                    count = 1
                elif piece[-2:] == b"\n\n":
                    count = events_in(piece)
            if count:  # the read ends with a whole event in a whole chunk, and so did all before it
                self.events += count
                self.meter.tokens_out_now += count
                self._write(data)
            else:
                self._regroup(data, self._closed(data), b"")
        elif state == COUNTED:
            self.stamp = self.plane.tick
            left = self._left - len(data)
            if left > 0:
                self._left = left
                self._write(data)
            else:
                self._write(data if left == 0 else data[: self._left])
                self._finish(self._reusable and left == 0)
        elif state == HEAD:
            self._head(data)
        else:
            self._seldom(data)

    def _seldom(self, data: bytes) -> None:
        """Bytes in one of the less frequent states."""
        self.stamp = self.plane.tick
        if self.state == UNTIL_END:
            self._unchunked(data)
        elif self.state == IDLE or self._chunks is None:  # nobody asked for them: the next client must not get them
            self.drop()
        else:
            try:
                self._feed(data)
            except BadChunk:
                self._broken()
                return
            if self.state == FIRST_EVENT:
                self._first_event(data, b"")
            else:
                self._chunked(data, b"")

    def _head(self, data: bytes) -> None:
        """Bytes of the answer's head, perhaps with the body's first."""
        if self._part:
            data = self._part + data
            self._part = b""
        while True:
            end = data.find(END)
            if end < 0 or end > HEAD_MAX:
                if len(data) > HEAD_MAX:
                    self._broken()
                else:
                    self._part = data
                return
            try:
                head = read_answer(data[:end])
            except BadHead:
                self._broken()
                return
            data = data[end + 4 :]
            if head.status >= 200:
                self._answer(head, data)
                return
            if self._interim_of is not self.exchange:
                self._interim_of, self._interims = self.exchange, 0
            self._interims += 1
            if head.status == 101 or self._interims > INTERIM_MAX:  # 101: an upgrade that nobody asked for
                self._broken()
                return
            if not data:
                return

    def _spared(self, head: AnswerHead, rest: bytes) -> bool:
        """The engine says that it is full. True when the request goes elsewhere, or waits, and nothing is passed on."""
        exchange, plane = self.exchange, self.plane
        assert exchange is not None
        assert self.transport is not None
        verdict = plane.dispatcher.full(exchange, head.status, retry_after_of(head.text), plane.now())
        if verdict is None:
            return False
        self.exchange = None
        self.state = IDLE
        if head.keep and head.length == len(rest) and not self.transport.get_write_buffer_size():
            self.endpoint.pool.append(self)
        else:
            self.dead = True
            self.transport.abort()
        plane.carry_on(exchange, verdict)
        return True

    def _answer(self, head: AnswerHead, rest: bytes) -> None:
        """The head is whole: forward it and whatever came with it."""
        exchange = self.exchange
        assert exchange is not None
        plane = self.plane
        self.stamp = plane.tick
        status = head.status
        if status in SATURATED_ANSWERS and self._spared(head, rest):
            return
        self._status = exchange.status = status
        self._reusable = head.keep
        asked = exchange.head
        bodiless = head.bodiless or asked.line.method == b"HEAD"
        text = head.text if status not in SATURATED_ANSWERS else with_retry_after(head.text)
        if not bodiless and not head.chunked and head.length < 0:
            exchange.keep = self._reusable = False
        elif head.chunked and asked.line.old:
            text, exchange.keep = head.unchunked(), False
        tail = b"\r\n\r\n" if exchange.keep else b"\r\nconnection: close\r\n\r\n"
        first = b"".join((text, exchange.answer_fields(), tail))
        exchange.body = b""  # no retry after this: the body need not be kept
        assert self.transport is not None, "answered without a connection"
        if exchange.reserved and not self.transport.get_write_buffer_size():  # else the transport still holds it
            plane.memory.give_up(exchange)
        stream = head.events and status == 200
        if not (stream and head.chunked):
            self.first_at = exchange.first_at = plane.now()
            exchange.model.meter.ttft.observe(self.first_at - exchange.arrived_at)
        if bodiless:
            self._write(first)
            self._finish(self._reusable and not rest)
        elif head.chunked:
            self._answer_chunked(first, rest, stream)
        elif head.length >= 0:
            self._answer_counted(first, rest, head.length)
        else:
            self.state = UNTIL_END
            self._stream(stream)
            self._write(first)
            if rest:
                self._unchunked(rest)

    def _answer_counted(self, first: bytes, rest: bytes, length: int) -> None:
        """An answer of a known length begins; what exceeds it is cut off."""
        self._left = length - len(rest)
        if self._left > 0:
            self.state = COUNTED
            self._write(first + rest)
        else:
            self._write(first + (rest if not self._left else rest[:length]))
            self._finish(self._reusable and not self._left)

    def _stream(self, stream: bool) -> None:
        """Is the answer an event stream: then it is forwarded by events."""
        exchange = self.exchange
        assert exchange is not None
        self.groups = Regrouping() if stream else None
        self.meter = exchange.model.meter
        self.events = 0
        if stream:
            exchange.events = 0

    def _answer_chunked(self, first: bytes, rest: bytes, stream: bool) -> None:
        """A chunked answer begins; nothing is forwarded before its first bytes are found to be well framed."""
        if self._chunks is None:
            self._chunks = Chunks()
            self._feed = self._chunks.feed
            self._pieces = self._chunks.pieces
        exchange = self.exchange
        assert exchange is not None
        self._chunks.start()
        try:
            if rest:
                self._feed(rest)
        except BadChunk:
            self._broken()
            return
        self._stream(stream)
        if exchange.head.line.old:
            self.state = UNCHUNK
            self._chunked(rest, first)
        elif stream:
            self.state = FIRST_EVENT
            self._through = True
            self._first_event(rest, first)
        else:
            self.state = CHUNKED
            self._chunked(rest, first)

    def _chunked(self, data: bytes, first: bytes) -> None:
        """A read of chunks that may pass as they came, or lose their framing for a client of HTTP/1.0."""
        chunks = self._chunks
        assert chunks is not None
        body = chunks.take()
        data = self._up_to_end(data)
        if self.state == CHUNKED:
            self._write(first + data)
        else:
            if first:
                self._write(first)
            self._unchunked(body)
        if chunks.ended:
            if self.state == UNCHUNK and self.groups is not None:
                self._write(self.groups.rest(b""))
            self._finish(self._reusable)

    def _up_to_end(self, data: bytes) -> bytes:
        """What of a read belongs to the chunks; a connection with a surplus is not used again."""
        assert self._chunks is not None
        mine = self._chunks.up_to_end(data)
        self._reusable = self._reusable and len(mine) == len(data)
        return mine

    def _unchunked(self, body: bytes) -> None:
        """Body bytes for a client that gets no chunks; of an event stream only whole events."""
        if self.groups is not None:
            body = self._counted(self.groups.take(body))
        if body:
            self._write(body)

    def _counted(self, events: bytes) -> bytes:
        """Meter whole events on their way to the client."""
        count = events_in(events)
        self.events += count
        self.meter.tokens_out_now += count
        return events

    def _first_event(self, data: bytes, first: bytes) -> None:
        """An event stream until its first bytes: engines send the head at once and the first token later."""
        chunks, exchange, groups = self._chunks, self.exchange, self.groups
        assert chunks is not None
        assert exchange is not None
        assert groups is not None
        if chunks.ended or not only_comments(chunks.pieces):
            self.state = EVENTS
            self.first_at = exchange.first_at = self.plane.now()
            self.meter.ttft.observe(self.first_at - exchange.arrived_at)
            self.plane.dispatcher.first_event(self.endpoint, exchange, self.first_at)
            if form_of(exchange.head.line.target).numbered:
                groups.first = first_number(b"".join(chunks.pieces))
        self._regroup(data, self._closed(data) or not data, first)

    def _closed(self, data: bytes) -> bool:
        """Does a read surely end with a whole event in a whole chunk. Its last bytes tell only where events end with LF
        LF: the CRLF of CRLF CRLF may be the chunk's or the event's, so such streams stay regrouped.
        """
        return data.endswith(b"\n\n\r\n") and bool(self._pieces) and self._pieces[-1].endswith(b"\n\n")

    def _regroup(self, data: bytes, closed: bool, first: bytes) -> None:
        """A read of an event stream that does not simply pass: see `streams.py`. `first`: the head, if it is still
        unsent.
        """
        chunks, groups = self._chunks, self.groups
        assert chunks is not None
        assert groups is not None
        through, self._through = self._through, closed
        body = chunks.take()
        if not chunks.ended:
            events = self._counted(groups.take(body))
            if first or events:
                self._write(first + chunk(events) if events else first)
            return
        rest = self._counted(groups.rest(body))
        if through:  # the client stands between chunks: the end may pass as it came, trailers and all
            self._write(first + self._up_to_end(data))
        else:
            self._write(first + (chunk(rest) if rest else b"") + TERMINAL)
        self._finish(self._reusable)
