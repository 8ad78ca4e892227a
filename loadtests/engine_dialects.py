"""The protocols an emulated engine speaks besides OpenAI's chat and completions: thin, but each with its own framing.

A `Dialect` is one path: how its requests are read, the speech that answers them, its errors. Forms are those of vLLM
(Responses, Messages), Triton 2.51 and llama.cpp (captured), and Text Generation Inference (its documentation).

| path                          | request                           | stream                                           |
|-------------------------------|-----------------------------------|--------------------------------------------------|
| /v1/responses                 | input, max_output_tokens, stream  | typed events with sequence_number, no [DONE]     |
| /v1/messages                  | messages, max_tokens, stream      | typed events from message_start to message_stop  |
| /v2/models/M/infer            | inputs                            | -                                                |
| /v2/models/M/generate         | text_input, max_tokens            | -                                                |
| /v2/models/M/generate_stream  | text_input, max_tokens            | one event a token, no [DONE]                     |
| /generate, /generate_stream   | inputs, parameters.max_new_tokens | one event a token, the text in the last          |
| /completion                   | prompt, n_predict, stream         | one event a token, "stop" true in the last       |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from loadtests.engine_answers import (
    CORE_DEAD,
    Asked,
    Head,
    Refused,
    Speech,
    check_length,
    check_model,
    count_words,
    error_body,
    read_object,
    sse,
    wanted_tokens,
)
from loadtests.engine_refusals import llama_error, messages_error, openai_error, tgi_error, triton_error


class Responses(Speech):
    """The Responses API."""

    def _response(self, status: str, tokens: int | None = None) -> dict[str, object]:
        done = tokens is not None
        return {
            "id": f"resp_{self.head.request_id}",
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "model": self.head.model,
            "output": [self._item(status, tokens)] if tokens is not None else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": self._usage(tokens or 0) if done else None,
        }

    def _usage(self, tokens: int) -> dict[str, object]:
        return {
            "input_tokens": self.head.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.head.input_tokens + tokens,
        }

    def _item(self, status: str, tokens: int | None) -> dict[str, object]:
        content = [] if tokens is None else [self._part(self.text(tokens))]
        return {
            "id": f"msg_{self.head.request_id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part(self, text: str) -> dict[str, object]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _event(self, kind: str, number: int, **more: object) -> bytes:
        return sse({"type": kind, "sequence_number": number, **more}, kind)

    def _place(self) -> dict[str, object]:
        return {"item_id": f"msg_{self.head.request_id}", "output_index": 0, "content_index": 0}

    def opening(self) -> bytes:
        """Four events."""
        item = self._item("in_progress", None)
        return b"".join(
            (
                self._event("response.created", 0, response=self._response("in_progress")),
                self._event("response.in_progress", 1, response=self._response("in_progress")),
                self._event("response.output_item.added", 2, output_index=0, item=item),
                self._event("response.content_part.added", 3, **self._place(), part=self._part("")),
            )
        )

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """A delta."""
        delta = (word or self.word(number)).decode()
        return self._event("response.output_text.delta", number + 3, **self._place(), delta=delta, logprobs=[])

    def end(self, tokens: int, why: str = "length") -> bytes:
        """Four events; the last says whether it is complete."""
        status, text, number = _status(why), self.text(tokens), tokens + 4
        return b"".join(
            (
                self._event("response.output_text.done", number, **self._place(), text=text, logprobs=[]),
                self._event("response.content_part.done", number + 1, **self._place(), part=self._part(text)),
                self._event("response.output_item.done", number + 2, output_index=0, item=self._item(status, tokens)),
                self._event(f"response.{status}", number + 3, response=self._response(status, tokens)),
            )
        )

    def document(self, tokens: int, why: str = "length") -> bytes:
        """The response."""
        return orjson.dumps(self._response(_status(why), tokens))

    def died(self) -> bytes:
        """As vLLM: its error object as an event, without a number."""
        return b"data: " + error_body(500, CORE_DEAD, "InternalServerError") + b"\n\n"


def _status(why: str) -> str:
    return "completed" if why == "length" else "incomplete"


class Messages(Speech):
    """Anthropic's Messages API."""

    def _message(self, tokens: int | None, why: str | None) -> dict[str, object]:
        return {
            "id": f"msg_{self.head.request_id}",
            "type": "message",
            "role": "assistant",
            "content": [] if tokens is None else [{"type": "text", "text": self.text(tokens)}],
            "model": self.head.model,
            "stop_reason": why,
            "stop_sequence": None,
            "usage": {"input_tokens": self.head.input_tokens, "output_tokens": tokens or 0},
        }

    def opening(self) -> bytes:
        """message_start, content_block_start."""
        block = {"type": "text", "text": ""}
        return b"".join(
            (
                sse({"type": "message_start", "message": self._message(None, None)}, "message_start"),
                sse({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start"),
            )
        )

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """A delta."""
        delta = {"type": "text_delta", "text": (word or self.word(number)).decode()}
        return sse({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")

    def end(self, tokens: int, why: str = "length") -> bytes:
        """Three events."""
        delta = {"stop_reason": _stop_reason(why), "stop_sequence": None}
        usage = {"output_tokens": tokens}
        return b"".join(
            (
                sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
                sse({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta"),
                sse({"type": "message_stop"}, "message_stop"),
            )
        )

    def document(self, tokens: int, why: str = "length") -> bytes:
        """The message."""
        return orjson.dumps(self._message(tokens, _stop_reason(why)))

    def died(self) -> bytes:
        """An error event."""
        return b"event: error\ndata: " + messages_error(500, CORE_DEAD) + b"\n\n"


def _stop_reason(why: str) -> str:
    return "max_tokens" if why == "length" else why


class Infer(Speech):
    """Triton's `infer`: one tensor back."""

    def document(self, tokens: int, why: str = "length") -> bytes:
        """One output of text."""
        row = {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [self.text(tokens)]}
        return orjson.dumps({"model_name": self.head.model, "model_version": "1", "outputs": [row]})


class Generate(Speech):
    """Triton's `generate` and `generate_stream`."""

    def _value(self, text: str) -> dict[str, object]:
        return {"model_name": self.head.model, "model_version": "1", "text_output": text}

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """One event."""
        return sse(self._value((word or self.word(number)).decode()))

    def end(self, tokens: int, why: str = "length") -> bytes:
        """Nothing: the stream just ends."""
        return b""

    def document(self, tokens: int, why: str = "length") -> bytes:
        """The text."""
        return orjson.dumps(self._value(self.text(tokens)))

    def died(self) -> bytes:
        """An event with an error in it."""
        return b"data: " + triton_error(500, CORE_DEAD) + b"\n\n"


class Tgi(Speech):
    """Text Generation Inference."""

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """One event; the last has the whole text."""
        last = number == self.asked.output_tokens
        text = (word or self.word(number)).decode()
        details = {"finish_reason": "length", "generated_tokens": number, "seed": None} if last else None
        value = {
            "index": number,
            "token": {"id": number, "text": text, "logprob": -0.5, "special": False},
            "generated_text": self.text(number) if last else None,
            "details": details,
        }
        return b"data:" + orjson.dumps(value) + b"\n\n"

    def end(self, tokens: int, why: str = "length") -> bytes:
        """Nothing behind the last token; an answer broken off is an error."""
        return b"" if why == "length" else b"data:" + tgi_error(500, f"the generation ended: {why}") + b"\n\n"

    def document(self, tokens: int, why: str = "length") -> bytes:
        """The text."""
        return orjson.dumps({"generated_text": self.text(tokens)})

    def died(self) -> bytes:
        """An event with an error in it."""
        return b"data:" + tgi_error(500, CORE_DEAD) + b"\n\n"


class LlamaCompletion(Speech):
    """llama.cpp's own completion."""

    def _value(self, text: str, tokens: int, stop: bool) -> dict[str, object]:
        counts = {"tokens_predicted": tokens, "tokens_evaluated": self.head.input_tokens}
        return {"index": 0, "content": text, "tokens": [], "stop": stop, "id_slot": 0, **counts}

    def token(self, number: int, word: bytes | None = None) -> bytes:
        """One event."""
        return sse(self._value((word or self.word(number)).decode(), number, False))

    def end(self, tokens: int, why: str = "length") -> bytes:
        """The event that says stop."""
        return sse({**self._value("", tokens, True), "stop_type": "limit", "model": self.head.model})

    def document(self, tokens: int, why: str = "length") -> bytes:
        """The text."""
        whole = self._value(self.text(tokens), tokens, True)
        return orjson.dumps({**whole, "stop_type": "limit", "model": self.head.model})

    def died(self) -> bytes:
        """An event with an error in it."""
        return b"data: " + llama_error(500, CORE_DEAD) + b"\n\n"


# ---- one row a path


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One path. `prompt`: members whose words are the prompt; `tokens`: names of the member that bounds the output;
    `options`: the member that has it, None = the request itself; `stream`: None = the member `stream` says so;
    `default`: tokens when nothing is said; `malformed`: status for JSON that cannot be read.
    """

    path: str
    speech: Callable[[Asked, Head], Speech]
    error: Callable[[int, str], bytes]
    prompt: tuple[str, ...]
    tokens: tuple[str, ...]
    options: str | None = None
    stream: bool | None = None
    default: int = 16
    malformed: int = 400

    def read(self, body: bytes, model: str | None, context_tokens: int) -> Asked:
        """Read a request. Raises `Refused` in the form of the protocol."""
        try:
            return self._read(body, model, context_tokens)
        except Refused as refusal:
            refusal.body = self.error(refusal.status, refusal.message)
            raise

    def _read(self, body: bytes, model: str | None, context_tokens: int) -> Asked:
        try:
            document: Mapping[str, object] = read_object(body)
        except Refused as refusal:
            refusal.status = self.malformed
            raise
        check_model(document.get("model"), model)
        if not any(name in document for name in self.prompt):
            raise Refused(400, f"missing field {self.prompt[0]}", "BadRequestError", self.prompt[0])
        words = max(1, sum(count_words(document[name]) for name in self.prompt if name in document))
        options = document.get(self.options) if self.options is not None else document
        limits: Mapping[str, object] = options if isinstance(options, dict) else {}
        output_tokens = wanted_tokens(limits, self.tokens, context_tokens, self.default)
        check_length(words, context_tokens)
        stream = document.get("stream") is True if self.stream is None else self.stream
        return Asked(chat=False, stream=stream, usage=False, words=words, output_tokens=output_tokens)


_TRITON_PATHS = ("/v2/models/{model}/", "/v2/models/{model}/versions/{version}/")

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        path="/v1/responses",
        speech=Responses,
        error=openai_error,
        prompt=("input", "instructions"),
        tokens=("max_output_tokens",),
    ),
    Dialect(
        path="/v1/messages",
        speech=Messages,
        error=messages_error,
        prompt=("messages", "system"),
        tokens=("max_tokens",),
    ),
    *(
        Dialect(
            path=path + action,
            speech=Infer if action == "infer" else Generate,
            error=triton_error,
            prompt=("inputs",) if action == "infer" else ("text_input",),
            tokens=("max_tokens",),
            options="parameters" if action == "infer" else None,
            stream=action == "generate_stream",
            default=1 if action == "infer" else 16,
            malformed=500,
        )
        for path in _TRITON_PATHS
        for action in ("infer", "generate", "generate_stream")
    ),
    Dialect(
        path="/generate",
        speech=Tgi,
        error=tgi_error,
        prompt=("inputs",),
        tokens=("max_new_tokens",),
        options="parameters",
        stream=False,
        malformed=422,
    ),
    Dialect(
        path="/generate_stream",
        speech=Tgi,
        error=tgi_error,
        prompt=("inputs",),
        tokens=("max_new_tokens",),
        options="parameters",
        stream=True,
        malformed=422,
    ),
    Dialect(
        path="/completion",
        speech=LlamaCompletion,
        error=llama_error,
        prompt=("prompt",),
        tokens=("n_predict", "max_tokens"),
    ),
)
