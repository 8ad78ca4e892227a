"""Heads of HTTP/1 messages: the only judge of what a client's or an engine's head means. Strict, and cheap by memory.

It knows nothing of sockets and routing: bytes in, a value out, or `BadHead` with the status to answer. llhttp never
sees a head: two parsers over the same bytes are two opinions, which is how requests are smuggled. Chunk framing is
the other way round, llhttp alone judges it (`framing.py`). Lines are judged and remembered in `lines.py`, request
lines and whole answer heads here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from router.shell.lines import (
    CODING,
    CONNECTION,
    CONTENT,
    CRLF,
    DROPPED,
    ENCODING,
    EXPECT,
    FORWARDED,
    GRPC,
    HOST,
    KEEP_ALIVE,
    LENGTH,
    LINE_KEPT_MAX,
    LINES,
    MODEL,
    PATIENCE,
    PLAIN_OPTIONS,
    PROTECTED,
    REQUEST_ID,
    TOKEN,
    UPGRADE,
    BadHead,
    Special,
    names_host,
)

HEAD_MAX: Final = 64 << 10
HEADS_KEPT: Final = 1024
HEAD_KEPT_MAX: Final = 2048
END: Final = b"\r\n\r\n"
FIELD_MAX: Final = 256
NEVER_FORWARDED: Final = frozenset((b"CONNECT", b"TRACE"))

_request_line = re.compile(rb"(" + TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])").fullmatch
_absolute = re.compile(rb"http://([^/?#]+)((?:[/?].*)?)", re.IGNORECASE).fullmatch
_status_line = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?").fullmatch
_said_id = re.compile(rb"\r\nx-request-id:[ \t]*([\x21-\x7e]{1,128})[ \t]*\r\n", re.IGNORECASE).search
_verdict_on = LINES.__getitem__


class RequestLine:
    """First line of a request. `target`: path and query as they came; `old` = HTTP/1.0; `text` = how it is forwarded;
    `authority`: the host that an absolute target names, else None; `odd` = old, or with an authority.
    """

    __slots__ = ("authority", "method", "odd", "old", "target", "text")

    def __init__(self, line: bytes) -> None:
        match = _request_line(line)
        if match is None:
            raise BadHead(400, "the request line is not of the form METHOD /PATH HTTP/1.1")
        self.method: bytes = match[1]
        self.old = match[3] == b"1.0"
        if match[3] not in (b"1.1", b"1.0"):
            told = match[3].decode()
            raise BadHead(505, f"HTTP/{told} is not served here; allowed: HTTP/1.1 and HTTP/1.0 (so no gRPC either)")
        if self.method in NEVER_FORWARDED:
            raise BadHead(501, f"the method {self.method.decode()} is never forwarded; allowed: any other method")
        self.authority, self.target = _aimed(match[2], b"*" if self.method == b"OPTIONS" else b"/")
        if self.target == b"*" and self.method != b"OPTIONS":
            raise BadHead(400, "the target * is for OPTIONS only; allowed: /PATH or http://HOST/PATH")
        self.odd = self.old or self.authority is not None
        self.text: bytes = b"%b %b HTTP/1.1\r\n" % (self.method, self.target)


def _aimed(target: bytes, whole: bytes) -> tuple[bytes | None, bytes]:
    """(host or None, path and query) of a request's target; `whole`: what http://HOST alone means. Raises `BadHead`."""
    if target[:1] == b"/" or target == b"*":
        return None, target
    absolute = _absolute(target)
    if absolute is None or not names_host(absolute[1]):
        raise BadHead(400, "the target is not of the form /PATH or http://HOST/PATH")
    path: bytes = absolute[2]
    if path[:1] == b"?":
        path = b"/" + path
    return absolute[1], path or whole


class RequestHead:
    """What a request's head says. `lines`: the header lines to forward, each with its CRLF.

    `length` -1 = none given; `chunked`: body in chunks; `keep`: may the connection serve another request; `expect`:
    waits for 100 Continue; `client_id`: its x-request-id; `model`: its x-model; `encoded`: has a content-encoding;
    `form`: the content-type if multipart; `forwarded`: its x-forwarded-for; `patience_s`: its x-queue-timeout-s, the
    longest that the client wants to wait in the queue, seconds, None = not said.
    """

    __slots__ = (
        "chunked",
        "client_id",
        "encoded",
        "expect",
        "form",
        "forwarded",
        "keep",
        "length",
        "line",
        "lines",
        "model",
        "patience_s",
    )

    line: RequestLine
    lines: bytes
    length: int
    chunked: bool
    keep: bool
    expect: bool
    client_id: bytes | None
    model: str | None
    encoded: bool
    form: bytes | None
    forwarded: bytes | None
    patience_s: float | None

    def field(self, name: bytes) -> str | None:
        """The first forwarded header called `name` (lower case): its value without surrounding blanks, at most
        `FIELD_MAX` characters; None when there is none. 1 us for 18 headers, so only for models that route by it. A
        value cannot hold CRLF (such heads are refused), so what stands behind CRLF is a name.
        """
        lines = self.lines
        start = lines.lower().find(b"\r\n%b:" % name)
        if start < 0:
            return None
        start += len(name) + 3
        return lines[start : lines.index(CRLF, start)].strip(b" \t")[:FIELD_MAX].decode("latin-1")


REQUEST_LINES: dict[bytes, RequestLine] = {}


def read_request(head: bytes) -> RequestHead:
    """Judge a request's head, given without its final empty line. Raises `BadHead`."""
    lines = head.split(CRLF)
    start = lines[0]
    first = REQUEST_LINES.get(start) or _new_request_line(start)
    del lines[0]
    told = RequestHead()
    told.line = first
    told.length, told.chunked, told.expect, told.encoded = -1, False, False, False
    told.client_id = told.model = told.form = told.forwarded = told.patience_s = None
    told.keep = not first.old
    hosts, dropped = 0, None
    kept = head[len(start) :] + CRLF  # every line stands between two CRLFs: cutting one out costs 0.1 us
    for kind, value, line in filter(None, map(_verdict_on, lines)):
        if kind == HOST:
            hosts += value
        elif (
            kind == KEEP_ALIVE
        ):  # harmless for the engine: stays where it is (an HTTP/1.0 client is closed all the same)
            pass
        elif kind == LENGTH:
            if told.length >= 0:
                raise BadHead(400, "content-length is given twice")
            told.length = value
        elif kind == REQUEST_ID:
            told.client_id = told.client_id or value
            kept = kept.replace(b"\r\n%s\r\n" % line, CRLF, 1)
        else:
            if dropped is None:
                dropped = []
            special = (kind, value, line)
            if _seldom(told, special):
                dropped.append(special)
    if told.chunked and told.length >= 0:
        raise BadHead(400, "both content-length and transfer-encoding are given")
    told.lines = _without(kept, dropped) if dropped else kept
    if hosts != 1 or first.odd:
        _judge_hosts(told, hosts)
    return told


def _judge_hosts(told: RequestHead, hosts: int) -> None:
    """The rarer cases of who is asked: no Host, several or an unreadable one, HTTP/1.0, an absolute target. Raises
    `BadHead`.
    """
    first = told.line
    if hosts != 1 and not (first.old and hosts == 0):
        raise BadHead(400, "exactly one host header is needed, and it names a host with or without a port")
    if first.authority is not None and (said := told.field(b"host")) is not None:
        names = [name.removesuffix(":80") for name in (said.lower(), first.authority.decode().lower())]
        if names[0] != names[1]:
            raise BadHead(400, "the target and the host header name different hosts")


def client_id_in(head: bytes | bytearray) -> bytes | None:
    """The x-request-id in a refused or unfinished head, read as leniently as it is used: only to be said back."""
    match = _said_id(head)
    return match[1] if match else None


def _seldom(told: RequestHead, special: Special) -> bool:
    """File a line that is not in every request; True = it is not forwarded. Raises `BadHead`."""
    kind, value, line = special
    if kind == CODING:
        if told.chunked or told.line.old:
            raise BadHead(400, "transfer-encoding is given twice, or with HTTP/1.0")
        told.chunked = True
    elif kind == CONNECTION:
        told.keep = told.keep and b"close" not in value
    elif kind == EXPECT:
        if value.lower() != b"100-continue":
            raise BadHead(417, "the only expectation understood is 100-continue")
        told.expect = not told.line.old
    elif kind == MODEL:
        if told.model is not None:
            raise BadHead(400, "x-model is given twice")
        told.model = value.decode("utf-8", "replace")
        return False
    elif kind == PATIENCE:
        _judge_patience(told, value, line)
        return False
    elif kind == ENCODING:
        told.encoded = True
        return False
    elif kind == CONTENT:
        lowered = value.lower()
        if lowered.startswith(GRPC):
            raise BadHead(415, "gRPC is not served here; use the engine's HTTP paths, such as /v2/models/NAME/infer")
        told.form = value if lowered.startswith(b"multipart/") else None
        return False
    elif kind == UPGRADE:
        if b"websocket" in value:
            raise BadHead(
                501, "WebSocket is not served here; send plain requests, answers stream as server-sent events"
            )
    elif kind == FORWARDED:
        told.forwarded = value if told.forwarded is None else b"%s, %s" % (told.forwarded, value)
    return True


def _judge_patience(told: RequestHead, value: float | None, line: bytes) -> None:
    """Take an x-queue-timeout-s. Raises `BadHead`."""
    if value is None:
        said = line.partition(b":")[2].strip(b" \t")[:100].decode("utf-8", "replace")
        raise BadHead(
            400,
            f"x-queue-timeout-s: {said!r} is not understood; allowed: a number of seconds "
            "above 0 and below 1000000, such as 30 or 2.5",
        )
    if told.patience_s is not None:
        raise BadHead(400, "x-queue-timeout-s is given twice")
    told.patience_s = value


def _without(kept: bytes, dropped: list[Special]) -> bytes:
    """Cut lines out, and those that a Connection header names. Raises `BadHead` when it names a protected one."""
    for kind, value, line in dropped:
        kept = kept.replace(b"\r\n%s\r\n" % line, CRLF, 1)
        if kind == CONNECTION and not value <= PLAIN_OPTIONS:
            if value & PROTECTED:
                raise BadHead(400, "the connection header names a header that must not be dropped")
            lines = [each for each in kept.split(CRLF) if each.partition(b":")[0].lower() not in value - PLAIN_OPTIONS]
            kept = CRLF.join(lines)
    return kept


def _new_request_line(line: bytes) -> RequestLine:
    made = RequestLine(line)
    if len(line) < LINE_KEPT_MAX:
        if len(REQUEST_LINES) >= HEADS_KEPT:
            REQUEST_LINES.clear()
        REQUEST_LINES[line] = made
    return made


class AnswerHead:
    """What an engine's answer head says. `text`: status line and the lines to forward, without a final CRLF.

    `length` -1 = none given; `keep`: may the connection be used again; `events`: readable server-sent events;
    `bodiless`: 1xx, 204 or 304.
    """

    __slots__ = ("bodiless", "chunked", "events", "keep", "length", "status", "text")

    def __init__(self, head: bytes) -> None:
        lines = head.split(CRLF)
        match = _status_line(lines[0])
        if match is None:
            raise BadHead(502, "bad status line")
        self.status = int(match[2])
        old, closes = match[1] == b"0", False
        self.keep = not old
        self.length, self.chunked, self.events = -1, False, False
        self.bodiless = self.status < 200 or self.status in (204, 304)
        encoded, named = False, frozenset[bytes]()
        kept = [b"HTTP/1.1" + lines[0][8:]]
        for line in lines[1:]:
            verdict = LINES[line]
            if verdict is not None:
                kind, value, _ = verdict
                if kind == CONNECTION:
                    named |= value - PLAIN_OPTIONS
                    closes = closes or b"close" in value
                encoded = encoded or kind == ENCODING
                if not self._keeps(kind, value):
                    continue
            kept.append(line)
        if self.chunked and self.length >= 0:
            raise BadHead(502, "both content-length and transfer-encoding")
        self.events = self.events and not encoded
        if closes or (old and self.chunked):  # HTTP/1.0 knows no chunks: whatever follows cannot be trusted
            self.keep = False
        if named:
            gone = named - PROTECTED
            kept = [line for line in kept if line.partition(b":")[0].lower() not in gone]
        self.text: bytes = CRLF.join(kept)

    def _keeps(self, kind: int, value: Any) -> bool:
        """File a special line; True = it is forwarded. Raises `BadHead`."""
        if kind == LENGTH:
            if self.length >= 0:
                raise BadHead(502, "content-length is given twice")
            self.length = value
            return self.status != 204  # must not carry one
        if kind == CODING:
            if self.chunked:
                raise BadHead(502, "transfer-encoding is given twice")
            self.chunked = True
            return not self.bodiless
        if kind == KEEP_ALIVE:
            self.keep = True
        elif kind == CONTENT:
            self.events = value[:17].lower() == b"text/event-stream"
        return kind not in (CONNECTION, KEEP_ALIVE, DROPPED, UPGRADE, REQUEST_ID)

    def unchunked(self) -> bytes:
        """`text` without its transfer-encoding: for a client of HTTP/1.0."""
        return CRLF.join(
            line for line in self.text.split(CRLF) if not line[:18].lower().startswith(b"transfer-encoding:")
        )


ANSWERS: dict[bytes, AnswerHead] = {}


def read_answer(head: bytes) -> AnswerHead:
    """Judge an engine's answer head, given without its final empty line; whole heads are remembered. Raises
    `BadHead`.
    """
    known = ANSWERS.get(head)
    if known is not None:
        return known
    try:
        made = AnswerHead(head)
    except BadHead as error:
        raise BadHead(502, str(error)) from None
    if len(head) < HEAD_KEPT_MAX and b"x-request-id:" not in head.lower():
        if len(ANSWERS) >= HEADS_KEPT:
            ANSWERS.clear()
        ANSWERS[head] = made
    return made
