"""The head parser: what is refused and with which status, what is dropped, what is forwarded as it came."""

from __future__ import annotations

import asyncio

import pytest

from router.shell import lines
from router.shell.heads import END, read_answer, read_request
from router.shell.http import Limits
from router.shell.lines import BadHead
from tests.router.wire import Site, json_answer, on_uvloop

OK = b"POST /x HTTP/1.1\r\nHost: a\r\n"
LENGTH_2 = b"Content-Length: 2\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

REFUSED: dict[str, tuple[int, bytes]] = {
    "length and chunked": (400, OK + LENGTH_2 + CHUNKED),
    "chunked and length": (400, OK + CHUNKED + LENGTH_2),
    "two equal lengths": (400, OK + LENGTH_2 + LENGTH_2),
    "two different lengths": (400, OK + LENGTH_2 + b"Content-Length: 3\r\n"),
    "a list of lengths": (400, OK + b"Content-Length: 2, 2\r\n"),
    "a length with a plus": (400, OK + b"Content-Length: +28\r\n"),
    "a negative length": (400, OK + b"Content-Length: -1\r\n"),
    "a hexadecimal length": (400, OK + b"Content-Length: 0x1c\r\n"),
    "a length with a space": (400, OK + b"Content-Length: 2 8\r\n"),
    "a length with an underscore": (400, OK + b"Content-Length: 2_8\r\n"),
    "a length in Arabic digits": (400, OK + "Content-Length: ٢\r\n".encode()),
    "an empty length": (400, OK + b"Content-Length:\r\n"),
    "a length of 2^64": (400, OK + b"Content-Length: 18446744073709551616\r\n"),
    "a length of 2^64 + 28": (400, OK + b"Content-Length: 18446744073709551644\r\n"),
    "a length with leading zeros": (400, OK + b"Content-Length: 0028\r\n"),
    "a length of 10^12": (413, OK + b"Content-Length: 1000000000000\r\n"),
    "coding xchunked": (501, OK + b"Transfer-Encoding: xchunked\r\n"),
    "coding chunked, identity": (501, OK + b"Transfer-Encoding: chunked, identity\r\n"),
    "coding gzip, chunked": (501, OK + b"Transfer-Encoding: gzip, chunked\r\n"),
    "coding identity": (501, OK + b"Transfer-Encoding: identity\r\n"),
    "coding twice": (400, OK + CHUNKED + CHUNKED),
    "coding in quotes": (501, OK + b'Transfer-Encoding: "chunked"\r\n'),
    "coding with a parameter": (501, OK + b"Transfer-Encoding: chunked;x\r\n"),
    "coding with a vertical tab": (400, OK + b"Transfer-Encoding: \x0bchunked\r\n"),
    "a space before the colon": (400, OK + b"Transfer-Encoding : chunked\r\n"),
    "a tab before the colon": (400, OK + b"X\t: y\r\n"),
    "a folded line": (400, OK + b"X: y\r\n z\r\n"),
    "a line folded by a tab": (400, OK + b"X: y\r\n\tz\r\n"),
    "a space before the first name": (400, b"POST /x HTTP/1.1\r\n Host: a\r\n"),
    "coding with HTTP/1.0": (400, b"POST /x HTTP/1.0\r\n" + CHUNKED),
    "a bare line feed in a header": (400, OK + b"X: y\nContent-Length: 2\r\n"),
    "a bare carriage return": (400, OK + b"X: y\rz\r\n"),
    "a zero byte": (400, OK + b"X: y\x00z\r\n"),
    "a DEL byte": (400, OK + b"X: y\x7fz\r\n"),
    "an empty name": (400, OK + b": y\r\n"),
    "no colon": (400, OK + b"hello\r\n"),
    "two spaces in the request line": (400, b"POST  /x HTTP/1.1\r\nHost: a\r\n"),
    "a tab in the request line": (400, b"POST\t/x HTTP/1.1\r\nHost: a\r\n"),
    "HTTP/1.2": (400, b"POST /x HTTP/1.2\r\nHost: a\r\n"),
    "HTTP/2 in words": (400, b"POST /x HTTP/2.0\r\nHost: a\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n"),
    "the preface of HTTP/2": (400, b"PRI * HTTP/2.0\r\n"),
    "an absolute target": (400, b"GET http://evil/ HTTP/1.1\r\nHost: a\r\n"),
    "CONNECT": (400, b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n"),
    "a star that is not OPTIONS": (400, b"GET * HTTP/1.1\r\nHost: a\r\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n"),
    "two hosts": (400, OK + b"Host: b\r\n"),
    "connection names content-length": (400, OK + b"Connection: Content-Length\r\n" + LENGTH_2),
    "connection names authorization": (400, OK + b"Connection: close, authorization\r\n"),
    "an unknown expectation": (417, OK + b"Expect: 200-ok\r\n"),
    "a TLS hello": (400, b"\x16\x03\x01\x02\x00\r\n"),
    "an empty line first": (400, b"\r\nGET / HTTP/1.1\r\nHost: a\r\n"),
}

BODIES: dict[str, bytes] = {
    "a size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a negative size": b"-1\r\nhello\r\n0\r\n\r\n",
    "an empty size": b"\r\nhello\r\n0\r\n\r\n",
    "a size with a space": b" 5\r\nhello\r\n0\r\n\r\n",
    "a size beyond 2^64": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "data not closed by CRLF": b"5\r\nhelloX0\r\n\r\n",
    "a size line with a bare line feed": b"5\nhello\r\n0\r\n\r\n",
    "an extension with a bare line feed": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "a terminal chunk of bare line feeds": b"0\n\n",
    "a bad trailer": b"0\r\nbad trailer\r\n\r\n",
    "a request pipelined behind it": b"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
    "garbage behind it": b"0\r\n\r\nGARBAGE",
}


@pytest.mark.parametrize("what", REFUSED)
@on_uvloop
async def test_refused_heads_whole_and_by_the_byte(what: str) -> None:
    status, head = REFUSED[what]
    async with Site(json_answer()) as site:
        for by_byte in (False, True):
            caller = await site.call()
            if by_byte:
                for byte in head + b"\r\n":
                    caller.writer.write(bytes([byte]))
                    await asyncio.sleep(0)
            else:
                caller.writer.write(head + b"\r\n")
            answer = await caller.answer()
            assert (answer.status, answer.fields["connection"]) == (status, "close")
            assert await caller.closed() == b""
        assert site.engines[0].connections == 0
        await site.settled()


@pytest.mark.parametrize("what", BODIES)
@on_uvloop
async def test_refused_chunked_bodies_whole_and_by_the_byte(what: str) -> None:
    async with Site(json_answer(), limits=Limits(head_s=0.2)) as site:
        for by_byte in (False, True):
            caller = await site.call()
            sent = OK + CHUNKED + b"\r\n" + BODIES[what]
            for part in (bytes([byte]) for byte in sent) if by_byte else (sent,):
                caller.writer.write(part)
                await asyncio.sleep(0)
            if by_byte and "behind" in what:  # the body ended before the rest came: the rest is a request of its own
                assert (await caller.answer()).status == 200
                assert (await caller.answer()).status == (200 if "request" in what else 400)
                continue
            answer = await caller.answer()
            assert (answer.status, answer.fields["connection"]) == (400, "close")
            assert await caller.closed() == b""
        assert site.plane.counters.bad_requests >= 1
        await site.settled()


@on_uvloop
async def test_what_never_ends_is_ended_by_the_bounds() -> None:
    async with Site(json_answer(), limits=Limits(head_s=0.2, body_s=0.2)) as site:
        for sent in (b"GET / HTTP/1.1\nHost: a\n\n", OK + CHUNKED + b"\r\nFFFFFFFFFFFFFFFF\r\nx"):
            caller = await site.call()
            caller.writer.write(sent)
            assert (await caller.answer()).status == 400
        assert site.engines[0].connections == 0
        await site.settled()


@on_uvloop
async def test_what_is_accepted_reaches_the_engine_in_one_reading_only() -> None:
    accepted = [
        OK + b"Transfer-Encoding: Chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\n\r\n",
        OK + CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX-Trailer: y\r\n\r\n",
        OK + b"Content-Length: 5\r\ncontent_length: 99\r\n\r\nhello",
        OK
        + b"Content-Length: 5\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\nhello",
    ]
    async with Site(json_answer()) as site:
        for sent in accepted:
            assert (await site.ask(sent)).status == 200
        for received in site.engines[0].received:
            assert received.body == b"hello"
            assert received.field("content-length") == ["5"]
            for name in ("transfer-encoding", "content_length", "upgrade", "http2-settings", "connection", "x-trailer"):
                assert received.field(name) == []


def test_lines_are_remembered_within_bounds_and_ids_never() -> None:
    lines.LINES.clear()
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\nX-Request-Id: %d\r\nX-Long: %b"
    for number in range(3):
        told = read_request(head % (number, b"x" * 300))
        assert told.client_id == b"%d" % number
    assert len(lines.LINES) == 2
    for number in range(lines.LINES_KEPT + 10):
        read_request(b"GET / HTTP/1.1\r\nHost: a\r\nX-N: %d" % number)
    assert len(lines.LINES) <= lines.LINES_KEPT


def test_a_request_head_in_full() -> None:
    told = read_request(
        b"POST /v1?x HTTP/1.1\r\nHost: a\r\nX-Request-Id: one\r\nX-Request-Id: two\r\nKEEP-ALIVE: 5\r\nX-Model: m/n\r\n"
        b"Content-Type: Multipart/form-data; boundary=b\r\nContent-Encoding: gzip\r\nExpect: 100-Continue\r\nContent-Length: 7"
    )
    assert (told.line.method, told.line.target, told.line.old) == (b"POST", b"/v1?x", False)
    assert (told.client_id, told.model, told.length, told.expect, told.encoded) == (b"one", "m/n", 7, True, True)
    assert told.form == b"Multipart/form-data; boundary=b"
    assert told.lines == (
        b"\r\nHost: a\r\nX-Model: m/n\r\nContent-Type: Multipart/form-data; boundary=b\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: 7\r\n"
    )
    for unusable in (b"", b"a b", b"x" * 129, "ä".encode()):
        told = read_request(b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: " + unusable)
        assert (told.client_id, told.lines) == (None, b"\r\nHost: a\r\n")
    old = read_request(b"GET / HTTP/1.0\r\nConnection: keep-alive")
    assert (old.keep, old.line.text) == (False, b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\nX : y",
        b"HTTP/1.1 20 OK",
        b"HTTP/2 200 OK",
        b"ICY 200 OK",
    ],
)
def test_refused_answers_are_502(head: bytes) -> None:
    with pytest.raises(BadHead) as refused:
        read_answer(head)
    assert refused.value.status == 502


def test_an_answer_head_in_full_and_remembered() -> None:
    head = (
        b"HTTP/1.0 200 Fine\r\nServer: x\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nX-Request-Id: theirs\r\n"
        b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    )
    told = read_answer(head)
    assert (told.status, told.keep, told.chunked, told.events, told.bodiless) == (200, True, True, True, False)
    assert told.text == (
        b"HTTP/1.1 200 Fine\r\nServer: x\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    )
    assert told.unchunked() == b"HTTP/1.1 200 Fine\r\nServer: x\r\nContent-Type: text/event-stream"
    plain = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close, x-gone\r\nX-Gone: 1\r\nX-Kept: 2"
    assert read_answer(plain) is read_answer(plain)
    assert read_answer(plain).text == b"HTTP/1.1 204 No Content\r\nX-Kept: 2"
    assert not read_answer(plain).keep
    assert END not in told.text
