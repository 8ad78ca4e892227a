"""What came back for one request, and what that amounts to. Bytes and values only: no sockets, no clock.

An event stream is read line by line as it passes; JSON is parsed only where a cheap look says that it may matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

ANSWERED, REFUSED, FAILED, CLIENT_GONE, LOST = "answered", "refused", "failed", "client_gone", "lost"
OUTCOMES = (ANSWERED, REFUSED, FAILED, CLIENT_GONE, LOST)
DETAIL_MAX = 65536
"""Bytes kept of an answer that is not a stream, to read its usage, its error or the list of models from."""


@dataclass(slots=True)
class Answer:
    """What came back for one request. Moments are loop times, None = never. `status` 0 = no status line was seen.

    `complete`: the message ended as it announced. `stream`: it was an event stream, then `done` tells whether
    `[DONE]` was seen. `tokens`: the server's own count when it gave one, else events with text in them. `error`: an
    error event or a broken connection.
    """

    status: int = 0
    first_byte_at: float | None = None
    done_at: float | None = None
    queue_s: float | None = None
    complete: bool = False
    stream: bool = False
    done: bool = False
    tokens: int = 0
    error: str = ""
    text: bytes = b""


def queue_seconds(header: str) -> float | None:
    """The queue time in a `server-timing` header (`queue;dur=MILLISECONDS`, among others), None when it is not there
    or not a number.
    """
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        if name.lower() != "queue":
            continue
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    return max(0.0, float(value.strip().strip('"')) / 1000.0)
                except ValueError:
                    return None
    return None


def read_event_line(line: bytes, answer: Answer) -> None:
    """Take from one line of an event stream what it says: an end, an error, usage, or a piece of text.

    JSON is parsed only where the cheap look says that it may hold an error or the usage: once an answer, not once an
    event.
    """
    if line.startswith(b"event:"):
        if line[6:].strip() == b"error":
            answer.error = answer.error or "error event"
        return
    if not line.startswith(b"data:"):
        return
    data = line[5:].strip()
    if data == b"[DONE]":
        answer.done = True
        return
    if b'"error"' in data or b'"usage"' in data:
        read_document(data, answer)
    if (b'"content"' in data or b'"text"' in data) and b'"content":""' not in data and b'"text":""' not in data:
        answer.tokens += 1


def read_document(data: bytes, answer: Answer) -> None:
    """Take error and usage out of one JSON document; anything else, and what is not JSON, is left alone."""
    try:
        document = json.loads(data)
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    if error := document.get("error"):
        answer.error = str(error.get("message", error) if isinstance(error, dict) else error)[:200]
    usage = document.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        answer.tokens = usage["completion_tokens"]


def classify(answer: Answer) -> tuple[str, str]:
    """(outcome, detail) of an answer that is over."""
    if answer.text:
        read_document(answer.text, answer)
    if answer.status in (429, 503):
        return REFUSED, answer.error or f"status {answer.status}"
    if answer.status >= 300:
        return FAILED, f"status {answer.status}" + (f": {answer.error}" if answer.error else "")
    if answer.error or not answer.complete:
        return FAILED, answer.error or "no answer"
    if answer.stream and not answer.done:
        return FAILED, "the stream ended without [DONE]"
    return ANSWERED, ""
