"""The words that an emulated engine says, byte for byte in vLLM's forms (captured from vLLM 0.32), and what it reads
from a request.

Pure functions and values: no sockets and no clock. A request is read into `Asked`, or refused with `Refused` (status
and body). An `Answer` is made once a request and turns token numbers into events; only the word differs between two
events of one stream, so the rest is built once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

import orjson

DONE = b"data: [DONE]\n\n"
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
ENGINE_DIED = (
    b'data: {"error":{"message":"EngineCore encountered an issue.",'
    b'"type":"InternalServerError","param":null,"code":500}}\n\n'
)
_WORDS = b"tide gate water rises before the moon pulls and a keeper who knows the hour opens early".split()


class Refused(Exception):
    """A request that gets an error answer."""

    def __init__(self, status: int, message: str, kind: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
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


def read_request(body: bytes, *, chat: bool, model: str, context_tokens: int) -> Asked:
    """Read a completion request. Raises `Refused` as vLLM would: 400 for what cannot be read, 404 for another model."""
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
    named = document.get("model")
    if named is not None and named != model:
        raise Refused(404, f"The model `{named}` does not exist. Valid aliases: {model}.", "NotFoundError", "model")
    words = _words(document, "messages" if chat else "prompt")
    output_tokens = _output_tokens(document, context_tokens)
    if words > context_tokens:
        text = f"This model's maximum context length is {context_tokens} tokens, the prompt has {words}."
        raise Refused(400, text, "BadRequestError", "input_text")
    options = document.get("stream_options")
    return Asked(
        chat=chat,
        stream=document.get("stream") is True,
        usage=isinstance(options, dict) and options.get("include_usage") is True,
        words=words,
        output_tokens=output_tokens,
    )


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
    return max(1, _count(content))


def _count(content: object) -> int:
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list):
        return sum(map(_count, content))
    if isinstance(content, dict):
        return _count(content.get("content", content.get("text", 1)))
    return 1


def _output_tokens(document: Mapping[str, object], context_tokens: int) -> int:
    for field in ("max_completion_tokens", "max_tokens"):
        wanted = document.get(field)
        if wanted is None:
            continue
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            raise Refused(400, f"{field} must be at least 1, got {wanted!r}.", "BadRequestError", field)
        if wanted > context_tokens:
            text = f"{field}={wanted} cannot be greater than max_model_len={context_tokens}."
            raise Refused(400, text, "BadRequestError", field)
        return wanted
    return 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What an answer says besides its words. `created` in epoch seconds; `input_tokens` is what usage reports."""

    request_id: str
    model: str
    created: int
    input_tokens: int
    seed: int = 0


class Answer:
    """One answer: its events or its JSON document."""

    def __init__(self, asked: Asked, head: Head) -> None:
        self._asked = asked
        self._input_tokens = head.input_tokens
        self._shift = crc32(head.request_id.encode()) + head.seed
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

    def role(self) -> bytes:
        """The first event of a chat stream; a completion stream has none."""
        if not self._asked.chat:
            return b""
        return self._event(
            [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
        )

    def token(self, number: int) -> bytes:
        """The event of token `number`, counted from 1."""
        return b"".join((self._before, self._word(number), self._after))

    def end(self, tokens: int) -> bytes:
        """What follows the last token: finish event, usage if asked for, [DONE]."""
        parts = [self._event(self._choice("", "length"))]
        if self._asked.usage:
            parts.append(_sse({**self._head, "choices": [], "usage": self._usage(tokens)}))
        return b"".join((*parts, DONE))

    def document(self, tokens: int) -> bytes:
        """The whole answer of a request that is not streamed."""
        text = b"".join(self._word(number) for number in range(1, tokens + 1)).decode()
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None}
        if self._asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return orjson.dumps({**self._head, "choices": [choice], "usage": self._usage(tokens)})

    def _word(self, number: int) -> bytes:
        return b" " + _WORDS[(self._shift + number) % len(_WORDS)]

    def _choice(self, text: str, finish: str | None) -> list[dict[str, object]]:
        content: dict[str, object] = {"delta": {"content": text}} if self._asked.chat else {"text": text}
        return [{"index": 0, **content, "logprobs": None, "finish_reason": finish}]

    def _event(self, choices: list[dict[str, object]]) -> bytes:
        return _sse({**self._head, "choices": choices})

    def _usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._input_tokens,
            "total_tokens": self._input_tokens + tokens,
            "completion_tokens": tokens,
        }


def _sse(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
