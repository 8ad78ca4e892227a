"""The bytes of the soak's requests. Pure functions of the plan."""

from __future__ import annotations

from typing import Final

import orjson

from loadtests.soak_plan import Asked

MODEL: Final = "tide-1"
_BAD: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost : a\r\ncontent-length: 0\r\n\r\n",
)


def client_id(seed: int, asked: Asked) -> str | None:
    """The x-request-id that the client sends, None when it sends none."""
    return f"soak-{seed}-{asked.number}" if asked.named and asked.kind != "bad" else None


def encoded(asked: Asked, named: str | None) -> tuple[bytes, bytes]:
    """Head and body as they travel; `named`: the client's id."""
    own = b"" if named is None else b"x-request-id: %b\r\n" % named.encode()
    if asked.kind == "bad":
        return _BAD[asked.number % len(_BAD)], b""
    if asked.kind == "page":
        return b"GET /v1/models HTTP/1.1\r\nhost: soak\r\n%b\r\n" % own, b""
    document: dict[str, object] = {
        "model": "nobody-has-this" if asked.kind == "unknown" else MODEL,
        "max_tokens": asked.tokens,
        "stream": asked.stream,
    }
    prompt = " ".join([f"request-{asked.number}", *["w"] * (asked.words - 1)])
    if asked.kind == "text":
        document["prompt"] = prompt
    else:
        document["messages"] = [{"role": "user", "content": prompt}]
    if asked.stream and asked.usage:
        document["stream_options"] = {"include_usage": True}
    if asked.padding:
        document["user"] = "x" * asked.padding
    body = orjson.dumps(document)
    framing = b"content-length: %d\r\n" % len(body)
    if asked.chunked:
        half = len(body) // 2
        parts = [part for part in (body[:half], body[half:]) if part]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        framing = b"transfer-encoding: chunked\r\n"
    if asked.expect:
        framing += b"expect: 100-continue\r\n"
    path = b"/v1/completions" if asked.kind == "text" else b"/v1/chat/completions"
    head = b"POST %b HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n%b%b\r\n" % (path, own, framing)
    return head, body
