"""What became of one request, by the bytes of its answer: an outcome, or `Malformed` when it is none that is allowed.

| outcome      | the client got                                                                             |
|--------------|--------------------------------------------------------------------------------------------|
| answered     | 200, whole: every token that was asked for, from one generation, [DONE] behind a stream      |
| page         | the router's own page                                                                        |
| refused      | an error of the router, whole, in its form; Retry-After with 429 and 503                     |
| engine error | an error of the engine, whole: passed on as it came, or inside a stream and then [DONE]       |
| broken off   | a stream that its engine left: whole events, then the router's error event and no [DONE]      |
| cut          | a connection that ended inside an answer with a length (there is no other way to say it)     |
| left         | whatever: it went away first                                                                 |
| behind a cut | nothing: it stood in the pipeline behind one that was cut or whose connection was to end       |

Anything else is a violation: no byte at all (`lost`), no end (`hung`), bytes that break a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from loadtests.soak_plan import Asked
from loadtests.soak_wire import Events, Malformed, Reader

OUTCOMES: Final = ("answered", "page", "refused", "engine error", "broken off", "cut", "left", "behind a cut")
VIOLATIONS: Final = ("lost", "hung", "malformed")

ENGINE_ERRORS: Final = ("asked to fail by POST /fault", "EngineCore encountered an issue.")
"""Messages that only the emulated engine says."""

REFUSALS: Final = {
    "queue_full": 429,
    "no_capacity": 503,
    "queue_timeout": 503,
    "out_of_memory": 503,
    "not_ready": 503,
    "unreachable": 502,
    "replica_failed": 502,
    "bad_answer": 502,
    "timeout": 504,
    "model_not_found": 404,
    "bad_request": 400,
}
"""Codes of the router's own errors that can happen here, and the status each must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`outcome`: one of the table's; `status` of the answer, 0 = none; `code` of an error; `generation`: the id of the
    generation that the answer says it is from, the engine's prefix taken off.
    """

    outcome: str
    status: int = 0
    code: str = ""
    generation: str | None = None


def judge(asked: Asked, answer: Reader, client_id: str | None) -> Verdict:
    """Judge a whole answer. Raises `Malformed` saying which rule it breaks."""
    status, fields = answer.status, answer.fields
    said = fields.get("x-request-id")
    if asked.kind != "bad":
        if not said:
            raise Malformed("an answer without x-request-id")
        if client_id is not None and said != client_id:
            raise Malformed(f"x-request-id {said!r}, the client sent {client_id!r}")
        if "server-timing" not in fields:
            raise Malformed("an answer without server-timing")
    if answer.events is not None:
        return _stream(asked, answer, answer.events)
    if fields.get("content-type", "").partition(";")[0] != "application/json":
        raise Malformed(f"content-type {fields.get('content-type')!r}, application/json is due")
    document = _document(bytes(answer.body))
    if status == 200:
        if asked.kind == "page":
            return Verdict(outcome="page", status=status)
        if not asked.runs or asked.stream:
            raise Malformed(f"status 200 with JSON for a request of kind {asked.kind}, stream {asked.stream}")
        return _answer(asked, document)
    return _error(asked, status, document, fields)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"a body that is not JSON ({error}): {body[:120]!r}") from error
    if not isinstance(document, dict):
        raise Malformed(f"a body that is not an object: {body[:120]!r}")
    return document


def _error(asked: Asked, status: int, document: dict[str, Any], fields: dict[str, str]) -> Verdict:
    """A whole error answer: the engine's as it came, or the router's, whose form and status are ours to keep."""
    error = document.get("error")
    if set(document) != {"error"} or not isinstance(error, dict):
        raise Malformed(f"status {status} without an error object: {document}")
    if set(error) != {"message", "type", "param", "code"} or not all(
        isinstance(error[name], str) and error[name] for name in ("message", "type")
    ):
        raise Malformed(f"status {status} with an error object of another form: {error}")
    code = error["code"]
    retry_after = fields.get("retry-after")
    if retry_after is not None and not (retry_after.isdigit() and 1 <= int(retry_after) <= 60):
        raise Malformed(f"Retry-After {retry_after!r}, whole seconds of 1 to 60 are due")
    if error["message"] in ENGINE_ERRORS:
        return Verdict(outcome="engine error", status=status, code=str(code))
    if not isinstance(code, str) or REFUSALS.get(code) != status:
        raise Malformed(f"status {status} with code {code!r}: {error['message']}")
    if status in (429, 503) and retry_after is None:
        raise Malformed(f"status {status} ({code}) without Retry-After")
    wanted = {"unknown": "model_not_found", "bad": "bad_request"}.get(asked.kind)
    if (wanted or code) != code or (wanted is None and code in ("model_not_found", "bad_request")):
        raise Malformed(f"code {code!r} for a request of kind {asked.kind!r}: {error['message']}")
    return Verdict(outcome="refused", status=status, code=code)


def _answer(asked: Asked, document: dict[str, Any]) -> Verdict:
    """A whole answer of an engine, not streamed."""
    choice = _choice(document)
    text = choice.get("message", {}).get("content") if asked.kind == "chat" else choice.get("text")
    if choice.get("finish_reason") != "length" or not isinstance(text, str) or len(text.split()) != asked.tokens:
        raise Malformed(f"{asked.tokens} tokens are due, the answer is {str(document)[:200]}")
    _usage(asked, document)
    return Verdict(outcome="answered", status=200, generation=_generation(document))


def _usage(asked: Asked, document: dict[str, Any]) -> None:
    usage = document.get("usage")
    wanted = {
        "prompt_tokens": asked.words,
        "completion_tokens": asked.tokens,
        "total_tokens": asked.words + asked.tokens,
    }
    if usage != wanted:
        raise Malformed(f"usage {usage}, asked was {wanted}: the answer is somebody else's")


def _stream(asked: Asked, answer: Reader, events: Events) -> Verdict:
    """A whole stream: all tokens and [DONE], or whole events and one error event."""
    if answer.status != 200 or not asked.stream:
        raise Malformed(f"status {answer.status} with an event stream, asked to stream: {asked.stream}")
    values = events.values
    error = values[-1].get("error") if values else None
    chunks = values[:-1] if error is not None else values
    ids = {_generation(value) for value in chunks}
    if len(ids) > 1 or any("error" in value for value in chunks):
        raise Malformed(f"events of several generations in one stream, or an error before the end: {sorted(ids)}")
    generation = ids.pop() if ids else None
    words = sum(bool(_text(asked, value)) for value in chunks)
    if error is not None:
        return _ended_by_error(error, events.done, generation, answer.status)
    if not events.done:
        raise Malformed(f"a stream that ends without [DONE] and without an error, {words} of {asked.tokens} tokens")
    if words != asked.tokens:
        raise Malformed(f"[DONE] after {words} tokens of {asked.tokens}")
    if asked.usage:
        _usage(asked, values[-1])
    return Verdict(outcome="answered", status=200, generation=generation)


def _ended_by_error(error: Any, done: bool, generation: str | None, status: int) -> Verdict:
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"} or not error["message"]:
        raise Malformed(f"an error event of another form: {error}")
    engines = error["message"] in ENGINE_ERRORS
    if done != engines:
        raise Malformed(f"an error event {'with' if done else 'without'} [DONE] behind it: {error}")
    outcome = "engine error" if engines else "broken off"
    return Verdict(outcome=outcome, status=status, code=str(error["code"]), generation=generation)


def _choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Malformed(f"one choice is due: {str(document)[:200]}")
    return choices[0]


def _text(asked: Asked, value: dict[str, Any]) -> str:
    if value.get("choices") == []:
        return ""  # the usage event
    choice = _choice(value)
    text = choice.get("delta", {}).get("content") if asked.kind == "chat" else choice.get("text")
    if not isinstance(text, str):
        raise Malformed(f"an event without text: {str(value)[:200]}")
    return text


def _generation(document: dict[str, Any]) -> str:
    said = document.get("id")
    prefix, dash, generation = said.partition("-") if isinstance(said, str) else ("", "", "")
    if prefix not in ("chatcmpl", "cmpl") or not dash or not generation:
        raise Malformed(f"an answer with the id {said!r}")
    return generation
