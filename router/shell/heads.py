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
    HOST,
    KEEP_ALIVE,
    LENGTH,
    LINE_KEPT_MAX,
    LINES,
    MODEL,
    PLAIN_OPTIONS,
    PROTECTED,
    REQUEST_ID,
    TOKEN,
    BadHead,
    Special,
)

HEAD_MAX: Final = 64 << 10
HEADS_KEPT: Final = 1024
HEAD_KEPT_MAX: Final = 2048
END: Final = b"\r\n\r\n"

_request_line = re.compile(rb"(" + TOKEN + rb") (/[\x21-\x7e]*|\*) HTTP/1\.([01])").fullmatch
_status_line = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?").fullmatch
_said_id = re.compile(rb"\r\nx-request-id:[ \t]*([\x21-\x7e]{1,128})[ \t]*\r\n", re.IGNORECASE).search
_verdict_on = LINES.__getitem__


class RequestLine:
    """First line of a request: `old` = HTTP/1.0; `text` = how it is forwarded."""

    __slots__ = ("method", "old", "target", "text")

    def __init__(self, line: bytes) -> None:
        match = _request_line(line)
        if match is None or (match[2] == b"*" and match[1] != b"OPTIONS"):
            raise BadHead(400, "the request line is not of the form METHOD /PATH HTTP/1.1")
        self.method: bytes = match[1]
        self.target: bytes = match[2]
        self.old = match[3] == b"0"
        self.text: bytes = line[:-1] + b"1\r\n"


class RequestHead:
    """What a request's head says. `lines`: the header lines to forward, each with its CRLF.

    `length` -1 = none given; `chunked`: body in chunks; `keep`: may the connection serve another request; `expect`:
    waits for 100 Continue; `client_id`: its x-request-id; `model`: its x-model; `encoded`: has a content-encoding;
    `form`: the content-type if multipart; `forwarded`: its x-forwarded-for.
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
    told.client_id = told.model = told.form = told.forwarded = None
    told.keep = not first.old
    hosts, dropped = 0, None
    kept = head[len(start) :] + CRLF  # every line stands between two CRLFs: cutting one out costs 0.1 us
    for kind, value, line in filter(None, map(_verdict_on, lines)):
        if kind == HOST:
            hosts += 1
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
            if _seldom(told, kind, value):
                dropped.append((kind, value, line))
    if told.chunked and told.length >= 0:
        raise BadHead(400, "both content-length and transfer-encoding are given")
    if hosts != 1 and not (first.old and hosts == 0):
        raise BadHead(400, "exactly one host header is needed")
    told.lines = _without(kept, dropped) if dropped else kept
    return told


def client_id_in(head: bytes | bytearray) -> bytes | None:
    """The x-request-id in a refused or unfinished head, read as leniently as it is used: only to be said back."""
    match = _said_id(head)
    return match[1] if match else None


def _seldom(told: RequestHead, kind: int, value: Any) -> bool:
    """File a line that is not in every request; True = it is not forwarded. Raises `BadHead`."""
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
        told.model = value.decode("utf-8", "replace")
        return False
    elif kind == ENCODING:
        told.encoded = True
        return False
    elif kind == CONTENT:
        told.form = value if value[:10].lower() == b"multipart/" else None
        return False
    elif kind == FORWARDED:
        told.forwarded = value if told.forwarded is None else b"%s, %s" % (told.forwarded, value)
    return True


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
        self.keep = match[1] == b"1"
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
                encoded = encoded or kind == ENCODING
                if not self._keeps(kind, value):
                    continue
            kept.append(line)
        if self.chunked and self.length >= 0:
            raise BadHead(502, "both content-length and transfer-encoding")
        self.events = self.events and not encoded
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
        if kind == CONNECTION:
            if b"close" in value:
                self.keep = False
            return False
        if kind == KEEP_ALIVE:
            self.keep = True
        elif kind == CONTENT:
            self.events = value[:17].lower() == b"text/event-stream"
        return kind not in (KEEP_ALIVE, DROPPED, REQUEST_ID)

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
