"""The forms of refusals and of stream ends, each beside what its protocol's clients expect, and the page about them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from router.core.refusals import RETRY_AFTER_MAX_S, Refusal, whole_seconds
from router.shell.answers import FORMS, Form, answer, form_of, refusal_fields

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SAID = "no room"


def by_name(name: str) -> Form:
    return next(form for form in FORMS if form.name == name)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("/v1/chat/completions", "OpenAI"),
        ("/v1/completions", "OpenAI"),
        ("/v1/embeddings", "OpenAI"),
        ("/v1/responses", "OpenAI Responses"),
        ("/v1/responses?x=1", "OpenAI Responses"),
        ("/v1/responses/r-1/cancel", "OpenAI Responses"),
        ("/openai/v1/responses", "OpenAI Responses"),
        ("/v1/responsesx", "OpenAI"),
        ("/v1/messages", "Anthropic Messages"),
        ("/v1/messages/count_tokens", "Anthropic Messages"),
        ("/v2/models/m/infer", "Open Inference Protocol"),
        ("/v2/models/m/versions/1/generate_stream", "Open Inference Protocol"),
        ("/v2", "OpenAI"),
        ("/generate", "Text Generation Inference"),
        ("/generate_stream", "Text Generation Inference"),
        ("/generated", "OpenAI"),
        ("/completion", "llama.cpp"),
        ("/completions", "llama.cpp"),
        ("/infill", "llama.cpp"),
        ("/", "OpenAI"),
        ("*", "OpenAI"),
    ],
)
def test_which_form_a_path_has(target: str, name: str) -> None:
    assert form_of(target.encode()).name == name


def kinds(status: int, code: str) -> dict[str, Any]:
    return {form.name: json.loads(form.body(status, code, SAID)) for form in FORMS}


@pytest.mark.parametrize(
    ("status", "openai", "anthropic", "tgi", "llama"),
    [
        (400, "invalid_request_error", "invalid_request_error", "validation", "invalid_request_error"),
        (404, "not_found_error", "not_found_error", "validation", "not_found_error"),
        (413, "invalid_request_error", "request_too_large", "validation", "invalid_request_error"),
        (429, "rate_limit_error", "rate_limit_error", "overloaded", "unavailable_error"),
        (500, "server_error", "api_error", "generation", "server_error"),
        (501, "server_error", "api_error", "generation", "not_supported_error"),
        (502, "server_error", "api_error", "generation", "server_error"),
        (503, "server_error", "overloaded_error", "overloaded", "unavailable_error"),
        (504, "server_error", "timeout_error", "generation", "server_error"),
    ],
)
@pytest.mark.fault("R18")
def test_the_body_of_a_refusal(status: int, openai: str, anthropic: str, tgi: str, llama: str) -> None:
    error = {"error": {"message": SAID, "type": openai, "param": None, "code": "c"}}
    assert kinds(status, "c") == {
        "OpenAI": error,
        "OpenAI Responses": error,
        "Anthropic Messages": {"type": "error", "error": {"type": anthropic, "message": SAID}},
        "Open Inference Protocol": {"error": SAID},
        "Text Generation Inference": {"error": SAID, "error_type": tgi},
        "llama.cpp": {"error": {"code": status, "message": SAID, "type": llama}},
    }


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.fault("R11")
def test_an_error_event_is_one_event_whatever_the_message(form: Form) -> None:
    event = form.event(502, "c", "two\nlines, an ä and a \r", 3)
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    assert b"\r" not in event
    assert b"[DONE]" not in event
    lines = event.rstrip(b"\n").split(b"\n")
    assert [line.partition(b": ")[0] for line in lines][-1] == b"data"
    json.loads(lines[-1].partition(b": ")[2])


@pytest.mark.fault("R18")
def test_a_refusal_says_when_to_come_back_within_a_minute() -> None:
    for wait_s, said in ((None, 5), (0.0, 1), (0.2, 1), (59.5, 60), (3600.0, 60)):
        fields = refusal_fields(
            Refusal(status=429, code="queue_full", message=SAID, retry_after_s=whole_seconds(wait_s))
        )
        assert fields == b"retry-after: %d\r\n" % said
        head, _, body = answer(429, b"{}", False, fields).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n")
        assert body == b"{}"
    assert RETRY_AFTER_MAX_S == 60


# ---- docs/errors.md


def rows() -> dict[str, tuple[set[int], str]]:
    """The page's table of refusals: code -> statuses and Retry-After."""
    found = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \| ([^|]+) \|", PAGE, re.MULTILINE)
    return {code: ({int(each) for each in statuses.split(",")}, told.strip()) for code, statuses, told in found}


def made() -> set[tuple[str, int, str]]:
    """Every refusal with a code of its own that the router's source makes: code, status, Retry-After as the page says
    it.
    """
    found = set()
    for path in sorted((ROOT / "router").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal"):
                continue
            told = {word.arg: word.value for word in node.keywords}
            code, status, retry = told["code"], told["status"], told.get("retry_after_s")
            if not (isinstance(code, ast.Constant) and isinstance(status, ast.Constant)):
                continue
            if retry is None or (isinstance(retry, ast.Constant) and retry.value is None):
                said = "-"
            elif isinstance(retry, ast.Constant):
                said = str(retry.value)
            else:
                said = "1 to 60" if isinstance(retry, ast.Call) else "5"
            found.add((str(code.value), int(status.value), said))  # type: ignore[arg-type]  # checked above to be plain constants
    return found


def test_the_page_has_every_refusal_of_the_code() -> None:
    page = rows()
    for code, status, told in sorted(made()):
        assert code in page, f"docs/errors.md has no row for the refusal {code!r} ({status})"
        assert status in page[code][0], (code, status)
        assert page[code][1] == told, (code, told)


def test_the_page_has_no_refusal_that_the_code_does_not_have() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "router").rglob("*.py"))
    for code in rows():
        assert f'"{code}"' in source, f"docs/errors.md has a row for {code!r}, which the router never says"
    heads = {int(status) for status in re.findall(r"BadHead\(\s*(\d{3})", source)}
    told = set().union(*(rows()[code][0] for code in ("bad_request", "request_too_large", "out_of_memory")))
    assert told == {status for status in heads if status != 502}  # 502: an answer's head, told as bad_answer


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_page_shows_each_form_as_it_is(form: Form) -> None:
    section = re.search(rf"^### {re.escape(form.name)}\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/errors.md does not show {form.name}"
    body, event = re.findall(r"```(?:json|text)\n(.*?)\n```", section[1], re.DOTALL)
    assert body.encode() == form.body(503, "no_capacity", "no replica of 'm' is ready")
    message = "the replica closed the connection before its answer was complete"
    assert f"{event}\n\n".encode() == form.event(502, "replica_failed", message, 7 if form.numbered else 0)
