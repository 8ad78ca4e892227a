"""Messages for the fuzzer: good requests and answers of every kind, and ways to spoil them that know their structure.

Each request carries a mark of its own, which its answer must carry back: so an answer that reaches the wrong client is
seen. A mark has a checksum: spoiling one does not make another.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from typing import Final

mark_in = re.compile(rb"q(\d+)-([0-9a-f]{8})z").finditer
MARKS_EACH: Final = 1000
"""The marks of client N are N times this many and up, in the order of its requests."""
NASTY_LINES: Final = (
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"content-length: 99999999999999999999",
    b"Content-Length: +3",
    b"Content-Length : 3",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: content-length",
    b"Connection: x-a, x-model",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Expect: 0",
    b"Host: b",
    b"X-Model: m",
    b"X-Model: alias",
    b"x-queue-timeout-s: 0.3",
    b"x-queue-timeout-s: x",
    b"x-request-id: mine",
    b"Content-Encoding: gzip",
    b"Content-Type: text/event-stream",
    b"Content-Type: multipart/form-data; boundary=zz",
    b" folded: y",
    b"X-A: \x00",
    b"no colon",
)
NASTY_BYTES: Final = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\n\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"data: [DONE]\n\n",
    b"\x00",
    b"\xff",
)


def mark(number: int) -> bytes:
    """The mark of a request."""
    return b"q%d-%08xz" % (number, zlib.crc32(b"%d" % number))


def marks(data: bytes | bytearray) -> list[int]:
    """The numbers of all whole marks in it, in order."""
    return [int(each[1]) for each in mark_in(data) if int(each[2], 16) == zlib.crc32(each[1])]


def chunked(rng: random.Random, data: bytes) -> bytes:
    """The same in chunks."""
    parts = b""
    while data:
        size = rng.choice((1, 7, len(data)))
        extension = rng.choice((b"", b"", b"", b";a=b"))
        parts += b"%x%b\r\n%b\r\n" % (len(data[:size]), extension, data[:size])
        data = data[size:]
    return parts + rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX-T: y\r\n\r\n"))


def request(rng: random.Random, own: bytes) -> bytes:
    """A good request with this mark, one that an engine is to answer."""
    lines = [b"Host: a"]
    for line in (b"X-A: b", b"Connection: keep-alive", b"X-Request-Id: i", b"x-queue-timeout-s: 1", b"\tX: y"[1:]):
        if rng.random() < 0.3:
            lines.append(line)
    if rng.random() < 0.2:
        return b"GET /x?%b HTTP/1.1\r\n%b\r\n\r\n" % (own, b"\r\n".join(lines))
    model = rng.choice((b"m", b"m", b"alias"))
    body = b'{"model":"%b","user":"%b","stream":true}' % (model, own)
    if rng.random() < 0.02:
        body = body.ljust(rng.randrange(500_000, 700_000))
    kind = rng.random()
    if kind < 0.1:
        body = b'--zz\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--zz\r\n\r\n%b--zz--' % own
        lines.append(b"Content-Type: multipart/form-data; boundary=zz")
    if rng.random() < 0.1:
        lines.append(b"Expect: 100-continue")
    path = rng.choice((b"/v1/chat/completions", b"/v1/completions?a=%2F", b"/v2/models/m/infer", b"http://a/x"))
    if rng.random() < 0.3 and len(body) < 1000:
        lines.append(b"Transfer-Encoding: chunked")
        body = chunked(rng, body)
    else:
        lines.append(b"Content-Length: %d" % len(body))
    return b"POST %b HTTP/1.1\r\n%b\r\n\r\n%b" % (path, b"\r\n".join(lines), body)


def side_request(rng: random.Random, own: bytes) -> bytes:
    """A request that no engine sees, that closes, or has no body in its answer."""
    return rng.choice(
        (
            b"GET /health?%b HTTP/1.1\r\nHost: a\r\n\r\n" % own,
            b"HEAD /x?%b HTTP/1.1\r\nHost: a\r\n\r\n" % own,
            b"GET /x?%b HTTP/1.0\r\n\r\n" % own,
            b"OPTIONS * HTTP/1.1\r\nHost: a\r\nX-Own: %b\r\n\r\n" % own,
            b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n{"model":"z"}',
            b"POST /x?%b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}" % own,
            b"\r\nGET /x?%b HTTP/1.1\r\nHost: a\r\n\r\n" % own,
        )
    )


def answer(rng: random.Random, own: bytes) -> bytes:
    """A good answer of an engine with this mark, on a connection that it keeps."""
    early = rng.choice(
        (b"", b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    )
    status = rng.choice((b"200 OK", b"200 OK", b"200 OK", b"400 Bad Request", b"404 Not Found"))
    kind = rng.randrange(4)
    if kind == 0:
        body = b'{"own":"%b"}' % own
        return early + b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
    if kind == 1:
        body = b"own: %b;" % own + b"x" * rng.randrange(300)
        return early + b"HTTP/1.1 %b\r\ntransfer-encoding: chunked\r\n\r\n%b" % (status, chunked(rng, body))
    events = (
        b"".join(b'data: {"own":"%b","n":%d}\n\n' % (own, n) for n in range(rng.randrange(1, 5))) + b"data: [DONE]\n\n"
    )
    if kind == 2:
        events = events.replace(b"\n", b"\r\n")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return early + head + chunked(rng, events)


def odd_answer(rng: random.Random, own: bytes) -> bytes:
    """An answer that is good but odd: without a body, until the end of the connection, of HTTP/1.0, an error."""
    return rng.choice(
        (
            b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n%b" % own,
            b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(own), own),
            b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: %d\r\n\r\n%b" % (len(own), own),
            b"HTTP/1.1 500 Oops\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(own), own),
            b"HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n" + own.ljust(200_000),
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: %b\n\n" % own,
        )
    )


def _line(rng: random.Random, data: bytes) -> bytes:
    """Add, drop, double or move a line of the head."""
    head, end, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    place = rng.randrange(len(lines)) + 1
    match rng.randrange(4):
        case 0:
            lines.insert(place, rng.choice(NASTY_LINES))
        case 1:
            del lines[place - 1]
        case 2:
            lines.insert(place, lines[place - 1])
        case 3:
            lines.append(lines.pop(place - 1))
    return b"\r\n".join(lines) + end + body


def _number(rng: random.Random, data: bytes) -> bytes:
    """Change a number: a length, a chunk's size, a status, a version."""
    found = list(re.finditer(rb"(?<=[ \n])[0-9a-f]{1,8}(?=[\r; ])", data))
    if not found:
        return data
    place = rng.choice(found)
    new = rng.choice((b"0", b"1", b"-1", b"0x2", b"+2", b"fffffffffffffffff", b"007", b"9" * 18, b"", b"5 5"))
    return data[: place.start()] + new + data[place.end() :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(NASTY_BYTES) + data[place:]


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 1, 2, 5, 30)) :]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start : start + rng.randrange(1, 60)] * 2 + data[start:]


def _byte(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _line_end(rng: random.Random, data: bytes) -> bytes:
    ends = [each.start() for each in re.finditer(rb"\r\n", data)]
    if not ends:
        return data
    place = rng.choice(ends)
    return data[:place] + rng.choice((b"\n", b"\r", b"\r\r\n", b"\n\r", b"", b" \r\n")) + data[place + 2 :]


SPOILERS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    _line,
    _line,
    _number,
    _insert,
    _cut,
    _drop,
    _repeat,
    _byte,
    _line_end,
)


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """The same with one to three faults."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(SPOILERS)(rng, data)
    return data
