"""The router's own answers: refusals, local pages, and the error event that ends a broken stream, each in the form of
its path.

`FORMS` maps the start of a path to the form its clients understand; the first row that fits counts. A new protocol is
one row: a function for the body of an error and one for the event of a broken stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from router.core.refusals import Refusal

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus} | {413: b"Content Too Large"}
JSON: Final = b"application/json"


def openai_error(status: int, code: str, message: str) -> bytes:
    """`{"error": {"message", "type", "param": null, "code"}}`."""
    kind = {429: "rate_limit_error", 404: "not_found_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def openai_event(status: int, code: str, message: str) -> bytes:
    """An error event as vLLM and SGLang send it: `code` is the status, so that SDKs raise the fitting error."""
    error = {"message": message, "type": "server_error", "param": None, "code": status}
    return b"data: %b\n\n" % msgspec.json.encode({"error": error})


def kserve_error(status: int, code: str, message: str) -> bytes:
    """`{"error": "..."}` of the Open Inference Protocol."""
    return msgspec.json.encode({"error": message})


def kserve_event(status: int, code: str, message: str) -> bytes:
    """The same as an event."""
    return b"data: %b\n\n" % kserve_error(status, code, message)


@dataclass(frozen=True, slots=True)
class Form:
    """How errors are said to the clients of one protocol: (status, code, message) -> bytes."""

    body: Callable[[int, str, str], bytes]
    event: Callable[[int, str, str], bytes]


OPENAI: Final = Form(openai_error, openai_event)
FORMS: Final = ((b"/v2/", Form(kserve_error, kserve_event)), (b"/", OPENAI))


def form_of(target: bytes) -> Form:
    """The form for a request's target."""
    for start, form in FORMS:
        if target.startswith(start):
            return form
    return OPENAI


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
    return msgspec.json.encode({"object": "list", "data": rows})
