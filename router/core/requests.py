"""A request as the routing core sees it: what it asks for, where it is now, how often it was tried.

It knows nothing of HTTP; the shell derives its own class that adds the bytes and the connections. One object lives
for one request, so a stale reference can never mean a later one. The caller sets `asked`, `tokens_in`, `tokens` and `size`; the rest is the
dispatcher's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.core.endpoints import Endpoint
    from router.core.models import Model


class Request:
    """One request between arrival and its end. Times are seconds on the clock of the `now` arguments.

    `asked`: the model name it carries, None when it carries none · `tokens_in`: estimated prompt tokens · `tokens`:
    that plus the output it may ask for · `size`: bytes it holds while it waits · `endpoint`: where it is bound (slot
    held), None while it waits and after its end · `attempts`: sends so far, 1 = the first · `tried`: endpoints that
    failed it · `waited_s`: time spent in the queue so far.
    """

    __slots__ = (
        "arrived_at",
        "asked",
        "attempts",
        "endpoint",
        "model",
        "queued",
        "queued_at",
        "size",
        "started_at",
        "tokens",
        "tokens_in",
        "tried",
        "waited_s",
    )

    asked: str | None
    tokens_in: int
    tokens: int
    size: int
    model: Model
    endpoint: Endpoint | None
    attempts: int
    tried: tuple[Endpoint, ...]
    arrived_at: float
    started_at: float
    queued: bool
    queued_at: float
    waited_s: float

    def __init__(self) -> None:
        self.endpoint = None
        self.queued = False
        self.attempts = 0
        self.tried = ()
        self.waited_s = 0.0
