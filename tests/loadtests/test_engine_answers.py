"""The engine's bytes beside what vLLM 0.32 sent, and the faults' settings."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import pytest

from loadtests.engine_answers import Answer, Asked, Head, Refused, read_request
from loadtests.engine_faults import Faults, add_fault_arguments, changed, faults_from
from loadtests.errors import BadInput

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}]}


def read(document: Any, *, chat: bool = True) -> Asked:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_request(body, chat=chat, model="tiny", context_tokens=2048)


@pytest.mark.parametrize(
    ("document", "status", "kind", "says"),
    [
        (b"", 400, "Bad Request", "Field required"),
        (b'{"model":"tiny","messages":[', 400, "Bad Request", "JSON decode error"),
        (b"[]", 400, "Bad Request", "valid dictionary"),
        ({"model": "tiny"}, 400, "Bad Request", "body.messages"),
        ({"model": "tiny", "messages": []}, 400, "Bad Request", "body.messages"),
        ({"model": "tiny", "messages": ["hi"]}, 400, "Bad Request", "body.messages"),
        ({**CHAT, "model": "nope"}, 404, "NotFoundError", "The model `nope` does not exist. Valid aliases: tiny."),
        ({**CHAT, "max_tokens": 1000000}, 400, "BadRequestError", "max_model_len=2048"),
        ({**CHAT, "max_tokens": 0}, 400, "BadRequestError", "at least 1"),
        ({**CHAT, "max_tokens": True}, 400, "BadRequestError", "at least 1"),
        ({"messages": [{"role": "user", "content": "w " * 2049}]}, 400, "BadRequestError", "maximum context length"),
    ],
)
def test_what_cannot_be_served_is_refused_as_vllm_refuses_it(document: Any, status: int, kind: str, says: str) -> None:
    with pytest.raises(Refused) as refusal:
        read(document)
    error = json.loads(refusal.value.body)["error"]
    assert (refusal.value.status, error["code"], error["type"]) == (status, status, kind)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("document", "chat", "asked"),
    [
        (CHAT, True, Asked(chat=True, stream=False, usage=False, words=2, output_tokens=16)),
        (
            {**CHAT, "max_tokens": 3, "stream": True},
            True,
            Asked(chat=True, stream=True, usage=False, words=2, output_tokens=3),
        ),
        (
            {**CHAT, "max_completion_tokens": 4},
            True,
            Asked(chat=True, stream=False, usage=False, words=2, output_tokens=4),
        ),
        (
            {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
            True,
            Asked(chat=True, stream=True, usage=True, words=2, output_tokens=16),
        ),
        (
            {"messages": [{"content": [{"type": "text", "text": "a b c"}, {"type": "image_url"}]}]},
            True,
            Asked(chat=True, stream=False, usage=False, words=4, output_tokens=16),
        ),
        ({"prompt": ["a b", "c"]}, False, Asked(chat=False, stream=False, usage=False, words=3, output_tokens=16)),
        ({"prompt": ""}, False, Asked(chat=False, stream=False, usage=False, words=1, output_tokens=16)),
    ],
)
def test_what_is_read_from_a_request(document: Any, chat: bool, asked: Asked) -> None:
    assert read(document, chat=chat) == asked


def answer(asked: Asked) -> Answer:
    return Answer(asked, Head(request_id="req-1", model="tiny", created=7, input_tokens=6))


def events(raw: bytes) -> list[Any]:
    return [json.loads(event[6:]) for event in raw.decode().split("\n\n") if event.startswith("data: {")]


def test_a_chat_stream_has_vllms_events() -> None:
    made = answer(Asked(chat=True, stream=True, usage=True, words=1, output_tokens=1))
    raw = made.opening() + made.token(1) + made.end(1)
    role, token, finish, usage = events(raw)
    head = {"id": "chatcmpl-req-1", "object": "chat.completion.chunk", "created": 7, "model": "tiny"}
    assert {key: role[key] for key in head} == head
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert token["choices"][0]["delta"]["content"].startswith(" ")
    assert finish["choices"][0] == {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 6, "total_tokens": 7, "completion_tokens": 1}
    assert raw.endswith(b"data: [DONE]\n\n")


def test_a_completion_stream_has_no_role_event_and_no_usage_unless_asked() -> None:
    made = answer(Asked(chat=False, stream=True, usage=False, words=1, output_tokens=1))
    assert made.opening() == b""
    token, finish = events(made.token(1) + made.end(1))
    assert token["object"] == finish["object"] == "text_completion"
    assert token["choices"][0]["text"].strip()


def test_a_document_has_the_same_words_as_the_stream() -> None:
    streamed = answer(Asked(chat=True, stream=True, usage=False, words=1, output_tokens=3))
    words = "".join(events(streamed.token(number))[0]["choices"][0]["delta"]["content"] for number in (1, 2, 3))
    document = json.loads(answer(Asked(chat=True, stream=False, usage=False, words=1, output_tokens=3)).document(3))
    assert document["choices"][0]["message"] == {"role": "assistant", "content": words}
    assert document["object"] == "chat.completion"
    assert document["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([], "JSON object"),
        ({"freez": True}, "did you mean 'freeze'?"),
        ({"freeze": 1}, "true or false"),
        ({"fail_next": 1.5}, "whole number"),
        ({"fail_next": -1}, "at least 0"),
        ({"fail_status": 200}, "400 to 599"),
        ({"fail_status": 600}, "400 to 599"),
        ({"speed": 0}, "at least 0.001"),
        ({"speed": float("nan")}, "at least"),
        ({"metrics": "all"}, "vllm, absent, missing, nan, renamed, stale, error"),
        ({"never_ready": True}, "only be set by a flag"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_by_name(wanted: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        changed(Faults(), wanted)


def test_faults_by_flag_and_at_run_time_are_the_same_values() -> None:
    parser = argparse.ArgumentParser()
    add_fault_arguments(parser)
    assert faults_from(parser.parse_args([])) == Faults()
    by_flag = faults_from(parser.parse_args(["--freeze", "--die-after-tokens", "3", "--first-byte-delay-s", "0.5"]))
    assert by_flag == changed(Faults(), {"freeze": True, "die_after_tokens": 3, "first_byte_delay_s": 0.5})
    assert changed(by_flag, {"die_after_tokens": None}) == replace(by_flag, die_after_tokens=None)
