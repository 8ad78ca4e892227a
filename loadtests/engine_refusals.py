"""Error objects of the protocols that an emulated engine speaks: (status, message) -> JSON."""

from __future__ import annotations

import orjson

from loadtests.engine_answers import error_body


def openai_error(status: int, message: str) -> bytes:
    """vLLM's error object."""
    return error_body(status, message, "InternalServerError" if status >= 500 else "BadRequestError")


def messages_error(status: int, message: str) -> bytes:
    """Anthropic's."""
    kind = {404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "api_error"
    )
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def triton_error(status: int, message: str) -> bytes:
    """Triton's."""
    return orjson.dumps({"error": message})


def tgi_error(status: int, message: str) -> bytes:
    """Text Generation Inference's."""
    kind = "validation" if status < 429 else "overloaded" if status in (429, 503) else "generation"
    return orjson.dumps({"error": message, "error_type": kind})


def llama_error(status: int, message: str) -> bytes:
    """llama.cpp's."""
    kind = "invalid_request_error" if status < 500 else "unavailable_error" if status == 503 else "server_error"
    return orjson.dumps({"error": {"code": status, "message": message, "type": kind}})
