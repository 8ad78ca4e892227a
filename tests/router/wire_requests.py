"""Raw requests and the one answer that each gets, whole or byte by byte: the rows are the documentation.

`refused`: the status, nothing reaches an engine, the connection closes. `late`: the same, but only when a bound on time
passes. `passes`: 200 from the engine, and what it got; the connection lives on unless `closes`. `docs/http.md` shows
these rows by section, and `test_wire_requests.py` holds the page and the router to them.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field

from router.shell.client import PIPELINED_MAX
from router.shell.heads import HEAD_MAX

BODY_MAX = 1000
"""Limit on a body where these rows are tried; 64 MiB by default."""
GOT_OK = (200,)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request (or several on one connection). `answers`: statuses in order; `gets`: (request line, body) of each
    request that reaches an engine; `fields`: headers of the first of these, [] = absent; `closes`: the router closes
    the connection behind the last answer; `late`: seconds that pass before it is answered; `models`: how many are
    known; `heads`: the answers have no body.
    """

    what: str
    sent: bytes
    answers: tuple[int, ...] = GOT_OK
    gets: tuple[tuple[str, bytes], ...] = ()
    fields: dict[str, list[str]] = field(default_factory=dict)
    closes: bool = False
    late: float = 0.0
    models: int = 1
    heads: bool = False


def refused(what: str, status: int, sent: bytes, *, models: int = 1) -> Row:
    """Answered with `status` and closed."""
    return Row(what=what, sent=sent, answers=(status,), closes=True, models=models)


def late(what: str, status: int, sent: bytes, after_s: float = 11.0) -> Row:
    """Not whole: answered with `status` and closed when the bound has passed."""
    return Row(what=what, sent=sent, answers=(status,), closes=True, late=after_s)


def passes(
    what: str,
    sent: bytes,
    got: str = "POST /x HTTP/1.1",
    body: bytes = b"hello",
    *,
    fields: dict[str, list[str]] | None = None,
    closes: bool = False,
    models: int = 1,
    heads: bool = False,
) -> Row:
    """Reaches an engine."""
    return Row(
        what=what, sent=sent, gets=((got, body),), fields=fields or {}, closes=closes, models=models, heads=heads
    )


P = b"POST /x HTTP/1.1\r\nHost: a\r\n"
G = b"GET /x HTTP/1.1\r\nHost: a\r\n"
L2 = b"Content-Length: 2\r\n"
L5 = b"Content-Length: 5\r\n\r\nhello"
CH = b"Transfer-Encoding: chunked\r\n"
CHUNKS = P + CH + b"\r\n"
HELLO = b"5\r\nhello\r\n"
END = b"0\r\n\r\n"
GET = "GET /x HTTP/1.1"
TWICE = (("POST /x HTTP/1.1", b"hello"), ("GET /x HTTP/1.1", b""))


def get(target: bytes, *lines: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    """A request without a body."""
    return b"%b %b HTTP/%b\r\nHost: a\r\n%b\r\n" % (method, target, version, b"".join(x + b"\r\n" for x in lines))


def head(*lines: bytes) -> bytes:
    """A POST with these lines and a body of five bytes."""
    return P + b"".join(x + b"\r\n" for x in lines) + L5


LENGTHS = [
    refused("length and chunked", 400, P + L2 + CH + b"\r\n0\r\n\r\n"),
    refused("chunked and length", 400, P + CH + L2 + b"\r\n0\r\n\r\n"),
    refused("two equal lengths", 400, P + L2 + L2 + b"\r\nab"),
    refused("two different lengths", 400, P + L2 + b"Content-Length: 3\r\n\r\nabc"),
    refused("a list of lengths", 400, P + b"Content-Length: 2, 2\r\n\r\nab"),
    refused("a length with a plus", 400, P + b"Content-Length: +2\r\n\r\nab"),
    refused("a negative length", 400, P + b"Content-Length: -1\r\n\r\n"),
    refused("a hexadecimal length", 400, P + b"Content-Length: 0x2\r\n\r\nab"),
    refused("a length with a blank inside", 400, P + b"Content-Length: 2 8\r\n\r\n"),
    refused("a length with an underscore", 400, P + b"Content-Length: 2_8\r\n\r\n"),
    refused("a length in Arabic digits", 400, P + "Content-Length: ٢\r\n\r\nab".encode()),
    refused("an empty length", 400, P + b"Content-Length:\r\n\r\n"),
    refused("a length with leading zeros", 400, P + b"Content-Length: 0002\r\n\r\nab"),
    refused("a length of 2^64", 400, P + b"Content-Length: 18446744073709551616\r\n\r\n"),
    refused("a length of 2^64 + 2", 400, P + b"Content-Length: 18446744073709551618\r\n\r\nab"),
    refused("a length above the limit", 413, P + b"Content-Length: 1001\r\n\r\n"),
    late("a body shorter than its length", 400, P + L2 + b"\r\na", 31.0),
    passes("blanks around a length", P + b"Content-Length: \t5 \t\r\n\r\nhello"),
    passes("a length of 0", P + b"Content-Length: 0\r\n\r\n", body=b"", fields={"content-length": ["0"]}),
    passes("a GET with a body", b"GET /x HTTP/1.1\r\nHost: a\r\n" + L5, GET),
    passes("a POST without length or chunks", P + b"\r\n", body=b"", fields={"content-length": []}),
]

CHUNKED = [
    refused("coding xchunked", 501, P + b"Transfer-Encoding: xchunked\r\n\r\n"),
    refused("coding chunked, identity", 501, P + b"Transfer-Encoding: chunked, identity\r\n\r\n"),
    refused("coding gzip, chunked", 501, P + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    refused("coding identity", 501, P + b"Transfer-Encoding: identity\r\n\r\n"),
    refused("coding in quotes", 501, P + b'Transfer-Encoding: "chunked"\r\n\r\n'),
    refused("coding with a parameter", 501, P + b"Transfer-Encoding: chunked;x\r\n\r\n"),
    refused("coding chunked twice", 400, P + CH + CH + b"\r\n0\r\n\r\n"),
    refused("coding with a vertical tab", 400, P + b"Transfer-Encoding: \x0bchunked\r\n\r\n"),
    refused("coding with HTTP/1.0", 400, b"POST /x HTTP/1.0\r\n" + CH + b"\r\n0\r\n\r\n"),
    refused("a chunk size with 0x", 400, CHUNKS + b"0x5\r\nhello\r\n0\r\n\r\n"),
    refused("a negative chunk size", 400, CHUNKS + b"-1\r\nhello\r\n0\r\n\r\n"),
    refused("an empty chunk size", 400, CHUNKS + b"\r\nhello\r\n0\r\n\r\n"),
    refused("a blank before a chunk size", 400, CHUNKS + b" 5\r\nhello\r\n0\r\n\r\n"),
    refused("a blank behind a chunk size", 400, CHUNKS + b"5 \r\nhello\r\n0\r\n\r\n"),
    refused("a chunk size beyond 2^64", 400, CHUNKS + b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    late("a chunk of 2^64 - 1 bytes", 400, CHUNKS + b"FFFFFFFFFFFFFFFF\r\nx", 31.0),
    refused("chunk data not closed by CRLF", 400, CHUNKS + b"5\r\nhelloX0\r\n\r\n"),
    refused("a chunk size closed by a bare line feed", 400, CHUNKS + b"5\nhello\r\n0\r\n\r\n"),
    refused("a bare line feed in a chunk extension", 400, CHUNKS + b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    refused("a last chunk of bare line feeds", 400, CHUNKS + b"0\n\n"),
    refused("a trailer without colon", 400, CHUNKS + HELLO + b"0\r\nbad trailer\r\n\r\n"),
    refused("a trailer Content-Length", 400, CHUNKS + HELLO + b"0\r\nContent-Length: 5\r\n\r\n"),
    refused("chunks above the limit", 413, CHUNKS + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n"),
    passes("Chunked in mixed case", P + b"Transfer-Encoding: ChunKed\r\n\r\n" + HELLO + END),
    passes(
        "chunks become one length",
        CHUNKS + b"2\r\nhe\r\n3\r\nllo\r\n" + END,
        fields={"content-length": ["5"], "transfer-encoding": []},
    ),
    passes("a chunk extension is dropped", CHUNKS + b'5;ext="1"\r\nhello\r\n' + END),
    passes(
        "a trailer is dropped",
        CHUNKS + HELLO + b"0\r\nX-Trailer: y\r\n\r\n",
        fields={"x-trailer": [], "content-length": ["5"]},
    ),
    passes("an empty line inside a chunk", CHUNKS + b"9\r\n{}\r\n\r\n0\r\n\r\n" + END, body=b"{}\r\n\r\n0\r\n"),
    passes("chunks without a chunk", CHUNKS + END, body=b"", fields={"content-length": ["0"]}),
]

LINES = [
    refused("a blank before the colon", 400, P + b"Content-Length : 2\r\n\r\nab"),
    refused("a tab before the colon", 400, P + b"X\t: y\r\n\r\n"),
    refused("a folded line", 400, P + b"X: y\r\n z\r\n\r\n"),
    refused("a line folded by a tab", 400, P + b"X: y\r\n\tz\r\n\r\n"),
    refused("a blank before the first name", 400, b"POST /x HTTP/1.1\r\n Host: a\r\n\r\n"),
    refused("a bare line feed in a header", 400, P + b"X: y\nContent-Length: 2\r\n\r\nab"),
    refused("a bare carriage return in a header", 400, P + b"X: y\rz\r\n\r\n"),
    refused("a zero byte in a header", 400, P + b"X: y\x00z\r\n\r\n"),
    refused("a DEL byte in a header", 400, P + b"X: y\x7fz\r\n\r\n"),
    refused("an empty name", 400, P + b": y\r\n\r\n"),
    refused("a name that is not ASCII", 400, P + "Größe: y\r\n\r\n".encode()),
    refused("a name with brackets", 400, P + b"X[0]: y\r\n\r\n"),
    refused("a line without colon", 400, P + b"hello\r\n\r\n"),
    refused("a head above 64 KiB", 431, G + b"X: " + b"y" * HEAD_MAX + b"\r\n\r\n"),
    refused("a head above 64 KiB that never ends", 431, G + b"X: " + b"y" * (HEAD_MAX + 1)),
    late("a head of bare line feeds", 400, b"GET /x HTTP/1.1\nHost: a\n\n"),
    late("half a head", 400, b"GET /x HTTP/1.1\r\nHost: a\r\n"),
    passes(
        "a head just within 64 KiB",
        get(b"/x", b"X-Long: " + b"y" * (HEAD_MAX - 100)),
        GET,
        b"",
    ),
    passes("an empty value", get(b"/x", b"X-Empty:"), GET, b"", fields={"x-empty": [""]}),
    passes("a value that is not ASCII", get(b"/x", "X-Name: Zoë".encode()), GET, b"", fields={"x-name": ["ZoÃ«"]}),
    passes("the same name twice", get(b"/x", b"X-A: 1", b"x-a: 2"), GET, b"", fields={"x-a": ["1", "2"]}),
    passes("a name with an underscore", get(b"/x", b"x_trace: 1"), GET, b"", fields={"x_trace": ["1"]}),
    passes(
        "a name that CGI takes for a length: dropped",
        head(b"content_length: 99", b"Transfer_Encoding: chunked"),
        fields={"content_length": [], "transfer_encoding": [], "content-length": ["5"]},
    ),
]

TARGETS = [
    refused("two blanks in the request line", 400, b"GET  /x HTTP/1.1\r\nHost: a\r\n\r\n"),
    refused("a tab in the request line", 400, b"GET\t/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    refused("a blank behind the request line", 400, b"GET /x HTTP/1.1 \r\nHost: a\r\n\r\n"),
    refused("a blank in the target", 400, b"GET /x y HTTP/1.1\r\nHost: a\r\n\r\n"),
    refused("a target that is not ASCII", 400, b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n"),
    refused("a target without slash", 400, get(b"x")),
    refused("a star that is not OPTIONS", 400, get(b"*")),
    refused("http/1.1 in lower case", 400, b"GET /x http/1.1\r\nHost: a\r\n\r\n"),
    refused("HTTP/0.9", 400, b"GET /x\r\n\r\n"),
    refused("HTTP/1.2", 505, get(b"/x", version=b"1.2")),
    refused("HTTP/2.0 in words", 505, get(b"/x", version=b"2.0")),
    refused("an absolute target of another host", 400, get(b"http://b/x")),
    refused("an absolute target with a user", 400, get(b"http://u@a/x")),
    refused("an absolute https target", 400, get(b"https://a/x")),
    passes("an absolute target of the same host", get(b"http://A/x?y#z"), "GET /x?y#z HTTP/1.1", b""),
    passes("an absolute target with the default port", get(b"http://a:80/x"), GET, b""),
    passes("an absolute target without path", get(b"http://a?y"), "GET /?y HTTP/1.1", b""),
    passes("an encoded slash", get(b"/a%2Fb%2e"), "GET /a%2Fb%2e HTTP/1.1", b""),
    passes("dots in the path", get(b"/a/../b/./c"), "GET /a/../b/./c HTTP/1.1", b""),
    passes("double and trailing slashes", get(b"//a//b/"), "GET //a//b/ HTTP/1.1", b""),
    passes("a query with everything", get(b"/x?a=%20+&b=/?&&c"), "GET /x?a=%20+&b=/?&&c HTTP/1.1", b""),
]

HOSTS = [
    refused("no host", 400, b"GET /x HTTP/1.1\r\n\r\n"),
    refused("two hosts", 400, get(b"/x", b"Host: b")),
    refused("the same host twice", 400, get(b"/x", b"Host: a")),
    refused("a host with a path", 400, b"GET /x HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    refused("a list of hosts", 400, b"GET /x HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    refused("a host with a user", 400, b"GET /x HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    passes("an empty host", b"GET /x HTTP/1.1\r\nHost:\r\n\r\n", GET, b"", fields={"host": [""]}),
    passes("an IPv6 host", b"GET /x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", GET, b"", fields={"host": ["[::1]:80"]}),
]

METHODS = [
    refused("CONNECT to a host", 501, b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n"),
    refused("CONNECT to a path", 501, get(b"/x", method=b"CONNECT")),
    refused("TRACE", 501, get(b"/x", method=b"TRACE")),
    refused("a method with a comma", 400, get(b"/x", method=b"GE,T")),
    passes("HEAD", get(b"/x", method=b"HEAD"), "HEAD /x HTTP/1.1", b"", heads=True),
    passes("OPTIONS", get(b"/x", method=b"OPTIONS"), "OPTIONS /x HTTP/1.1", b""),
    passes("OPTIONS *", get(b"*", method=b"OPTIONS"), "OPTIONS * HTTP/1.1", b""),
    passes("OPTIONS http://a", get(b"http://a", method=b"OPTIONS"), "OPTIONS * HTTP/1.1", b""),
    passes("DELETE", get(b"/x", method=b"DELETE"), "DELETE /x HTTP/1.1", b""),
    passes("a method nobody knows", get(b"/x", method=b"get"), "get /x HTTP/1.1", b""),
]

PROTOCOLS = [
    refused("WebSocket", 501, get(b"/x", b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: eA==")),
    refused("WebSocket beside others", 501, get(b"/x", b"Connection: Upgrade", b"Upgrade: h2c, WebSocket/13")),
    refused("the preface of HTTP/2", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    refused("gRPC", 415, head(b"Content-Type: application/grpc", b"TE: trailers")),
    refused("gRPC-Web", 415, head(b"Content-Type: application/grpc-web+proto")),
    refused("TLS", 400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    refused("a proxy's PROXY line", 400, b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + get(b"/x")),
    passes(
        "an upgrade to h2c is not taken up",
        head(b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk", b"Connection: Upgrade, HTTP2-Settings"),
        fields={"upgrade": [], "http2-settings": [], "connection": []},
    ),
    passes("HTTP/1.0", b"GET /x HTTP/1.0\r\nHost: a\r\n\r\n", GET, b"", closes=True),
    passes(
        "HTTP/1.0 that asks to keep the connection",
        b"GET /x HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        GET,
        b"",
        closes=True,
    ),
    passes("HTTP/1.0 without host", b"POST /x HTTP/1.0\r\n" + L5, closes=True),
]

CONNECTION = [
    refused("Connection names content-length", 400, head(b"Connection: Content-Length")),
    refused("Connection names authorization", 400, head(b"Connection: close, authorization")),
    passes(
        "a header that Connection names",
        head(b"Connection: X-Named", b"X-Named: 1", b"X-Kept: 2"),
        fields={"x-named": [], "x-kept": ["2"], "connection": []},
    ),
    passes(
        "hop-by-hop headers",
        head(b"TE: trailers", b"Keep-Alive: 5", b"Proxy-Authorization: a", b"Proxy-Connection: b", b"Trailer: c"),
        fields={"te": [], "keep-alive": [], "proxy-authorization": [], "proxy-connection": [], "trailer": []},
    ),
    passes("Connection: close", head(b"Connection: close"), closes=True, fields={"connection": []}),
    passes("Connection: keep-alive", head(b"Connection: keep-alive")),
    passes("Expect: 100-continue", head(b"Expect: 100-Continue"), fields={"expect": []}),
    refused("another expectation", 417, head(b"Expect: 200-ok")),
    Row(what="two requests at once", sent=head() + get(b"/x"), answers=(200, 200), gets=TWICE),
    Row(what="a request behind chunks", sent=CHUNKS + HELLO + END + get(b"/x"), answers=(200, 200), gets=TWICE),
    Row(what="an empty line behind a body", sent=head() + b"\r\n" + get(b"/x"), answers=(200, 200), gets=TWICE),
    Row(
        what="empty lines behind chunks",
        sent=CHUNKS + HELLO + END + b"\r\n\r\n" + get(b"/x"),
        answers=(200, 200),
        gets=TWICE,
    ),
    passes("an empty line before a request", b"\r\n" + get(b"/x"), GET, b""),
    passes("several empty lines before a request", b"\r\n\r\n\r\n" + get(b"/x"), GET, b""),
    refused("a bare line feed before a request", 400, b"\n" + get(b"/x")),
    refused("a blank before a request", 400, b" " + get(b"/x")),
    Row(what="garbage behind a body", sent=head() + b"\x00\x01", answers=(200, 400), gets=TWICE[:1], closes=True),
    Row(
        what="a bad request behind a good one",
        sent=head() + P + L2 + L2 + b"\r\nab",
        answers=(200, 400),
        gets=TWICE[:1],
        closes=True,
    ),
    Row(
        what="a second request behind Connection: close",
        sent=head(b"Connection: close") + get(b"/x"),
        gets=TWICE[:1],
        closes=True,
    ),
]

JSON_AND_BYTES = b'{"inputs":[{"name":"a"}]}' + bytes(range(256))
GZIPPED = gzip.compress(b'{"model":"m"}', mtime=0)
FORM = b'--zz\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--zz--\r\n'


def body(content: bytes, *lines: bytes, path: bytes = b"/x") -> bytes:
    """A POST with a body."""
    text = b"".join(line + b"\r\n" for line in lines)
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (path, text, len(content), content)


BODIES = [
    passes(
        "binary tensors behind JSON",
        body(JSON_AND_BYTES, b"Inference-Header-Content-Length: 25", path=b"/v2/models/m/infer"),
        "POST /v2/models/m/infer HTTP/1.1",
        JSON_AND_BYTES,
        fields={"inference-header-content-length": ["25"]},
        models=2,
    ),
    passes(
        "a compressed body with x-model",
        body(GZIPPED, b"Content-Encoding: gzip", b"X-Model: m"),
        body=GZIPPED,
        fields={"content-encoding": ["gzip"], "x-model": ["m"]},
        models=2,
    ),
    Row(
        what="a compressed body without x-model, several models",
        sent=body(GZIPPED, b"Content-Encoding: gzip"),
        answers=(400,),
        models=2,
    ),
    passes("a compressed body without x-model, one model", body(GZIPPED, b"Content-Encoding: gzip"), body=GZIPPED),
    passes(
        "a form with a field model",
        body(FORM, b"Content-Type: multipart/form-data; boundary=zz"),
        body=FORM,
        models=2,
    ),
    passes("a body that is not JSON, one model", body(b"{nonsense"), body=b"{nonsense"),
    Row(what="a body that is not JSON, several models", sent=body(b"{nonsense"), answers=(400,), models=2),
    Row(what="an unknown model", sent=body(b'{"model":"z"}'), answers=(404,)),
    refused("x-model twice", 400, head(b"X-Model: m", b"X-Model: n")),
    passes("a body as large as the limit", body(b"x" * BODY_MAX), body=b"x" * BODY_MAX),
    passes("x-queue-timeout-s: 2.5", head(b"X-Queue-Timeout-S: 2.5"), fields={"x-queue-timeout-s": ["2.5"]}),
    refused("x-queue-timeout-s: 0", 400, head(b"x-queue-timeout-s: 0")),
    refused("x-queue-timeout-s: 1e3", 400, head(b"x-queue-timeout-s: 1e3")),
    refused("x-queue-timeout-s: -1", 400, head(b"x-queue-timeout-s: -1")),
    refused("x-queue-timeout-s twice", 400, head(b"x-queue-timeout-s: 1", b"x-queue-timeout-s: 1")),
]

OTHERS = [
    Row(
        what="more than 64 KiB behind a request that is not answered yet",
        sent=body(b"hello") + b"x" * (PIPELINED_MAX + 1),
        answers=(413,),
        closes=True,
    )
]
"""Only when it comes in one read: byte by byte the first request is answered before the rest is here."""

SECTIONS: dict[str, list[Row]] = {
    "Length": LENGTHS,
    "Chunks": CHUNKED,
    "Header lines": LINES,
    "Request line and target": TARGETS,
    "Host": HOSTS,
    "Methods": METHODS,
    "Other protocols": PROTOCOLS,
    "Connections": CONNECTION,
    "Bodies and headers for the router": BODIES,
}
ROWS = {row.what: row for rows in SECTIONS.values() for row in rows}
FAULTS = {
    "Length": "R15",
    "Chunks": "R15",
    "Header lines": "R15",
    "Request line and target": "R16",
    "Host": "R15",
    "Methods": "R29",
    "Other protocols": "R29",
    "Connections": "R15",
    "Bodies and headers for the router": "R17",
}
"""The field fault that a section shows."""
SIZES = ("64 KiB", "above the limit", "as large as the limit")
"""Rows so called show R14 as well."""
