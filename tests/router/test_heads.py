"""The head parser by itself; what it refuses and forwards on the wire stands in `wire_requests.py` and `wire_answers.py`."""

from __future__ import annotations

import json

import pytest

from router.shell import lines
from router.shell.answers import form_of
from router.shell.heads import END, read_answer, read_request
from router.shell.lines import BadHead
from tests.router.wire import Site, json_answer, on_uvloop

G = b"GET / HTTP/1.1\r\nHost: a\r\n"


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
    assert (told.status, told.keep, told.chunked, told.events, told.bodiless) == (200, False, True, True, False)
    assert told.text == (
        b"HTTP/1.1 200 Fine\r\nServer: x\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    )
    assert told.unchunked() == b"HTTP/1.1 200 Fine\r\nServer: x\r\nContent-Type: text/event-stream"
    plain = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close, x-gone\r\nX-Gone: 1\r\nX-Kept: 2"
    assert read_answer(plain) is read_answer(plain)
    assert read_answer(plain).text == b"HTTP/1.1 204 No Content\r\nX-Kept: 2"
    assert not read_answer(plain).keep
    assert END not in told.text


@pytest.mark.parametrize(
    ("line", "patience_s"),
    [
        (b"", None),
        (b"x-queue-timeout-s: 30", 30.0),
        (b"X-QUEUE-TIMEOUT-S:  0.25 ", 0.25),
        (b"x-queue-timeout-s: 999999", 999999.0),
    ],
)
def test_how_long_the_client_wants_to_wait(line: bytes, patience_s: float | None) -> None:
    told = read_request(G + line) if line else read_request(G[:-2])
    assert told.patience_s == patience_s
    assert line in told.lines  # forwarded as it came


@pytest.mark.parametrize(
    "value", ["", "0", "0.0", "-1", "+1", "1e3", "1s", "inf", "nan", "1000000", "1.", ".5", "٣", "1,5"]
)
def test_an_unusable_wait_is_refused_with_its_value_and_what_is_allowed(value: str) -> None:
    with pytest.raises(BadHead) as refused:
        read_request(G + f"x-queue-timeout-s: {value}".encode())
    assert refused.value.status == 400
    assert str(refused.value) == (
        f"x-queue-timeout-s: {value!r} is not understood; allowed: a number of seconds above 0 and below 1000000, such as "
        "30 or 2.5"
    )


def test_one_more_header_can_be_read_and_is_never_confused() -> None:
    told = read_request(
        G
        + b"X-A: x-tenant: no\r\nX-Not-X-Tenant: no\r\nx-tenant-2: no\r\nX-TENANT: \tTeam \xe4: b \r\nx-tenant: second\r\n"
        b"X-Empty:\r\nX-Long: %b\r\nX-Request-Id: i\r\nX-Model: m\r\nX-Last: l" % (b"y" * 300)
    )
    assert told.field(b"x-tenant") == "Team ä: b"
    assert told.field(b"x-empty") == ""
    assert told.field(b"x-long") == "y" * 256
    assert (told.field(b"x-model"), told.field(b"x-last"), told.field(b"host")) == ("m", "l", "a")
    assert told.field(b"x-request-id") is None  # not forwarded
    assert told.field(b"tenant") is None
    assert read_request(b"GET / HTTP/1.0").field(b"host") is None


@on_uvloop
async def test_a_refused_head_is_answered_in_the_form_of_its_path_and_method() -> None:
    async with Site(json_answer()) as site:
        answer = await site.ask(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\r\n"
        )
        assert answer.status == 415
        assert json.loads(answer.body) == {
            "error": "gRPC is not served here; use the engine's HTTP paths, such as /v2/models/NAME/infer"
        }
        caller = await site.call()
        caller.writer.write(b"HEAD /v1/models HTTP/1.1\r\n\r\n")
        assert (await caller.closed()).endswith(b"\r\n\r\n")


@pytest.mark.fault("R18")
@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/responses", "/generate", "/generate_stream", "/completion", "/v2/x"]
)
@pytest.mark.parametrize("more", ["", "?beta=true"])
@on_uvloop
async def test_a_head_is_refused_in_the_form_of_its_exact_path(path: str, more: str) -> None:
    async with Site(json_answer()) as site:
        head = f"POST {path}{more} HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\nContent-Length: 0\r\n\r\n"
        answer = await site.ask(head.encode())
        words = "the only expectation understood is 100-continue"
        assert answer.status == 417
        assert answer.body == form_of(path.encode()).body(417, "bad_request", words)


@pytest.mark.fault("R29")
@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (
            b"GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
            "WebSocket is not served here; send plain requests",
        ),
        (b"PRI * HTTP/2.0\r\n\r\n", "HTTP/2.0 is not served here; allowed: HTTP/1.1 and HTTP/1.0"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "the method CONNECT is never forwarded"),
        (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "the target and the host header name different hosts"),
        (b"\x16\x03\x01", "this port serves plain HTTP, not TLS"),
    ],
)
@on_uvloop
async def test_a_refusal_says_what_is_allowed(sent: bytes, words: str) -> None:
    async with Site(json_answer()) as site:
        answer = await site.ask(sent)
        assert words in json.loads(answer.body)["error"]["message"]
        assert site.engines[0].connections == 0
