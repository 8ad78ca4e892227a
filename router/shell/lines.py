"""Header lines of HTTP/1: each is judged once and remembered.

Most header lines of a client are the same in each request, so the verdict on a line (regular expression, name, kind)
is remembered by its bytes. A request costs one dictionary look-up a line, made in C by `map`; Python runs only for
special or new lines: 3 us for the 18 headers of an SDK, against 9 with llhttp's callbacks. What differs in every
request (ids, trace contexts) is never remembered, and the memory is bounded in entries and in length of a line, then
emptied.
"""

from __future__ import annotations

import re
from typing import Any, Final

LINES_KEPT: Final = 8192
LINE_KEPT_MAX: Final = 256
CRLF: Final = b"\r\n"

# Kinds of special lines; a line of no kind is forwarded as it came.
(LENGTH, CODING, CONNECTION, KEEP_ALIVE, HOST, REQUEST_ID) = range(1, 7)
(EXPECT, DROPPED, MODEL, ENCODING, CONTENT, FORWARDED, UPGRADE, PATIENCE) = range(7, 15)

KINDS: Final = {
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"host": HOST,
    b"x-request-id": REQUEST_ID,
    b"expect": EXPECT,
    b"x-model": MODEL,
    b"content-encoding": ENCODING,
    b"content-type": CONTENT,
    b"x-forwarded-for": FORWARDED,
    b"x-queue-timeout-s": PATIENCE,
    # Hop-by-hop, or ours to write, or a name that CGI-like engines take for a framing header.
    b"keep-alive": DROPPED,
    b"proxy-connection": DROPPED,
    b"proxy-authenticate": DROPPED,
    b"proxy-authorization": DROPPED,
    b"te": DROPPED,
    b"trailer": DROPPED,
    b"upgrade": UPGRADE,
    b"http2-settings": DROPPED,
    b"x-client-request-id": DROPPED,
    b"content_length": DROPPED,
    b"transfer_encoding": DROPPED,
}
NEVER_REMEMBERED: Final = frozenset(
    b"x-request-id x-client-request-id traceparent tracestate idempotency-key x-amzn-trace-id x-b3-traceid x-b3-spanid"
    b" x-b3-parentspanid x-input-tokens".split()
)
PROTECTED: Final = frozenset(
    b"content-length transfer-encoding content-type content-encoding host authorization cookie x-request-id x-model".split()
)
"""A `Connection` header that names one of these would make us drop what the message hangs on: refused."""

PLAIN_OPTIONS: Final = frozenset((b"close", b"keep-alive", b""))
GRPC: Final = b"application/grpc"

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = rb"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?"
_line = re.compile(rb"(" + TOKEN + rb"):[ \t]*(" + _VALUE + rb")?[ \t]*").fullmatch
_visible = re.compile(rb"[\x21-\x7e]{1,128}").fullmatch
_length = re.compile(rb"0|[1-9][0-9]{0,14}").fullmatch
names_host = re.compile(rb"(?:[A-Za-z0-9._~%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?").fullmatch
_patience = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,6})?").fullmatch

Special = tuple[int, Any, bytes]


class BadHead(Exception):
    """A head that is refused; `status` is the answer, the message says what is wrong."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Memory(dict[bytes, Special | None]):
    """Verdicts by line: None = ordinary, else (kind, value, line). Looking up an unseen line judges it."""

    __slots__ = ()

    def __missing__(self, line: bytes) -> Special | None:
        if line[:13].lower() == b"x-request-id:":  # in every request and never the same: 0.7 us less than what follows
            value = line[13:].strip(b" \t")
            if _visible(value):
                return (REQUEST_ID, value, line)
        match = _line(line)
        if match is None:
            raise BadHead(400, "a header line is not of the form NAME: VALUE")
        name = match[1].lower()
        kind = KINDS.get(name, 0)
        verdict = _judged(kind, match[2] or b"", line) if kind else None
        if len(line) < LINE_KEPT_MAX and name not in NEVER_REMEMBERED:
            if len(self) >= LINES_KEPT:
                self.clear()
            self[line] = verdict
        return verdict


def _judged(kind: int, value: bytes, line: bytes) -> Special | None:
    """The verdict on a line of a known name. Raises `BadHead`."""
    if kind == LENGTH:
        if _length(value) is None:
            raise BadHead(400, "content-length is not a plain decimal number of at most 15 digits")
        return (LENGTH, int(value), line)
    if kind == CODING:
        if value.lower() != b"chunked":
            raise BadHead(501, "the only transfer-encoding understood is a single 'chunked'")
        return (CODING, True, line)
    if kind == CONNECTION:
        if value.lower() == b"keep-alive":
            return (KEEP_ALIVE, None, line)
        return (CONNECTION, frozenset(option.strip(b" \t") for option in value.lower().split(b",")), line)
    if kind == HOST:  # counted: one that names no host counts as two, so it is never "exactly one"
        return (HOST, 1 if not value or names_host(value) else 2, line)
    if kind == PATIENCE:
        return (PATIENCE, float(value) if _patience(value) and float(value) > 0 else None, line)
    if kind == UPGRADE:
        return (UPGRADE, frozenset(each.strip(b" \t").partition(b"/")[0] for each in value.lower().split(b",")), line)
    if kind == REQUEST_ID:
        return (REQUEST_ID, None, line)  # not what can be handed on: treated as none
    if kind == ENCODING:
        return None if value.lower() in (b"identity", b"") else (ENCODING, value, line)
    if kind == CONTENT:
        lowered = value.lower()
        told = lowered.startswith((b"multipart/", b"text/event-stream", GRPC))
        return (CONTENT, value, line) if told else None
    return (kind, value, line)


LINES: Final = Memory()
