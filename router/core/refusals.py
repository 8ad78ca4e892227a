"""What the router answers when it does not send a request on: plain values, made in the core, written as HTTP by the
shell.

The core knows only status, code, words and seconds; the JSON form per path is the shell's. `code` is one of a small
fixed set, so it may be a metric label. Retry-After is whole seconds within 1..60: clients that are told longer give
up, and a 0 makes them hammer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

RETRY_AFTER_MAX_S = 60
RETRY_AFTER_DEFAULT_S = 5
"""Told when nothing is known: neither a drain rate nor when the next replica comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One refused request. `retry_after_s` None = the header is left out (asking again would not help)."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None


def whole_seconds(wait_s: float | None) -> int:
    """Seconds for Retry-After: rounded up, within 1..60; unknown (None) gives the default."""
    if wait_s is None:
        return RETRY_AFTER_DEFAULT_S
    return int(min(max(ceil(wait_s), 1), RETRY_AFTER_MAX_S))


NO_TABLE = Refusal(
    status=503,
    code="not_ready",
    message="the router has not been told of any model yet",
    retry_after_s=RETRY_AFTER_DEFAULT_S,
)
MODEL_REMOVED = Refusal(
    status=503, code="model_removed", message="the model was removed while the request waited", retry_after_s=None
)
UNREACHABLE = Refusal(status=502, code="unreachable", message="no replica could be reached", retry_after_s=1)
CUT = Refusal(
    status=502,
    code="replica_failed",
    message="the replica closed the connection before its answer was complete",
    retry_after_s=1,
)
BROKEN = Refusal(status=502, code="bad_answer", message="the replica's answer is not valid HTTP", retry_after_s=1)
TIMED_OUT = Refusal(status=504, code="timeout", message="the replica did not answer in time", retry_after_s=1)
INTERNAL = Refusal(status=500, code="internal_error", message="the router failed to handle the request")


def no_model(asked: str | None, known: list[str]) -> Refusal:
    """The request names an unknown model (404), none while several are known (400), or none is known yet (503)."""
    if not known:
        return NO_TABLE
    if asked is None:
        message = f"the request names no model; say it in the JSON body or in x-model. Known: {', '.join(known[:20])}"
        return Refusal(status=400, code="model_required", message=message)
    return Refusal(status=404, code="model_not_found", message=f"the model {asked[:100]!r} does not exist here")
