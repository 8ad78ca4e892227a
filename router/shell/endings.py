"""How exchanges with an engine end, well or not: what the client is still told, and what becomes of the connection.

The slot is held until the last byte. How an attempt ends when the engine's connection is lost or the engine breaks HTTP:

| until now                                  | then                                                                   |
|--------------------------------------------|------------------------------------------------------------------------|
| reused connection, no byte back            | `plane.replay`: the same endpoint once more, on a fresh connection     |
| no byte back                               | `plane.attempt_failed`: the ladder decides                             |
| part of a head                             | 502                                                                    |
| behind the event that ends a stream        | terminal chunk: nothing is missing                                     |
| inside an event stream                     | half event dropped, error event, terminal chunk; the connection lives  |
| the same, to a client that gets no chunks  | half event dropped, error event, the connection is closed in order     |
| inside an event that is forwarded in parts | the client is cut off: inside an event nothing else can be said        |
| inside any other answer                    | the client is cut off, it must not take half an answer for a whole one |

No chunks get clients of HTTP/1.0, and all clients when the engine sends none. An engine whose answer has neither chunks
nor a length ends it by closing the connection: when it dies between two events and its connection is closed in order,
that is an end like any other, for the router as for every client; inside an event, or when the connection is reset, it
is told as above. Event streams of a known length, compressed ones and those with another status than 200 are passed on
unread, and cut off like any other answer.
"""

from __future__ import annotations

from typing import Final

from router.core.endpoints import CUT, IGNORED, SUCCESS, TIMEOUT, UNREACHABLE, outcome_of
from router.core.meter import Meter
from router.core.refusals import BROKEN, INTERNAL, TIMED_OUT, Refusal
from router.core.refusals import CUT as CUT_OFF
from router.shell.answers import form_of
from router.shell.connection import CONNECTING, EVENTS, FIRST_EVENT, HEAD, IDLE, UNCHUNK, UNTIL_END, EngineConnection
from router.shell.exchange import Exchange
from router.shell.framing import TERMINAL, Chunks, chunk
from router.shell.streams import Regrouping, ends_well

REPLAY_AFTER_S: Final = 0.05
"""A replay waits this long, its slot held. A killed process closes its connections before its listener (seen on Linux
6.1): a fresh connection made in that gap would be reset after the request was sent, too late to go elsewhere.
"""


class EndingConnection(EngineConnection):
    """A connection whose exchanges end; `Upstream` reads the answers before that.

    Of an event stream: `meter`; `events` forwarded, whole ones; `groups`, where the stream goes by events; `first_at`:
    when its first event came, for other answers the first byte.
    """

    __slots__ = ("_chunks", "_status", "events", "first_at", "groups", "meter")

    _chunks: Chunks | None
    _status: int
    events: int
    first_at: float
    groups: Regrouping | None
    meter: Meter

    def _finish(self, reusable: bool) -> None:
        """The last byte of the answer is forwarded."""
        exchange, plane = self.exchange, self.plane
        assert exchange is not None
        assert self.transport is not None, "finished without a connection"
        if exchange.events >= 0:  # an event stream
            exchange.events = self.events
            if self.events > 1 and self.state == EVENTS:
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
        elif state == UNTIL_END and error is None and not (self.groups is not None and self.groups.held):
            self.exchange = None
            if exchange.events >= 0:
                exchange.events = self.events
            self.plane.ended(exchange, outcome_of(self._status))
        elif state != HEAD or self._part:
            self.exchange = None
            self._cut(exchange, CUT, CUT_OFF)
        elif self._used > 1 and not exchange.replayed and self._interim_of is not exchange:
            self.plane.loop.call_later(REPLAY_AFTER_S, self._replay)
        else:
            self.exchange = None
            self.plane.attempt_failed(exchange, CUT, sent=True)

    def _replay(self) -> None:
        """The keep-alive race, a moment later."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:  # else the client left meanwhile, or a bound passed
            self.plane.replay(exchange)

    def _last_events(self, groups: Regrouping) -> bytes:
        """What of an event stream was forwarded last."""
        pieces = self._chunks.pieces if self._chunks is not None and self.state in (FIRST_EVENT, EVENTS) else []
        return pieces[-1] if pieces else groups.given

    def _cut(self, exchange: Exchange, outcome: int, refusal: Refusal) -> None:
        """The exchange ends without a whole answer: say so in the way that the client's side still allows."""
        plane, state = self.plane, self.state
        groups = self.groups if state in (FIRST_EVENT, EVENTS, UNCHUNK, UNTIL_END) else None
        if exchange.events >= 0:
            exchange.events = self.events
        if state in (CONNECTING, HEAD):
            plane.refused(exchange, outcome, refusal)
        elif groups is not None and not groups.torn and ends_well(self._last_events(groups)):
            exchange.client.write(TERMINAL if state in (FIRST_EVENT, EVENTS) else b"")
            plane.ended(exchange, outcome)  # the engine failed, its answer did not
        elif groups is not None and not groups.torn:
            plane.counters.error_events += 1
            form = form_of(exchange.head.line.target)
            number = groups.first + self.events if form.numbered else 0
            event = form.event(refusal.status, refusal.code, refusal.message, number)
            exchange.client.write(chunk(event) + TERMINAL if state in (FIRST_EVENT, EVENTS) else event)
            plane.ended(exchange, outcome)
        else:
            plane.cut_off(exchange, outcome)
