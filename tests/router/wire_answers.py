"""Raw answers of an engine and what the client gets for each, whole or byte by byte: the rows are the documentation.

`docs/http.md` shows these rows, and `test_wire_answers.py` holds the page and the router to them. What was forwarded
cannot be taken back, so an answer that breaks gets a 502 while nothing of it has left and cuts the client off
afterwards; where the two forms of sending differ in that, the row says both.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.shell.heads import HEAD_MAX
from tests.router.wire import DONE, SSE_HEAD, chunk, event, post

BAD = "502 bad_answer"
FAILED = "502 replica_failed"
CUT = "cut off"
EVENT_ERROR = "200, the whole events, an error event"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer. `gets`: status and body that the client gets whole, or one of the words above; `in_pieces`: the same
    when it comes byte by byte, None = the same; `kept`: the engine's connection is used again; `closes`: the client's is
    not; `ends`: the engine closes ("close") or resets ("reset") its connection behind it; `later`: what it sends when the
    answer is long over; `asked`: the request.
    """

    what: str
    sent: bytes
    gets: str
    in_pieces: str | None = None
    kept: bool = False
    closes: bool = False
    ends: str = ""
    later: bytes = b""
    asked: bytes = post()


def good(what: str, sent: bytes, gets: str = "200 ok", **more: object) -> Row:
    """A whole answer on a connection that is kept."""
    return Row(what=what, sent=sent, gets=gets, kept=True, **more)  # type: ignore[arg-type]  # fields of Row by name


def once(what: str, sent: bytes, gets: str = "200 ok", **more: object) -> Row:
    """A whole answer on a connection that is dropped."""
    return Row(what=what, sent=sent, gets=gets, **more)  # type: ignore[arg-type]  # fields of Row by name


def bad(what: str, sent: bytes, **more: object) -> Row:
    """Not HTTP."""
    return Row(what=what, sent=sent, gets=BAD, **more)  # type: ignore[arg-type]  # fields of Row by name


OK = b"HTTP/1.1 200 OK\r\n"
L2 = b"Content-Length: 2\r\n"
CH = b"Transfer-Encoding: chunked\r\n"
OK2 = OK + L2 + b"\r\nok"
CHUNKS = OK + CH + b"\r\n"
END = b"0\r\n\r\n"
HEAD = b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n"
OLD = b"GET /x HTTP/1.0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

WORDS = 'data: {"choices":[{"index":0,"delta":{"content":"Größe: 10 € 😀"}}]}\n\n'.encode()

FRAMING = [
    good("a length", OK2),
    good("a length of 0", OK + b"Content-Length: 0\r\n\r\n", "200 "),
    good("chunks", CHUNKS + chunk(b"o") + chunk(b"k") + END),
    good("chunks with an extension and a trailer", CHUNKS + b"2;a=b\r\nok\r\n0\r\nX-Trailer: y\r\n\r\n"),
    good("chunks to a client of HTTP/1.0", CHUNKS + chunk(b"o") + chunk(b"k") + END, asked=OLD, closes=True),
    once("neither, until the connection ends", OK + b"\r\nok", ends="close", closes=True),
    Row(what="neither, and the connection is reset", sent=OK + b"\r\nok", gets=CUT, ends="reset", closes=True),
    once("HTTP/1.0 with a length", b"HTTP/1.0 200 OK\r\n" + L2 + b"\r\nok"),
    good("HTTP/1.0 with a length, keep-alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + L2 + b"\r\nok"),
    once("HTTP/1.0 with chunks", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + CH + b"\r\n" + chunk(b"ok") + END),
    once("Connection: close", OK + b"Connection: close\r\n" + L2 + b"\r\nok"),
    once("Connection: close and keep-alive", OK + b"Connection: close\r\nConnection: keep-alive\r\n" + L2 + b"\r\nok"),
    good("204 with a length", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "204 "),
    once("204 with a body", b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", "204 "),
    good("304 with a length", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "304 "),
    good("HEAD with a length", OK + b"Content-Length: 500\r\n\r\n", "200 ", asked=HEAD),
    good("HEAD with chunks", CHUNKS, "200 ", asked=HEAD),
    once("HEAD with a body", OK2, "200 ", asked=HEAD),
    good("100 and 103 before the answer", CONTINUE + b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK2),
    good("no reason behind the status", b"HTTP/1.1 200\r\n" + L2 + b"\r\nok"),
    good("a status nobody knows", b"HTTP/1.1 799 Odd\r\n" + L2 + b"\r\nok", "799 ok"),
    good("an error of the engine", b"HTTP/1.1 400 Bad Request\r\n" + L2 + b"\r\nno", "400 no"),
]

SURPLUS = [
    once("bytes behind a length", OK2 + b"x"),
    once("a second answer behind a length", OK2 + OK2),
    Row(what="a second answer behind chunks", sent=CHUNKS + chunk(b"ok") + END + OK2, gets=BAD, in_pieces="200 ok"),
    Row(what="garbage behind chunks", sent=CHUNKS + chunk(b"ok") + END + b"\x00", gets=BAD, in_pieces="200 ok"),
    once("empty lines behind chunks", CHUNKS + chunk(b"ok") + END + b"\r\n\r\n"),
    once("empty lines behind a trailer", CHUNKS + chunk(b"ok") + b"0\r\nX-T: y\r\n\r\n\r\n"),
    once("bare line feeds behind chunks", CHUNKS + chunk(b"ok") + END + b"\n\n"),
    once("empty lines behind events", SSE_HEAD + chunk(event(0)) + END + b"\r\n\r\n", "200 one event"),
    once("bytes on the idle connection", OK2, later=OK2),
    once("an empty line on the idle connection", OK2, later=b"\r\n"),
]

BROKEN = [
    bad("length and chunked", OK + L2 + CH + b"\r\n" + chunk(b"ok") + END),
    bad("two equal lengths", OK + L2 + L2 + b"\r\nok"),
    bad("two different lengths", OK + L2 + b"Content-Length: 3\r\n\r\nokk"),
    bad("a list of lengths", OK + b"Content-Length: 2, 2\r\n\r\nok"),
    bad("a negative length", OK + b"Content-Length: -1\r\n\r\n"),
    bad("a length with a plus", OK + b"Content-Length: +2\r\n\r\nok"),
    bad("a length of 2^64 + 2", OK + b"Content-Length: 18446744073709551618\r\n\r\nok"),
    bad("coding gzip, chunked", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    bad("coding chunked twice", OK + CH + CH + b"\r\n" + END),
    bad("a folded line", OK + L2 + b"X: y\r\n z\r\n\r\nok"),
    bad("a blank before the colon", OK + b"Content-Length : 2\r\n\r\nok"),
    bad("a zero byte in a header", OK + L2 + b"X: \x00\r\n\r\nok"),
    bad("a bare line feed in a header", OK + b"X: y\n" + L2 + b"\r\nok"),
    bad("a line without colon", OK + b"hello\r\n\r\n"),
    bad("a status of two digits", b"HTTP/1.1 20 OK\r\n\r\n"),
    bad("HTTP/2 in words", b"HTTP/2 200 OK\r\n\r\n"),
    bad("ICY", b"ICY 200 OK\r\n\r\n"),
    bad("another protocol", b"SSH-2.0-OpenSSH\r\n\r\n"),
    bad("101, though no upgrade was asked for", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"),
    bad("more than eight 1xx", CONTINUE * 9 + OK2),
    bad("a head above 64 KiB", OK + b"X: " + b"y" * HEAD_MAX + b"\r\n\r\n"),
    bad("a head above 64 KiB that never ends", OK + b"X: " + b"y" * (HEAD_MAX + 1)),
    Row(what="a bad chunk size", sent=CHUNKS + b"zz\r\n", gets=BAD, in_pieces=CUT, closes=True),
    Row(what="a chunk of 2^64 + 1", sent=CHUNKS + b"10000000000000001\r\nx", gets=BAD, in_pieces=CUT, closes=True),
    Row(what="chunk data not closed by CRLF", sent=CHUNKS + b"2\r\nokX", gets=BAD, in_pieces=CUT, closes=True),
    Row(
        what="a trailer without colon",
        sent=CHUNKS + chunk(b"ok") + b"0\r\nbad\r\n",
        gets=BAD,
        in_pieces=CUT,
        closes=True,
    ),
]

ENDS = [
    Row(what="nothing", sent=b"", gets=FAILED, ends="close"),
    Row(what="nothing, reset", sent=b"", gets=FAILED, ends="reset"),
    Row(what="half a head", sent=OK + L2, gets=FAILED, ends="close"),
    Row(what="a head of bare line feeds", sent=b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", gets=FAILED, ends="close"),
    Row(what="a 100 and no more", sent=CONTINUE, gets=FAILED, ends="close"),
    Row(what="half a body of known length", sent=OK + L2 + b"\r\no", gets=CUT, ends="close", closes=True),
    Row(what="chunks without the last", sent=CHUNKS + chunk(b"ok"), gets=CUT, ends="close", closes=True),
]

EVENTS = [
    good("events and their end", SSE_HEAD + chunk(event(0)) + chunk(event(1)) + END, "200 two events"),
    good(
        "an event in three chunks",
        SSE_HEAD + chunk(b"da") + chunk(event(0)[2:9]) + chunk(event(0)[9:]) + END,
        "200 one event",
    ),
    good(
        "characters of several bytes, and [DONE]",
        SSE_HEAD + chunk(WORDS[:9]) + chunk(WORDS[9:]) + chunk(DONE) + END,
        "200 all of it",
    ),
    good("two events in a chunk", SSE_HEAD + chunk(event(0) + event(1)) + END, "200 two events"),
    Row(what="events and then nothing", sent=SSE_HEAD + chunk(event(0)), gets=EVENT_ERROR, ends="close"),
    Row(
        what="events and half an event",
        sent=SSE_HEAD + chunk(event(0)) + chunk(event(1)[:9]),
        gets=EVENT_ERROR,
        ends="reset",
    ),
    Row(
        what="events and a bad chunk",
        sent=SSE_HEAD + chunk(event(0)) + b"zz\r\n",
        gets=BAD,
        in_pieces=EVENT_ERROR,
    ),
]

SECTIONS: dict[str, list[Row]] = {
    "Framing": FRAMING,
    "More than the answer": SURPLUS,
    "Not HTTP": BROKEN,
    "The connection ends too early": ENDS,
    "Event streams": EVENTS,
}
FAULTS = {
    "Framing": "R29",
    "More than the answer": "R15",
    "Not HTTP": "R15",
    "The connection ends too early": "R15",
    "Event streams": "R12",
}
"""The field fault that a section shows."""
ROWS = {row.what: row for rows in SECTIONS.values() for row in rows}
