"""One connection to an engine: sends a request, frames the answer, forwards it as it comes, and goes back to its
pool.

The plane decides who is sent where; this protocol only knows its current exchange. Framing is by content-length,
chunks (llhttp reads them BEFORE they are forwarded, so nothing of a second, smuggled answer leaks) or the
connection's end; 1xx answers are swallowed. The slot is held until the last byte. How an attempt ends:

| until now                        | the engine's connection is lost, or breaks HTTP                               |
|----------------------------------|-------------------------------------------------------------------------------|
| reused connection, no byte back  | `plane.replay`: the same endpoint once more, on a fresh connection            |
| no byte back                     | `plane.attempt_failed`: the ladder decides                                    |
| part of a head                   | 502                                                                           |
| inside an event stream           | half event dropped, error event, terminal chunk; the client's connection lives |
| inside any other answer          | the client is cut off, it must not take half an answer for a whole one        |

States are ints and tested in the order of how often they occur; a chunk of an event stream costs 0.4 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from router.core.endpoints import CUT, IGNORED, SUCCESS, TIMEOUT, UNREACHABLE, Endpoint, outcome_of
from router.core.meter import Meter
from router.core.refusals import BROKEN, INTERNAL, TIMED_OUT, Refusal
from router.core.refusals import CUT as CUT_OFF
from router.shell.answers import form_of
from router.shell.connection import CONNECTING, HEAD, IDLE, EngineConnection
from router.shell.exchange import Exchange
from router.shell.framing import TERMINAL, BadChunk, Chunks, chunk
from router.shell.heads import END, HEAD_MAX, AnswerHead, read_answer
from router.shell.lines import BadHead
from router.shell.streams import Regrouping, events_in

if TYPE_CHECKING:
    from router.shell.http import DataPlane

FIRST_EVENT, EVENTS, CHUNKED, COUNTED, UNTIL_END, UNCHUNK = range(3, 9)  # and those of `connection.py`
INTERIM_MAX: Final = 8
REPLAY_AFTER_S: Final = 0.05
"""A replay waits this long, its slot held. A killed process closes its connections before its listener (seen on Linux
6.1): a fresh connection made in that gap would be reset after the request was sent, too late to go elsewhere.
"""


class Upstream(EngineConnection):
    """A connection to one endpoint's engine and the answer that it is reading.

    `meter`, `events`, `groups`, `_through` (reads may pass as they come): of an event stream · `first_at`: when the
    answer's first byte (a stream's first event) came.
    """

    __slots__ = (
        "_chunks",
        "_feed",
        "_left",
        "_pieces",
        "_reusable",
        "_status",
        "_through",
        "events",
        "first_at",
        "groups",
        "meter",
    )

    _chunks: Chunks | None
    _feed: Callable[[bytes], None]
    _left: int
    _pieces: list[bytes]
    _through: bool
    _reusable: bool
    _status: int
    events: int
    first_at: float
    groups: Regrouping
    meter: Meter

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
            try:
                self._feed(data)
            except BadChunk:
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
                pieces.clear()
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
            self._write(data)
        elif self.state == IDLE or self._chunks is None:  # nobody asked for them: the next client must not get them
            self.drop()
        else:
            chunks = self._chunks
            try:
                self._feed(data)
            except BadChunk:
                self._broken()
                return
            if self.state == FIRST_EVENT:
                self._first_event(data, b"")
            else:
                body = chunks.take()
                self._write(data if self.state == CHUNKED else body)
                if chunks.ended:
                    self._finish(self._reusable and data.endswith(b"\n"))

    def _head(self, data: bytes) -> None:
        """Bytes of the answer's head, perhaps with the body's first."""
        if self._part:
            data = self._part + data
            self._part = b""
        for _ in range(INTERIM_MAX):
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
            if head.status == 101:  # an upgrade that nobody asked for: Upgrade is not forwarded
                break
            if not data:
                return
        self._broken()

    def _answer(self, head: AnswerHead, rest: bytes) -> None:
        """The head is whole: forward it and whatever came with it."""
        exchange = self.exchange
        assert exchange is not None
        plane = self.plane
        self.stamp = plane.tick
        status = self._status = exchange.status = head.status
        self._reusable = head.keep
        asked = exchange.head
        bodiless = head.bodiless or asked.line.method == b"HEAD"
        text = head.text
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
        events = head.events and head.chunked and status == 200
        if not events:
            self.first_at = exchange.first_at = plane.now()
            exchange.model.meter.ttft.observe(self.first_at - exchange.arrived_at)
        if bodiless:
            self._write(first)
            self._finish(self._reusable and not rest)
        elif head.chunked:
            self._answer_chunked(first, rest, events and not asked.line.old)
        elif head.length >= 0:
            self._left = head.length - len(rest)
            if self._left > 0:
                self.state = COUNTED
                self._write(first + rest)
            else:
                self._write(first + (rest if not self._left else rest[: head.length]))
                self._finish(self._reusable and not self._left)
        else:
            self.state = UNTIL_END
            self._write(first + rest)

    def _answer_chunked(self, first: bytes, rest: bytes, events: bool) -> None:
        """A chunked answer begins; nothing is forwarded before its first bytes are found to be well framed."""
        if self._chunks is None:
            self._chunks = Chunks()
            self._feed = self._chunks.feed
            self._pieces = self._chunks.pieces
        chunks = self._chunks
        exchange = self.exchange
        assert exchange is not None
        chunks.start()
        try:
            if rest:
                self._feed(rest)
        except BadChunk:
            self._broken()
            return
        if events:
            self.state = FIRST_EVENT
            self.groups = Regrouping()
            self._through = True
            self.meter = exchange.model.meter
            self.events = exchange.events = 0
            self._first_event(rest, first)
            return
        body = chunks.take()
        self.state = UNCHUNK if exchange.head.line.old else CHUNKED
        self._write(first + (rest if self.state == CHUNKED else body))
        if chunks.ended:
            self._finish(self._reusable and rest.endswith(b"\n"))

    def _first_event(self, data: bytes, first: bytes) -> None:
        """An event stream until its first bytes: engines send the head at once and the first token later."""
        chunks = self._chunks
        exchange = self.exchange
        assert chunks is not None
        assert exchange is not None
        if chunks.pieces or chunks.ended:
            self.state = EVENTS
            self.first_at = exchange.first_at = self.plane.now()
            self.meter.ttft.observe(self.first_at - exchange.arrived_at)
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
        through, self._through = self._through, closed
        body = chunks.take()
        count = events_in(body)
        self.events += count
        self.meter.tokens_out_now += count
        if not chunks.ended:
            if ready := first + groups.take(body):
                self._write(ready)
            return
        if through:  # the client stands between chunks: the end may pass as it came, trailers and all
            self._write(first + data)
        else:
            self._write(first + groups.rest(body) + TERMINAL)
        self._finish(self._reusable and data.endswith(b"\n"))

    # ---- the end of an exchange

    def _finish(self, reusable: bool) -> None:
        """The last byte of the answer is forwarded."""
        exchange, plane = self.exchange, self.plane
        assert exchange is not None
        assert self.transport is not None, "finished without a connection"
        if self.state == EVENTS:
            exchange.events = self.events
            if self.events > 1:
                gaps = self.events - 1
                self.meter.gap.observe((plane.now() - self.first_at) / gaps, gaps)
        self.exchange = None
        self.state = IDLE
        if self.paused:  # paused on its last bytes, it would hang its next user
            self.resume()
        # A request that is not wholly sent although its answer is: what remains would be read as the next request.
        if reusable and not self.dead and not self.transport.get_write_buffer_size():
            self.stamp = plane.tick
            self.endpoint.pool.append(self)
        else:
            self.dead = True
            self.transport.abort()  # not `close`: it waits for the rest to leave, which an engine may never read
        status = self._status
        plane.ended(exchange, SUCCESS if status < 400 else outcome_of(status))

    def _broken(self) -> None:
        """The engine broke HTTP."""
        exchange = self.exchange
        self.drop()
        if exchange is not None:
            self._cut(exchange, CUT, BROKEN)

    def timed_out(self, outcome: int) -> None:
        """A bound on the engine's side passed. `outcome`: TIMEOUT, or IGNORED when it says nothing about the engine."""
        exchange, state = self.exchange, self.state
        if exchange is None:
            return
        self.plane.counters.timeouts += 1
        self.drop()
        if outcome == TIMEOUT and (state == CONNECTING or (state == HEAD and not self._part)):
            self.plane.attempt_failed(exchange, TIMEOUT, sent=state != CONNECTING)
        else:
            self._cut(exchange, outcome, TIMED_OUT)

    def unreachable(self) -> None:
        """No connection could be made."""
        exchange = self.exchange
        self.drop()
        if exchange is not None:
            self.plane.attempt_failed(exchange, UNREACHABLE, sent=False)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the connection is gone; `error` None = closed in order. An error that is not of the network is our
        own.
        """
        self.dead = True
        self.transport = None
        exchange, state = self.exchange, self.state
        if exchange is None:
            return
        if error is not None and not isinstance(error, OSError):
            self.exchange = None
            self.plane.counters.bugs += 1
            if state in (CONNECTING, HEAD):
                self.plane.refused(exchange, IGNORED, INTERNAL)
            else:
                self.plane.cut_off(exchange, IGNORED)
        elif state == UNTIL_END and error is None:
            self.exchange = None
            self.plane.ended(exchange, outcome_of(self._status))
        elif state != HEAD or self._part:
            self.exchange = None
            self._cut(exchange, CUT, CUT_OFF)
        elif self._used > 1 and not exchange.replayed:
            self.plane.loop.call_later(REPLAY_AFTER_S, self._replay)
        else:
            self.exchange = None
            self.plane.attempt_failed(exchange, CUT, sent=True)

    def _replay(self) -> None:
        """The keep-alive race, a moment later."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:  # else the client left meanwhile, or a bound passed
            self.plane.replay(exchange)

    def _cut(self, exchange: Exchange, outcome: int, refusal: Refusal) -> None:
        """The exchange ends without a whole answer: say so in the way that the client's side still allows."""
        plane = self.plane
        if exchange.events >= 0:
            exchange.events = self.events
        if self.state in (CONNECTING, HEAD):
            plane.refused(exchange, outcome, refusal)
        elif self.state in (FIRST_EVENT, EVENTS) and not self.groups.torn:
            plane.counters.error_events += 1
            event = form_of(exchange.head.line.target).event(refusal.status, refusal.code, refusal.message)
            exchange.client.write(chunk(event) + TERMINAL)
            plane.ended(exchange, outcome)
        else:
            plane.cut_off(exchange, outcome)
