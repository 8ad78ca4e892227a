"""The router's own answers: refusals, local pages, and the error event that ends a broken stream, each in the form of
its protocol.

`FORMS` has one row per protocol: which paths it has, the body of a refusal, the event that ends a broken stream. The
first row that fits a path counts. A new protocol is one row; `docs/errors.md` shows them all, and a test keeps it true.
No form ends a stream with `[DONE]`: that would say that the answer is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec

from router.core.refusals import Refusal

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus} | {413: b"Content Too Large"}
JSON: Final = b"application/json"
_json = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How errors are said to the clients of one protocol.

    `paths`: matches the start of a request's target · `body`: (status, code, message) -> JSON of a refusal · `event`:
    (status, code, message, number) -> the whole event that ends a broken stream, standing alone; `number` is one more
    than the number of the last event where the protocol numbers its events, else 0 · `numbered`: it does.
    """

    name: str
    paths: re.Pattern[bytes]
    body: Callable[[int, str, str], bytes]
    event: Callable[[int, str, str, int], bytes]
    numbered: bool = False


def _kind(status: int, named: dict[int, str], client: str, server: str) -> str:
    """The word for a status: a named one, else one of two."""
    return named.get(status, client if status < 500 else server)


def openai_error(status: int, code: str, message: str) -> bytes:
    """`{"error": {"message", "type", "param": null, "code"}}`."""
    kind = _kind(status, {404: "not_found_error", 429: "rate_limit_error"}, "invalid_request_error", "server_error")
    return _json({"error": {"message": message, "type": kind, "param": None, "code": code}})


def openai_event(status: int, code: str, message: str, number: int) -> bytes:
    """An error event as vLLM and SGLang send it: `code` is the status, so that SDKs raise the fitting error."""
    error = {"message": message, "type": "server_error", "param": None, "code": status}
    return b"data: %b\n\n" % _json({"error": error})


def responses_event(status: int, code: str, message: str, number: int) -> bytes:
    """The `error` event of the Responses API. Its flat members are those that the API's schema asks for; the nested
    `error` is what makes the OpenAI SDKs raise: without it they hand the event out like any other.
    """
    told = {"code": code, "message": message, "param": None}
    value = {"type": "error", "sequence_number": number, **told, "error": {"type": "server_error", **told}}
    return b"event: error\ndata: %b\n\n" % _json(value)


def anthropic_error(status: int, code: str, message: str) -> bytes:
    """`{"type": "error", "error": {"type", "message"}}`. 503 has the word of their 529, which means the same."""
    named = {
        401: "authentication_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    kind = _kind(status, named, "invalid_request_error", "api_error")
    return _json({"type": "error", "error": {"type": kind, "message": message}})


def anthropic_event(status: int, code: str, message: str, number: int) -> bytes:
    """The same as an event of the type `error`."""
    return b"event: error\ndata: %b\n\n" % anthropic_error(status, code, message)


def kserve_error(status: int, code: str, message: str) -> bytes:
    """`{"error": "..."}` of the Open Inference Protocol."""
    return _json({"error": message})


def kserve_event(status: int, code: str, message: str, number: int) -> bytes:
    """The same as an event, as Triton's `generate_stream` has it."""
    return b"data: %b\n\n" % kserve_error(status, code, message)


def tgi_error(status: int, code: str, message: str) -> bytes:
    """`{"error": "...", "error_type": "..."}` of Text Generation Inference; its clients raise by `error_type`."""
    kind = _kind(status, {429: "overloaded", 503: "overloaded"}, "validation", "generation")
    return _json({"error": message, "error_type": kind})


def tgi_event(status: int, code: str, message: str, number: int) -> bytes:
    """An event; its type says that what came before is part of an answer."""
    return b"data: %b\n\n" % _json({"error": message, "error_type": "incomplete_generation"})


def llama_error(status: int, code: str, message: str) -> bytes:
    """`{"error": {"code", "message", "type"}}` of llama.cpp's own paths; `code` is the status."""
    named = {404: "not_found_error", 429: "unavailable_error", 501: "not_supported_error", 503: "unavailable_error"}
    kind = _kind(status, named, "invalid_request_error", "server_error")
    return _json({"error": {"code": status, "message": message, "type": kind}})


def llama_event(status: int, code: str, message: str, number: int) -> bytes:
    """The same as an event."""
    return b"data: %b\n\n" % llama_error(status, code, message)


def _paths(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern + rb"(?=[?#/]|$)")


FORMS: Final = (
    Form(name="Open Inference Protocol", paths=re.compile(rb"/v2/"), body=kserve_error, event=kserve_event),
    Form(
        name="OpenAI Responses",
        paths=_paths(rb"(?:/openai)?/v1/responses"),
        body=openai_error,
        event=responses_event,
        numbered=True,
    ),
    Form(name="Anthropic Messages", paths=_paths(rb"/v1/messages"), body=anthropic_error, event=anthropic_event),
    Form(name="Text Generation Inference", paths=_paths(rb"/generate(?:_stream)?"), body=tgi_error, event=tgi_event),
    Form(name="llama.cpp", paths=_paths(rb"/(?:completions?|infill)"), body=llama_error, event=llama_event),
    Form(name="OpenAI", paths=re.compile(rb""), body=openai_error, event=openai_event),
)
OPENAI: Final = FORMS[-1]


@lru_cache(maxsize=64)
def form_of(target: bytes) -> Form:
    """The form for a request's target. Asked where something goes wrong and once a stream, 0.06 us when it is known:
    the few that are kept may have 64 KiB each.
    """
    return next((form for form in FORMS if form.paths.match(target)), OPENAI)


def answer(status: int, body: bytes, head_only: bool, fields: bytes) -> bytes:
    """A whole local answer with a JSON body. `fields`: further header lines, each with its CRLF."""
    head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
        status,
        REASONS.get(status, b"Error"),
        JSON,
        len(body),
        fields,
    )
    return head if head_only else head + body


def refusal_fields(refusal: Refusal) -> bytes:
    """Header lines a refusal brings along."""
    return b"" if refusal.retry_after_s is None else b"retry-after: %d\r\n" % refusal.retry_after_s


def models_page(names: list[str]) -> bytes:
    """The OpenAI list of models."""
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "tidegate"} for name in names]
    return _json({"object": "list", "data": rows})
