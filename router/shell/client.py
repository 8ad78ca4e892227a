"""One client connection: reads requests, one after the other, and leaves their answers to the engine's side to write.

Reading never pauses while an answer is under way, for that is how a client's departure is noticed. What a pipelining
client sends meanwhile is kept up to `PIPELINED_MAX`, 64 KiB; one that sends more is disconnected, which ends its
generation, and more than that in the same read behind a request is refused with 413 before the request is sent on. A
client that closes its sending half counts as gone, as with nginx. Small bodies are collected from reads, large ones
read by `BufferedBody`; whatever is refused, this protocol is the one that reads on and throws away. Every byte of a
body that is held counts (`memory.py`). Empty lines before a request are skipped.
"""

from __future__ import annotations

import asyncio
import re
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import TYPE_CHECKING, Final

from router.core.endpoints import CLIENT_GONE, Endpoint
from router.core.refusals import Refusal
from router.shell import answers
from router.shell.access_log import PAGE, Refused
from router.shell.exchange import Exchange
from router.shell.framing import ChunkedBody, CountedBody
from router.shell.heads import END, HEAD_MAX, client_id_in, read_request
from router.shell.large_body import BUFFERED_FROM, BufferedBody
from router.shell.lines import CRLF, BadHead

if TYPE_CHECKING:
    from router.shell.http import DataPlane
    from router.shell.memory import Upload

WAITING, BODY, BUSY, CLOSING, LINGERING = range(5)
PIPELINED_MAX: Final = 64 << 10
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
TLS_HELLO: Final = 22
RESET: Final = pack("ii", 1, 0)
"""SO_LINGER on, for 0 s: closing resets."""
_empty_lines = re.compile(rb"(?:\r\n)*").match


class Client(asyncio.Protocol):
    """A client's connection. `stamp`: tick of the last progress; `stalled`: tick since when it does not read, or
    None; `upload`: the body on its way in, or None.
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
        "upload",
        "write",
    )

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.state = WAITING
        self.stamp = plane.tick
        self.stalled: int | None = None
        self.exchange: Exchange | None = None
        self.upload: Upload | None = None
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
        if len(plane.clients) > plane.connections_max:
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
                if data[:2] == CRLF:  # seen only here, so that others do not pay for it
                    self._skip_empty_lines(data)
                else:
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
        if held[:2] == CRLF:
            match = _empty_lines(held)
            assert match is not None
            del held[: match.end()]
        if len(held) > HEAD_MAX:
            self.refuse_head(BadHead(431, f"the head is larger than {HEAD_MAX} bytes"))
        elif held and not 32 < held[0] < 127 and held != b"\r":
            tls = "; this port serves plain HTTP, not TLS" if held[0] == TLS_HELLO else ""
            self.refuse_head(BadHead(400, f"the request does not begin with a method{tls}"))

    def _skip_empty_lines(self, data: bytes) -> None:
        """Some clients send one too many behind a body."""
        match = _empty_lines(data)
        assert match is not None
        if rest := data[match.end() :]:
            self.data_received(rest)

    def _request(self, data: bytes, end: int) -> None:
        """A whole head is here, perhaps with body bytes behind it. Raises `BadHead`."""
        head = read_request(data[:end])
        plane = self.plane
        plane.minted += 1
        exchange = self.exchange = Exchange(self, head, b"%b-%x" % (plane.boot, plane.minted), plane.tick)
        if not plane.dispatcher.accepting:
            exchange.keep = False  # draining: clients that keep their connections would send on until the bound
        start, length = end + 4, head.length
        if length > plane.limits.body_bytes:
            raise BadHead(413, f"the body of {length} bytes is larger than {plane.limits.body_bytes} bytes")
        if head.chunked or (length > 0 and len(data) - start < length):
            self._begin_body(exchange, data[start:])
            return
        if length > 0:
            plane.memory.take(exchange, length)
            exchange.body = data[start : start + length]
            start += length
        if len(data) > start:
            self._pipelined(data[start:])
        self.dispatch(exchange)

    def _begin_body(self, exchange: Exchange, rest: bytes) -> None:
        """A body that is not whole yet; `rest`: what came of it with the head. Raises `BadHead`."""
        self.state = BODY
        plane, head = self.plane, exchange.head
        self.stamp = plane.tick
        length = plane.limits.body_bytes if head.chunked else head.length
        self.upload = plane.memory.begin(exchange, length, chunked=head.chunked)
        if head.expect and not rest:
            self.write(CONTINUE)
        if length >= BUFFERED_FROM and not head.chunked:
            self.transport.set_protocol(BufferedBody(self, self.upload, rest))
            return
        self._body = ChunkedBody(length) if head.chunked else CountedBody(length)
        if rest:
            self._more_body(rest)

    def _more_body(self, data: bytes) -> None:
        """Body bytes. Raises `BadHead`."""
        body = self._body
        assert body is not None
        assert self.upload is not None
        surplus = body.feed(data)
        self.plane.memory.arrive(self.upload, len(data) - len(surplus or b""), self.plane.tick)
        if surplus is None:
            return
        if surplus:
            self._pipelined(surplus)
        self.whole(body.store)

    def whole(self, body: bytearray) -> None:
        """The last byte of a body is here that did not come with its head."""
        exchange = self.exchange
        assert exchange is not None
        exchange.body = body
        self._drop_body()
        self.dispatch(exchange)

    def _drop_body(self) -> None:
        """No body is being read any more."""
        if self.upload is not None:
            self.plane.memory.end(self.upload)
            self.upload = None
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
        exchange.asked = exchange.read()
        exchange.size = len(body) + len(exchange.head.lines)
        verdict = plane.dispatcher.arrived(exchange, plane.now())
        if isinstance(verdict, Endpoint):
            plane.send(exchange, verdict)
        elif isinstance(verdict, Refusal):
            self.refuse(exchange, verdict)
        elif plane.dispatcher.effects:  # it pushed others out of the queue
            plane.apply_effects()

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
        if exchange is not None:
            plane.memory.give_up(exchange)
            line = exchange.head.line
            form, head_only = answers.form_of(line.target), line.method == b"HEAD"
            fields = exchange.answer_fields()[2:]
            exchange.status = error.status
            plane.log_end(exchange, code)
        else:
            plane.minted += 1
            method, target = (*head.split(b" ", 2), b"", b"")[:2]
            form, head_only = answers.form_of(target), method == b"HEAD"
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
        """The answer broke in a way that cannot be told inside it. One that ends with its connection would look whole if
        the connection ended in order, so such a connection is reset.
        """
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self.plane.memory.give_up(exchange)
            socket = self.transport.get_extra_info("socket")
            if socket is not None and not exchange.keep and not self.transport.is_closing():
                socket.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
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

    def eof_received(self) -> None:
        """asyncio: the client sends no more: it is gone. Closing in order would wait for it to read what it was sent, and
        its generation would go on meanwhile.
        """
        if self.state == BUSY:
            self.transport.abort()

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
