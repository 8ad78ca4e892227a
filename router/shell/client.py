"""One client connection: reads requests, one after the other, and leaves their answers to the engine's side to write.

Reading never pauses while an answer is under way, for that is how a client's departure is noticed. What a pipelining
client sends meanwhile is kept up to `PIPELINED_MAX`, 64 KiB; one that sends more is disconnected, which ends its
generation, and more than that in the same read behind a request is refused with 413 before the request is sent on. A
client that closes its sending half counts as gone, as with nginx. Small bodies are collected from reads, large ones
read by `BufferedBody`; whatever is refused, this protocol is the one that reads on and throws away. Every byte of a
body that is held counts (`memory.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from router.core.endpoints import CLIENT_GONE, Endpoint
from router.core.refusals import Refusal
from router.shell import answers
from router.shell.access_log import PAGE, Refused
from router.shell.bodies import form_model, path_model, read_json, tokens_of
from router.shell.exchange import Exchange
from router.shell.framing import ChunkedBody, CountedBody
from router.shell.heads import END, HEAD_MAX, client_id_in, read_request
from router.shell.large_body import BUFFERED_FROM, BufferedBody
from router.shell.lines import BadHead

if TYPE_CHECKING:
    from router.shell.http import DataPlane

WAITING, BODY, BUSY, CLOSING, LINGERING = range(5)
PIPELINED_MAX: Final = 64 << 10
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Client(asyncio.Protocol):
    """A client's connection. `stamp`: tick of the last progress; `stalled`: tick since when it does not read, or
    None.
    """

    __slots__ = (
        "_body",
        "_held",
        "exchange",
        "forwarded",
        "peer",
        "plane",
        "stalled",
        "stamp",
        "state",
        "transport",
        "write",
    )

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.state = WAITING
        self.stamp = plane.tick
        self.stalled: int | None = None
        self.exchange: Exchange | None = None
        self._held = bytearray()
        self._body: CountedBody | ChunkedBody | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client is here."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's transports have no base in common
        self.write = self.transport.write
        peer = transport.get_extra_info("peername")
        self.peer: bytes = str(peer[0]).encode() if peer else b"unknown"
        self.forwarded = b"\r\nx-forwarded-for: " + self.peer
        plane = self.plane
        plane.counters.client_connections += 1
        plane.clients.add(self)
        if len(plane.clients) > plane.limits.connections:
            self.transport.abort()

    # ---- reading a request

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes from the client."""
        state = self.state
        if state == WAITING:
            if self._held:
                data = self._joined(data)
            end = data.find(END)
            if end < 0 or end > HEAD_MAX:
                self._no_head(data)
                return
            try:
                self._request(data, end)
            except BadHead as error:
                self.refuse_head(error, data[: end + 2])
        elif state == BODY:
            self.stamp = self.plane.tick
            try:
                self._more_body(data)
            except BadHead as error:
                self.refuse_head(error)
        elif state == BUSY:
            self._held += data
            if len(self._held) > PIPELINED_MAX:
                self.plane.counters.bad_requests += 1
                self.transport.abort()

    def _joined(self, data: bytes) -> bytes:
        """Bytes held before and new ones; b"" while they are no whole head, so that one fed by the byte is not
        searched anew.
        """
        held = self._held
        known = max(len(held) - 3, 0)
        held += data
        if held.find(END, known) < 0:
            return b""
        data = bytes(held)
        held.clear()
        return data

    def _no_head(self, data: bytes) -> None:
        """The head is not whole yet, or too large."""
        held = self._held
        if data:
            if not held:
                self.stamp = self.plane.tick  # the bound on a head counts from its first byte
            held += data
        if len(held) > HEAD_MAX:
            self.refuse_head(BadHead(431, f"the head is larger than {HEAD_MAX} bytes"))
        elif held and not 32 < held[0] < 127:
            self.refuse_head(BadHead(400, "the request does not begin with a method"))

    def _request(self, data: bytes, end: int) -> None:
        """A whole head is here, perhaps with body bytes behind it. Raises `BadHead`."""
        head = read_request(data[:end])
        plane = self.plane
        plane.minted += 1
        exchange = self.exchange = Exchange(self, head, b"%b-%x" % (plane.boot, plane.minted), plane.tick)
        if not plane.dispatcher.accepting:
            exchange.keep = False  # draining: clients that keep their connections would send on until the bound
        start, length = end + 4, head.length
        if length > 0:
            if length > plane.limits.body_bytes:
                raise BadHead(413, f"the body of {length} bytes is larger than {plane.limits.body_bytes} bytes")
            plane.memory.take(exchange, length)
        if not head.chunked and (length <= 0 or len(data) - start >= length):
            if length > 0:
                exchange.body = data[start : start + length]
                start += length
            if len(data) > start:
                self._pipelined(data[start:])
            self.dispatch(exchange)
            return
        self.state = BODY
        self.stamp = plane.tick
        rest = data[start:]
        if head.expect and not rest:
            self.write(CONTINUE)
        if head.chunked:
            self._body = ChunkedBody(plane.limits.body_bytes)
            if rest:
                self._more_body(rest)
        elif length >= BUFFERED_FROM:
            self.transport.set_protocol(BufferedBody(self, exchange, rest, length))
        else:
            self._body = CountedBody(rest, length)

    def _more_body(self, data: bytes) -> None:
        """Body bytes in a read of their own. Raises `BadHead`."""
        body, exchange = self._body, self.exchange
        assert body is not None
        assert exchange is not None
        surplus = body.feed(data)
        if exchange.head.chunked:
            self.plane.memory.take(exchange, len(data))
        if surplus is None or surplus is False:
            return
        if surplus is not True:
            self._pipelined(surplus)
        exchange.body = body.store
        self._drop_body()
        self.dispatch(exchange)

    def _drop_body(self) -> None:
        """No body is being read any more."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _pipelined(self, data: bytes) -> None:
        """Bytes behind a request in the same read: the next one. Raises `BadHead` when they are too many."""
        if len(data) > PIPELINED_MAX:
            raise BadHead(413, f"more than {PIPELINED_MAX} bytes follow the request before it is answered")
        self._held += data

    # ---- handing it on

    def dispatch(self, exchange: Exchange) -> None:
        """The request is whole."""
        self.state = BUSY
        plane = self.plane
        body = exchange.body
        if not body and (page := plane.page(exchange)) is not None:
            self._local(exchange, PAGE, *page)
            return
        exchange.asked = self._asked(exchange)
        exchange.size = len(body) + len(exchange.head.lines)
        verdict = plane.dispatcher.arrived(exchange, plane.now())
        if isinstance(verdict, Endpoint):
            plane.send(exchange, verdict)
        elif isinstance(verdict, Refusal):
            self.refuse(exchange, verdict)

    def _asked(self, exchange: Exchange) -> str | None:
        """The model asked for; fills the token estimates on the way."""
        head, body = exchange.head, exchange.body
        exchange.tokens_in = exchange.tokens = len(body) >> 2
        asked = head.model
        if body and not head.encoded:
            if head.form is None:
                told = read_json(body)
                exchange.tokens += tokens_of(told.max_tokens)
                if asked is None and isinstance(told.model, str):
                    return told.model
            elif asked is None:
                asked = form_model(body, head.form)
        return path_model(head.line.target) if asked is None else asked

    # ---- answers of the router itself

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        """Answer a request with a refusal."""
        body = answers.form_of(exchange.head.line.target).body(refusal.status, refusal.code, refusal.message)
        self._local(exchange, refusal.code, refusal.status, body, answers.refusal_fields(refusal))

    def _local(self, exchange: Exchange, what: str, status: int, body: bytes, fields: bytes = b"") -> None:
        self.plane.counters.local_answers += 1
        exchange.status = status
        self.plane.log_end(exchange, what)
        fields += exchange.answer_fields()[2:] + b"\r\n"
        if not exchange.keep:
            fields += b"connection: close\r\n"
        self.write(answers.answer(status, body, exchange.head.line.method == b"HEAD", fields))
        self.done(exchange)

    def refuse_head(self, error: BadHead, head: bytes = b"") -> None:
        """What came is no acceptable request: say why and close, after the client had time to read it. `head`: its bytes
        when it was refused as a whole.
        """
        plane = self.plane
        plane.counters.bad_requests += 1
        exchange, self.exchange = self.exchange, None
        self.state = LINGERING
        self.stamp = plane.tick
        self._drop_body()
        code = {413: "request_too_large", 431: "request_too_large", 503: "out_of_memory"}.get(
            error.status, "bad_request"
        )
        retry_after_s = 1 if error.status == 503 else None
        refusal = Refusal(status=error.status, code=code, message=str(error), retry_after_s=retry_after_s)
        plane.dispatcher.count_refusal(refusal)
        form, head_only = answers.OPENAI, False
        if exchange is not None:
            plane.memory.give_up(exchange)
            line = exchange.head.line
            form, head_only = answers.form_of(line.target), line.method == b"HEAD"
            fields = exchange.answer_fields()[2:]
            exchange.status = error.status
            plane.log_end(exchange, code)
        else:
            plane.minted += 1
            minted = b"%b-%x" % (plane.boot, plane.minted)
            client_id = client_id_in(head or self._held)
            fields = b"x-request-id: %b" % (client_id or minted)
            if plane.access_log is not None:
                plane.access_log.refused(Refused(minted, client_id, self.peer, error.status, code))
        self._held.clear()
        fields += b"\r\nconnection: close\r\n" + answers.refusal_fields(refusal)
        self.write(answers.answer(error.status, form.body(error.status, code, refusal.message), head_only, fields))
        # Closing while the client still sends would reset the connection and lose the answer; the timer closes it.
        self.transport.set_protocol(self)  # whoever read until now: the rest must not become a request after all
        self.transport.write_eof()

    def done(self, exchange: Exchange) -> None:
        """The answer is written whole: on to the next request, or close."""
        self.exchange = None
        if exchange.reserved:
            self.plane.memory.give_up(exchange)
        if not exchange.keep:
            self.close()
            return
        self.state = WAITING
        self.stamp = self.plane.tick
        if self._held:
            self.plane.loop.call_soon(self._next)  # not from here: a pipelining client would nest calls without bound

    def close(self) -> None:
        """Close in order, once what was written has left; the timer cuts it off when that takes too long."""
        self.state = CLOSING
        self.stamp = self.plane.tick
        self.transport.close()

    def _next(self) -> None:
        """The pipelined bytes are the next request."""
        if self.state != WAITING:
            return
        held = bytes(self._held)
        self._held.clear()
        try:
            if held:
                self.data_received(held)
        except BaseException as error:
            self.failed(error)
            raise

    # ---- the end

    @property
    def receiving(self) -> bool:
        """Has part of a request arrived that is not whole yet."""
        return self.state == BODY or (self.state == WAITING and bool(self._held))

    def cut_off(self) -> None:
        """The answer broke in a way that cannot be told inside it."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self.plane.memory.give_up(exchange)
        self.state = CLOSING
        self.transport.abort()

    def failed(self, error: BaseException) -> None:
        """Our own bug outside of a read: cut this connection, which frees whatever it holds."""
        if isinstance(error, Exception):
            self.plane.counters.bugs += 1
        self.transport.abort()

    def pause_writing(self) -> None:
        """asyncio: the client reads too slowly: so does the router."""
        self.stalled = self.plane.tick
        if self.exchange is not None and self.exchange.upstream is not None:
            self.exchange.upstream.pause()

    def resume_writing(self) -> None:
        """asyncio: it reads again."""
        self.stalled = None
        if self.exchange is not None and self.exchange.upstream is not None:
            self.exchange.upstream.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the client is gone. Whatever was done for it is stopped."""
        plane = self.plane
        plane.clients.discard(self)
        if error is not None and not isinstance(error, OSError):
            plane.counters.bugs += 1
        state, self.state = self.state, CLOSING
        exchange, self.exchange = self.exchange, None
        self._held.clear()
        self._drop_body()
        if exchange is not None:
            plane.memory.give_up(exchange)
            if state == BUSY:
                plane.left(exchange)
            else:
                plane.log_end(exchange, CLIENT_GONE)
