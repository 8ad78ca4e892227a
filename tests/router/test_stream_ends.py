"""How event streams end when their engine dies: at every byte, in every protocol's form, to every kind of client.

Without sockets, for an engine can be made to die at any byte here and the client's bytes are looked at one by one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.shell.framing import TERMINAL, Chunks
from router.shell.streams import HELD_MAX
from tests.router import by_hand
from tests.router.wire import SSE_HEAD, chunk, on_uvloop

NO_CHUNKS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
RESET = ConnectionResetError("reset")


def ask(path: str, version: str = "1.1", method: str = "POST") -> bytes:
    body = b'{"model":"m","stream":true}'
    head = f"{method} {path} HTTP/{version}\r\nHost: x\r\nx-model: m\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Told:
    """What a client got of one stream whose engine died after `parts`: head fields, body, and what became of its
    connection.
    """

    def __init__(self, request: bytes, *parts: bytes, error: Exception | None = None) -> None:
        self.plane = by_hand.plane()
        upstream, _ = by_hand.engine(self.plane)
        client, self.transport = by_hand.client(self.plane)
        client.data_received(request)
        for part in parts:
            upstream.data_received(part)
        upstream.connection_lost(error)
        self.head, _, self.raw = self.transport.sent.partition(b"\r\n\r\n")
        self.client = client
        assert self.plane.dispatcher.endpoints["e0"].in_flight == 0
        assert self.plane.counters.bugs == 0

    @property
    def body(self) -> bytes:
        """The body of a chunked answer, which must be whole."""
        chunks = Chunks()
        chunks.start()
        chunks.feed(self.raw)
        assert chunks.ended
        return chunks.take()


def last_event(body: bytes) -> tuple[bytes, str | None, Any]:
    """What came before the last event, its type and its data."""
    before, _, last = body.removesuffix(b"\n\n").rpartition(b"\n\n")
    fields = dict(line.split(b": ", 1) for line in last.split(b"\n"))
    kind = fields.get(b"event")
    return before + b"\n\n" if before else b"", kind.decode() if kind else None, json.loads(fields[b"data"])


DIED = "the replica closed the connection before its answer was complete"
EVENT = b'event: delta\ndata: {"sequence_number":4}\n\n'

ENDS: list[tuple[str, str | None, Any]] = [
    ("/v1/chat/completions", None, {"error": {"message": DIED, "type": "server_error", "param": None, "code": 502}}),
    ("/v1/completions?x=1", None, {"error": {"message": DIED, "type": "server_error", "param": None, "code": 502}}),
    (
        "/v1/responses",
        "error",
        {
            "type": "error",
            "sequence_number": 5,
            "code": "replica_failed",
            "message": DIED,
            "param": None,
            "error": {"type": "server_error", "code": "replica_failed", "message": DIED, "param": None},
        },
    ),
    ("/v1/messages", "error", {"type": "error", "error": {"type": "api_error", "message": DIED}}),
    ("/v2/models/m/generate_stream", None, {"error": DIED}),
    ("/generate_stream", None, {"error": DIED, "error_type": "incomplete_generation"}),
    ("/completion", None, {"error": {"code": 502, "message": DIED, "type": "server_error"}}),
]


@pytest.mark.parametrize(("path", "kind", "value"), ENDS)
@on_uvloop
@pytest.mark.fault("R11")
async def test_the_end_of_a_broken_stream_in_each_protocol(path: str, kind: str | None, value: Any) -> None:
    told = Told(ask(path), SSE_HEAD + chunk(EVENT), chunk(EVENT)[:20])
    assert last_event(told.body) == (EVENT, kind, value)
    assert b"[DONE]" not in told.raw
    assert told.transport.done == []  # the connection lives
    assert told.plane.counters.error_events == 1


@pytest.mark.parametrize("number", [0, 1, 7])
@on_uvloop
async def test_the_number_of_a_responses_error_is_the_next_one(number: int) -> None:
    events = [b'event: x\ndata: {"sequence_number":%d}\n\n' % (number + n) for n in range(4)]
    reads = [chunk(events[0]), chunk(events[1][:9]), chunk(events[1][9:] + events[2]), chunk(events[3])]
    _, _, value = last_event(Told(ask("/v1/responses"), SSE_HEAD, *reads).body)
    assert value["sequence_number"] == number + 4
    _, _, value = last_event(Told(ask("/v1/responses"), SSE_HEAD).body)
    assert value["sequence_number"] == 0


EVENTS = ["event: a\ndata: ä€潮\n\n", ": ping\n\n", 'data: {"b":"é"}\n\n']
"""Events of several lines, a comment, characters of two, three and four bytes."""
CHUNKINGS = ["one chunk", "each event", "every five bytes"]


def chunked(stream: bytes, how: str) -> bytes:
    if how == "one chunk":
        return chunk(stream)
    if how == "each event":
        parts = [part for part in (stream.partition(b"data: {")[0], stream[stream.find(b"data: {") :]) if part]
        return b"".join(map(chunk, parts))
    return b"".join(chunk(stream[at : at + 5]) for at in range(0, len(stream), 5))


@pytest.mark.parametrize("how", CHUNKINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@on_uvloop
@pytest.mark.fault("R11", "R12")
async def test_an_engine_may_die_at_any_byte(end: str, how: str) -> None:
    """In one read or in reads of three bytes: the client gets whole events, then one error event."""
    events = [each.replace("\n", end).encode() for each in EVENTS]
    whole = b"".join(events)
    stream = chunked(whole, how)
    prefixes = [b"".join(events[:count]) for count in range(len(events) + 1)]
    for cut in range(len(stream) + 1):
        for size in (len(stream), 3):
            reads = [stream[at : min(at + size, cut)] for at in range(0, cut, size)]
            told = Told(ask("/v1/messages"), SSE_HEAD, *reads)
            body = told.body
            at = body.rfind(b"event: error\ndata: ")
            assert body[:at] in prefixes, (cut, size)
            assert json.loads(body[at + 19 :])["type"] == "error", (cut, size)
            body.decode()  # no character is cut
    assert body[:at] == whole


@on_uvloop
@pytest.mark.fault("R11")
async def test_a_client_inside_an_event_that_was_too_large_to_hold_is_cut_off() -> None:
    large = chunk(b"data: " + b"x" * (2 * HELD_MAX))
    told = Told(ask("/v1/responses"), SSE_HEAD + chunk(EVENT), large)
    assert b"event: error" not in told.raw
    assert TERMINAL not in told.raw
    assert told.transport.done == ["abort"]
    assert told.plane.counters.cut_off == 1
    told = Told(
        ask("/v1/responses"), SSE_HEAD + chunk(EVENT), large, chunk(b"\n\ndata: y")
    )  # and behind its end it is told
    assert last_event(told.body)[1] == "error"


@pytest.mark.parametrize("error", [None, RESET])
@on_uvloop
@pytest.mark.fault("R11", "R29")
async def test_a_client_of_http_1_0_gets_the_error_event_and_an_orderly_end(error: Exception | None) -> None:
    told = Told(ask("/v1/chat/completions", "1.0"), SSE_HEAD + chunk(EVENT), chunk(EVENT)[:30], error=error)
    assert b"transfer-encoding" not in told.head.lower()
    before, _, value = last_event(told.raw)
    assert (before, value["error"]["code"]) == (EVENT, 502)
    assert told.transport.done == ["close"]


@on_uvloop
async def test_a_client_of_http_1_0_gets_a_whole_stream_without_chunks() -> None:
    plane = by_hand.plane()
    upstream, _ = by_hand.engine(plane)
    client, transport = by_hand.client(plane)
    client.data_received(ask("/v1/chat/completions", "1.0"))
    upstream.data_received(SSE_HEAD + chunk(EVENT[:9]))
    assert transport.sent.endswith(b"\r\n\r\n")
    upstream.data_received(chunk(EVENT[9:] + b"data: half"))
    assert transport.sent.endswith(b"\r\n\r\n" + EVENT)
    upstream.data_received(TERMINAL)
    assert transport.sent.endswith(b"\r\n\r\n" + EVENT + b"data: half")
    assert transport.done == ["close"]
    assert upstream.state == 0


@pytest.mark.parametrize(
    ("sent", "error", "said"),
    [
        (EVENT, None, False),  # an end like any other, for nobody can tell
        (EVENT + b"data: hal", None, True),
        (EVENT, RESET, True),
        (EVENT + b"data: hal", RESET, True),
    ],
)
@on_uvloop
@pytest.mark.fault("R11")
async def test_a_stream_that_ends_with_the_connection(sent: bytes, error: Exception | None, said: bool) -> None:
    told = Told(ask("/v1/chat/completions"), NO_CHUNKS + sent[:5], sent[5:], error=error)
    assert b"connection: close" in told.head.lower()
    assert told.raw.startswith(EVENT)
    assert (b'"error"' in told.raw) is said
    assert told.raw.endswith(b"\n\n")
    assert told.transport.done == ["close"]
    outcomes = told.plane.dispatcher.endpoints["e0"].outcomes
    assert outcomes == ({"cut": 1} if said else {"success": 1})


COUNTED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\n"
GZIP = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
REFUSED = SSE_HEAD.replace(b"200 OK", b"500 Internal Server Error")


@pytest.mark.parametrize(
    ("head", "body"), [(COUNTED, EVENT), (GZIP, chunk(b"\x1f\x8b\n\n\x00")), (REFUSED, chunk(EVENT[:7]))]
)
@on_uvloop
@pytest.mark.fault("R11")
async def test_what_is_not_read_passes_untouched_and_is_cut_off(head: bytes, body: bytes) -> None:
    """Streams of a known length, compressed ones, and those with another status."""
    told = Told(ask("/v1/chat/completions"), head + body[:3], body[3:])
    assert told.raw == body
    assert told.transport.done == ["abort"]


@on_uvloop
@pytest.mark.fault("R9", "R11")
async def test_vllms_own_error_event_and_done_pass_untouched() -> None:
    """Its engine process died: it says so itself, and ends with [DONE]."""
    own = b'data: {"error":{"message":"EngineCore encountered an issue.","code":500}}\n\n'
    parts = [chunk(own), chunk(b"data: [DONE]\n\n") + TERMINAL]
    told = Told(ask("/v1/chat/completions"), SSE_HEAD + chunk(EVENT), *parts)
    assert told.body == EVENT + own + b"data: [DONE]\n\n"
    assert told.plane.counters.error_events == 0


@on_uvloop
async def test_a_comment_is_not_a_first_token() -> None:
    """Comments keep the connection alive while the prompt is read: the time to the first token goes on."""
    plane = by_hand.plane()
    upstream, _ = by_hand.engine(plane)
    client, transport = by_hand.client(plane)
    client.data_received(ask("/v1/chat/completions"))
    ttft = plane.dispatcher.model_states()[0].meter.ttft
    upstream.data_received(SSE_HEAD + chunk(b": ping\n\n"))
    upstream.data_received(chunk(b": ping\n\n"))
    assert transport.sent.count(b": ping\n\n") == 2
    assert sum(ttft.counts) == 0
    upstream.data_received(chunk(EVENT))
    assert sum(ttft.counts) == 1


@pytest.mark.parametrize("path", [path for path, _, _ in ENDS])
@on_uvloop
@pytest.mark.fault("R18")
async def test_a_stream_that_is_refused_before_its_head_gets_a_status_and_json(path: str) -> None:
    plane = by_hand.plane()
    client, transport = by_hand.client(plane)
    client.data_received(ask(path).replace(b"x-model: m", b"x-model: n"))
    head, _, body = transport.sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n")
    assert "does not exist" in str(json.loads(body)["error"])


@on_uvloop
@pytest.mark.fault("R11")
@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/v1/chat/completions", b"data: [DONE]\r\n\r\n"),
        ("/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        ("/v1/responses", b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
    ],
)
async def test_an_engine_that_dies_behind_the_end_of_its_stream_took_nothing_along(path: str, end: bytes) -> None:
    for parts in (
        (SSE_HEAD + chunk(EVENT), chunk(end)),
        (SSE_HEAD + chunk(EVENT) + chunk(end),),
        (SSE_HEAD, chunk(EVENT + end)),
    ):
        told = Told(ask(path), *parts)
        assert told.raw.endswith(b"0\r\n\r\n")
        assert told.body == EVENT + end
        assert told.plane.counters.error_events == 0
    told = Told(ask(path), SSE_HEAD + chunk(EVENT), chunk(end) + b"zz\r\n")
    assert end not in told.body
    assert told.plane.counters.error_events == 1
