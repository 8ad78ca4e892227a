"""What an engine's 429 or 503 says about when to come back, and that no client gets one that says nothing."""

from __future__ import annotations

import re
from typing import Final

SATURATED_ANSWERS: Final = (429, 503)
DEFAULT_S: Final = 1
_retry_after = re.compile(rb"\r\nretry-after:[ \t]*([0-9]{1,6})[ \t]*(?:\r\n|$)", re.IGNORECASE).search


def retry_after_of(head: bytes) -> float | None:
    """Seconds from the head of an answer; None for none, and for a date, which no engine sends."""
    found = _retry_after(head)
    return float(found[1]) if found else None


def with_retry_after(head: bytes) -> bytes:
    """The same head with a Retry-After: SDKs give up on a 429 or 503 that has none."""
    return head if b"\r\nretry-after:" in head.lower() else b"%b\r\nretry-after: %d" % (head, DEFAULT_S)
