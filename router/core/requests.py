"""A request as the routing core sees it: what it asks for, where it is now, how often it was tried.

It knows nothing of HTTP; the shell derives its own class that adds the bytes and the connections. One object lives
for one request, so a stale reference can never mean a later one. The caller sets `asked`, `tokens_in`, `tokens` and `size`; the rest is the
dispatcher's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.core.endpoints import Endpoint
    from router.core.fairness import Tenant
    from router.core.models import Model


class Request:
    """One request between arrival and its end. Times are seconds on the clock of the `now` arguments.

    `asked`: the model name it carries, None when it carries none · `tokens_in`: estimated prompt tokens · `tokens`:
    that plus the output it may ask for · `size`: bytes it holds while it waits · `endpoint`: where it is bound (slot
    held), None while it waits and after its end · `attempts`: sends so far, 1 = the first · `tried`: endpoints that
    failed it · `waited_s`: time spent in the queue so far · `deadline`, `queued_at`, `ahead`, `tenant`: set while it waits
    (`admission.py`) · `band`, `tenant_name`, `tenant_weight`: where it stands there.
    """

    __slots__ = (
        "ahead",
        "arrived_at",
        "asked",
        "attempts",
        "band",
        "deadline",
        "endpoint",
        "model",
        "queued",
        "queued_at",
        "size",
        "started_at",
        "tenant",
        "tenant_name",
        "tenant_weight",
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
    ahead: bool
    band: int
    deadline: float
    tenant: Tenant
    tenant_name: str
    tenant_weight: float

    def __init__(self) -> None:
        self.endpoint = None
        self.queued = False
        self.attempts = 0
        self.tried = ()
        self.waited_s = 0.0

    @property
    def patience_s(self) -> float | None:
        """How long its client would wait in the queue at most; None = it does not say."""
        return None

    def field(self, name: str) -> str | None:
        """What its client said under a name (a header, lower case); None = nothing."""
        return None

    def prefix_key(self) -> int | None:
        """The same number for prompts that begin the same; None = it has no such beginning."""
        return None
