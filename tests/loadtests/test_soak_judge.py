"""What the soak accepts as the answer to a request, and what it calls a violation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtests.soak_judge import Verdict, judge
from loadtests.soak_plan import Asked
from loadtests.soak_wire import Malformed, Reader

FIELDS = b"x-request-id: mine\r\nserver-timing: queue;dur=0.0\r\n"
WHOLE = Asked(number=1, kind="chat", stream=False, tokens=2, words=3)
STREAMED = Asked(number=1, kind="chat", stream=True, tokens=2, words=3)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = "[DONE]"


def answer(status: int, document: Any, more: bytes = b"", fields: bytes = FIELDS) -> Reader:
    body = json.dumps(document).encode()
    reader = Reader()
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
    reader.feed(head + fields + more + b"\r\n" + body)
    assert reader.ended
    return reader


def stream(*values: Any) -> Reader:
    body = b"".join(
        b"data: %b\n\n" % (value.encode() if isinstance(value, str) else json.dumps(value).encode()) for value in values
    )
    reader = Reader()
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n")
    reader.feed(FIELDS + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert reader.ended
    return reader


def whole(text: str = " tide gate", **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": text}}
    return {"id": "chatcmpl-b-1", "choices": [choice], "usage": USAGE, **changes}


def token(text: str, id_: str = "chatcmpl-b-1") -> dict[str, Any]:
    return {"id": id_, "choices": [{"index": 0, "delta": {"content": text}}]}


USED = {"id": "chatcmpl-b-1", "choices": [], "usage": USAGE}


def error(message: str, code: Any, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code, **more}}


BROKEN_OFF = error("the replica closed the connection before it answered", 502)
ENGINES = error("EngineCore encountered an issue.", 500)

ACCEPTED: list[tuple[Asked, Reader, Verdict]] = [
    (WHOLE, answer(200, whole()), Verdict(outcome="answered", status=200, generation="b-1")),
    (
        STREAMED,
        stream(token(""), token(" tide"), token(" gate"), token(""), USED, DONE),
        Verdict(outcome="answered", status=200, generation="b-1"),
    ),
    (
        STREAMED,
        stream(token(" tide"), BROKEN_OFF),
        Verdict(outcome="broken off", status=200, code="502", generation="b-1"),
    ),
    (STREAMED, stream(BROKEN_OFF), Verdict(outcome="broken off", status=200, code="502")),
    (
        STREAMED,
        stream(token(" tide"), ENGINES, DONE),
        Verdict(outcome="engine error", status=200, code="500", generation="b-1"),
    ),
    (
        WHOLE,
        answer(503, error("asked to fail by POST /fault", 503)),
        Verdict(outcome="engine error", status=503, code="503"),
    ),
    (
        WHOLE,
        answer(429, error("full", "queue_full"), b"retry-after: 1\r\n"),
        Verdict(outcome="refused", status=429, code="queue_full"),
    ),
    (WHOLE, answer(502, error("cut", "replica_failed")), Verdict(outcome="refused", status=502, code="replica_failed")),
]


@pytest.mark.parametrize(("asked", "got", "verdict"), ACCEPTED)
def test_answers_that_are_allowed(asked: Asked, got: Reader, verdict: Verdict) -> None:
    assert judge(asked, got, "mine") == verdict


VIOLATIONS: dict[str, tuple[Asked, Reader]] = {
    "somebody else's id": (WHOLE, answer(200, whole(), fields=FIELDS.replace(b"mine", b"other"))),
    "no id": (WHOLE, answer(200, whole(), fields=b"server-timing: queue;dur=0.0\r\n")),
    "no server-timing": (WHOLE, answer(200, whole(), fields=b"x-request-id: mine\r\n")),
    "a token too few": (WHOLE, answer(200, whole(" tide"))),
    "somebody else's usage": (WHOLE, answer(200, whole(usage={**USAGE, "prompt_tokens": 4}))),
    "a page instead of an answer": (WHOLE, answer(200, {"object": "list"})),
    "a stream that nobody asked for": (WHOLE, stream(token(" tide"), token(" gate"), USED, DONE)),
    "JSON instead of a stream": (STREAMED, answer(200, whole())),
    "503 without Retry-After": (WHOLE, answer(503, error("late", "queue_timeout"))),
    "Retry-After out of bounds": (WHOLE, answer(429, error("full", "queue_full"), b"retry-after: 61\r\n")),
    "Retry-After of 0": (WHOLE, answer(429, error("full", "queue_full"), b"retry-after: 0\r\n")),
    "another status for a code": (WHOLE, answer(500, error("full", "queue_full"))),
    "a bug's code": (WHOLE, answer(500, error("failed", "internal_error"))),
    "an unknown model for a known one": (WHOLE, answer(404, error("no", "model_not_found"))),
    "no error object": (WHOLE, answer(502, {"detail": "no"})),
    "an error of another form": (WHOLE, answer(502, {"error": "no"})),
    "a silent end": (STREAMED, stream(token(" tide"))),
    "[DONE] too early": (STREAMED, stream(token(" tide"), DONE)),
    "[DONE] behind the router's error": (STREAMED, stream(token(" tide"), BROKEN_OFF, DONE)),
    "an engine's error without [DONE]": (STREAMED, stream(token(" tide"), ENGINES)),
    "two generations in one stream": (
        STREAMED,
        stream(token(" tide"), token(" gate", "chatcmpl-b-2"), USED, DONE),
    ),
    "an error in the middle": (STREAMED, stream(token(" tide"), BROKEN_OFF, token(" gate"), USED, DONE)),
}


@pytest.mark.parametrize(("asked", "got"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_answers_that_are_violations(asked: Asked, got: Reader) -> None:
    with pytest.raises(Malformed):
        judge(asked, got, "mine")


def test_an_unknown_model_and_bytes_that_are_not_http_must_be_refused_as_such() -> None:
    unknown = Asked(number=1, kind="unknown", stream=False, tokens=2, words=3)
    bad = Asked(number=1, kind="bad", stream=False, tokens=2, words=3)
    assert judge(unknown, answer(404, error("no", "model_not_found")), "mine").outcome == "refused"
    assert judge(bad, answer(400, error("no", "bad_request"), fields=b""), None).outcome == "refused"
    with pytest.raises(Malformed):
        judge(unknown, answer(200, whole()), "mine")
    with pytest.raises(Malformed):
        judge(bad, answer(502, error("cut", "replica_failed")), None)
