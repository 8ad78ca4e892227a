"""One request on its way through the router: what the core knows of it, plus its bytes and its two connections."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.core.endpoints import Endpoint
from router.core.requests import Request
from router.core.retries import attempt_id
from router.shell.bodies import form_model, path_model, read_json, renamed, tokens_of
from router.shell.heads import RequestHead
from router.shell.lines import CRLF
from router.shell.prefix import prefix_key

if TYPE_CHECKING:
    from router.shell.client import Client
    from router.shell.upstream import Upstream

_length_line = re.compile(rb"\r\ncontent-length:[^\r\n]*", re.IGNORECASE)
NOT_QUEUED: Final = b"\r\nserver-timing: queue;dur=0.0\r\nx-request-id: "


class Exchange(Request):
    """A request with its bytes. `id`: ours; `keep`: the client's connection outlives the answer; `since`: tick of
    arrival; `reserved`: bytes of its body that count as held (`memory.py`); `replayed`: the keep-alive race was replayed
    once. For the access log, 0.1 us in all: `sent_to`: the last endpoint; `status`: of the answer's head, 0 while none
    was sent; `first_at`: when the answer's first byte came; `events`: of the answer, -1 = it is no event stream.
    """

    __slots__ = (
        "body",
        "client",
        "events",
        "first_at",
        "head",
        "id",
        "keep",
        "replayed",
        "reserved",
        "sent_to",
        "since",
        "status",
        "upstream",
    )

    def __init__(self, client: Client, head: RequestHead, request_id: bytes, since: int) -> None:
        Request.__init__(self)  # 0.05 us less than super()
        self.client = client
        self.head = head
        self.id = request_id
        self.keep = head.keep
        self.since = since
        self.body: bytes | bytearray = b""
        self.upstream: Upstream | None = None
        self.replayed = False
        self.reserved = self.status = 0
        self.sent_to: Endpoint | None = None
        self.first_at: float | None = None
        self.events = -1

    def read(self) -> str | None:
        """The model asked for; fills the token estimates on the way."""
        head, body = self.head, self.body
        self.tokens_in = self.tokens = len(body) >> 2
        asked = head.model
        if body and not head.encoded:
            if head.form is None:
                told = read_json(body)
                self.tokens += tokens_of(told)
                if asked is None and isinstance(told.model, str):
                    return told.model
            elif asked is None:
                asked = form_model(body, head.form)
        return path_model(head.line.target) if asked is None else asked

    @property
    def patience_s(self) -> float | None:
        """The client's own bound on waiting."""
        return self.head.patience_s

    def field(self, name: str) -> str | None:
        """A header of the request."""
        return self.head.field(name.encode("latin-1", "replace"))

    def prefix_key(self) -> int | None:
        """By the beginning of the prompt."""
        return None if self.head.encoded else prefix_key(self.body)

    def message(self, endpoint: Endpoint) -> tuple[bytes, bytes | bytearray]:
        """Head and body for this attempt at `endpoint`: our ids in, the rest as it came."""
        head, body, client = self.head, self.body, self.client
        lines = head.lines
        served = endpoint.served_model
        if served is None and self.asked != self.model.name and self.asked is not None and head.model is None:
            served = self.model.name  # asked for by an alias, which the engine need not know
        if served is not None and body:
            body = renamed(body, served)
            if len(body) != len(self.body) and not head.chunked:
                lines = _length_line.sub(b"\r\ncontent-length: %d" % len(body), lines)
        if head.chunked:  # collected whole: one length, no chunks
            lines = b"%bcontent-length: %d\r\n" % (lines, len(body))
        request_id = self.id if self.attempts == 1 else attempt_id(self.id, self.attempts)
        forwarded = client.forwarded
        if head.forwarded is not None:
            forwarded = b"\r\nx-forwarded-for: %b, %b" % (head.forwarded, client.peer)
        if head.client_id is not None:
            forwarded = b"%b\r\nx-client-request-id: %b" % (forwarded, head.client_id)
        if head.line.old and b"\r\nhost:" not in lines.lower():
            forwarded = b"%b\r\nhost: %b:%d" % (forwarded, endpoint.host.encode(), endpoint.port)
        return b"".join((head.line.text, b"x-request-id: ", request_id, forwarded, lines, CRLF)), body

    def answer_fields(self) -> bytes:
        """What every answer carries: our time in the queue and the id that the client knows the request by."""
        told = self.head.client_id or self.id
        if not self.waited_s:
            return NOT_QUEUED + told
        return b"\r\nserver-timing: queue;dur=%.1f\r\nx-request-id: %b" % (self.waited_s * 1000, told)
