"""The words that an emulated engine says on OpenAI's paths, byte for byte in vLLM's forms (captured from vLLM 0.32), and
what it reads from a request; `engine_dialects` has the other protocols.

Pure functions and values: no sockets and no clock. A request is read into `Asked`, or refused with `Refused` (status
and body). A `Speech` is made once a request and turns token numbers into events; only the word differs between two
events of one stream, so the rest is built once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

import orjson

DONE = b"data: [DONE]\n\n"
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
CORE_DEAD = "EngineCore encountered an issue."
_WORDS = b"tide gate water rises before the moon pulls and a keeper who knows the hour opens early".split()
_WIDE_WORDS = "Flut über Türen à marée haute 潮 が 満ちる море 🌊 ждёт".encode().split()
INSIDE = "🌊".encode()
"""A character of four bytes, to be cut in its middle."""


class Refused(Exception):
    """A request that gets an error answer with `body` and `status`."""

    def __init__(self, status: int, message: str, kind: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.body = error_body(status, message, kind, param)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one request wants. `words` = prompt length in words, our stand-in for tokens."""

    chat: bool
    stream: bool
    usage: bool
    words: int
    output_tokens: int


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """vLLM's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def read_request(body: bytes, *, chat: bool, model: str | None, context_tokens: int) -> Asked:
    """Read a completion request. Raises `Refused` as vLLM would: 400 for what cannot be read, 404 for another model than
    `model` (None = any will do).
    """
    document = read_object(body)
    check_model(document.get("model"), model)
    words = _words(document, "messages" if chat else "prompt")
    output_tokens = wanted_tokens(document, ("max_completion_tokens", "max_tokens"), context_tokens)
    check_length(words, context_tokens)
    options = document.get("stream_options")
    return Asked(
        chat=chat,
        stream=document.get("stream") is True,
        usage=isinstance(options, dict) and options.get("include_usage") is True,
        words=words,
        output_tokens=output_tokens,
    )


def read_object(body: bytes) -> dict[str, object]:
    """A JSON object. Raises `Refused`."""
    if not body:
        raise _invalid("body", "missing", "Field required")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"body.{error.pos}", "json_invalid", "JSON decode error") from error
    if not isinstance(document, dict):
        raise _invalid(
            "body", "model_attributes_type", "Input should be a valid dictionary or object to extract fields from"
        )
    return document


def check_model(named: object, model: str | None) -> None:
    """Raises `Refused` (404) for the name of another model."""
    if named is not None and model is not None and named != model:
        raise Refused(404, f"The model `{named}` does not exist. Valid aliases: {model}.", "NotFoundError", "model")


def check_length(words: int, context_tokens: int) -> None:
    """Raises `Refused` (400) for a prompt beyond the context."""
    if words > context_tokens:
        text = f"This model's maximum context length is {context_tokens} tokens, the prompt has {words}."
        raise Refused(400, text, "BadRequestError", "input_text")


def _invalid(where: str, kind: str, message: str) -> Refused:
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}"
    return Refused(400, text, "Bad Request", where)


def _words(document: Mapping[str, object], field: str) -> int:
    """Words of a prompt, or of all messages. Parts that are not text count as one word each."""
    if field not in document:
        raise _invalid(f"body.{field}", "missing", "Field required")
    content = document[field]
    if field == "messages" and not (
        isinstance(content, list) and content and all(isinstance(row, dict) for row in content)
    ):
        raise _invalid("body.messages", "list_type", "Input should be a list of at least one message")
    return max(1, count_words(content))


def count_words(content: object) -> int:
    """Words of a text, of the texts in a list, or of a message."""
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list):
        return sum(map(count_words, content))
    if isinstance(content, dict):
        return count_words(content.get("content", content.get("text", 1)))
    return 1


def wanted_tokens(
    document: Mapping[str, object], names: tuple[str, ...], context_tokens: int, default: int = 16
) -> int:
    """Output tokens asked for under one of these names. Raises `Refused` (400)."""
    for field in names:
        wanted = document.get(field)
        if wanted is None:
            continue
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            raise Refused(400, f"{field} must be at least 1, got {wanted!r}.", "BadRequestError", field)
        if wanted > context_tokens:
            text = f"{field}={wanted} cannot be greater than max_model_len={context_tokens}."
            raise Refused(400, text, "BadRequestError", field)
        return wanted
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What an answer says besides its words. `created` in epoch seconds; `input_tokens` is what usage reports; `utf8`:
    words with characters of more than one byte.
    """

    request_id: str
    model: str
    created: int
    input_tokens: int
    seed: int = 0
    utf8: bool = False


class Speech:
    """One answer: its events or its JSON document. `why` is a finish reason in vLLM's words: length or abort."""

    def __init__(self, asked: Asked, head: Head) -> None:
        self.asked = asked
        self.head = head
        self._shift = crc32(head.request_id.encode()) + head.seed
        self._words = _WIDE_WORDS if head.utf8 else _WORDS

    def word(self, number: int) -> bytes:
        """The word that token `number` is, counted from 1, with its space."""
        return b" " + self._words[(self._shift + number) % len(self._words)]

    def text(self, tokens: int) -> str:
        """The first `tokens` words."""
        return b"".join(self.word(number) for number in range(1, tokens + 1)).decode()

    def opening(self) -> bytes:
        """Events before the first token."""
        return b""

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """The event of token `number`, counted from 1; `word` stands for the one it would have."""
        raise AssertionError("each protocol has its own")

    def end(self, tokens: int, why: str = "length") -> bytes:
        """What follows the last token."""
        raise AssertionError("each protocol has its own")

    def document(self, tokens: int, why: str = "length") -> bytes:
        """The whole answer of a request that is not streamed."""
        raise AssertionError("each protocol has its own")

    def died(self) -> bytes:
        """What the engine itself says in a stream when its process for the model died."""
        raise AssertionError("each protocol has its own")

    def torn(self, number: int) -> bytes:
        """The event of token `number` up to the middle of a character."""
        event = self.token(number, INSIDE)
        return event[: event.index(INSIDE) + 2]


class Answer(Speech):
    """vLLM's chat completions and completions."""

    def __init__(self, asked: Asked, head: Head) -> None:
        super().__init__(asked, head)
        kind = "chat.completion" if asked.chat else "text_completion"
        self._head: dict[str, object] = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{head.request_id}",
            "object": f"{kind}.chunk" if asked.chat and asked.stream else kind,
            "created": head.created,
            "model": head.model,
        }
        self._before, self._after = (b"", b"")
        if asked.stream:
            self._before, self._after = self._event(self._choice("\x00", None)).split(b"\\u0000")

    def opening(self) -> bytes:
        """The first event of a chat stream; a completion stream has none."""
        if not self.asked.chat:
            return b""
        return self._event(
            [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
        )

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """One event a token."""
        return b"".join((self._before, word or self.word(number), self._after))

    def end(self, tokens: int, why: str = "length") -> bytes:
        """Finish event, usage if asked for, [DONE]."""
        parts = [self._event(self._choice("", why))]
        if self.asked.usage:
            parts.append(sse({**self._head, "choices": [], "usage": self._usage(tokens)}))
        return b"".join((*parts, DONE))

    def document(self, tokens: int, why: str = "length") -> bytes:
        """With the same words as the stream."""
        text = self.text(tokens)
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": why, "stop_reason": None}
        if self.asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return orjson.dumps({**self._head, "choices": [choice], "usage": self._usage(tokens)})

    def died(self) -> bytes:
        """An error event and [DONE] all the same."""
        return b"data: " + error_body(500, CORE_DEAD, "InternalServerError") + b"\n\n" + DONE

    def _choice(self, text: str, finish: str | None) -> list[dict[str, object]]:
        content: dict[str, object] = {"delta": {"content": text}} if self.asked.chat else {"text": text}
        return [{"index": 0, **content, "logprobs": None, "finish_reason": finish}]

    def _event(self, choices: list[dict[str, object]]) -> bytes:
        return sse({**self._head, "choices": choices})

    def _usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.head.input_tokens,
            "total_tokens": self.head.input_tokens + tokens,
            "completion_tokens": tokens,
        }


def sse(value: object, kind: str = "") -> bytes:
    """One event, with its type if it has one."""
    event = b"data: " + orjson.dumps(value) + b"\n\n"
    return b"event: " + kind.encode() + b"\n" + event if kind else event
