"""An endpoint: one replica as this router sees it. Its state is intent x health, two small tables instead of one
large enum.

Intent, told by the source (wire 2):

| from \\ told | active   | standby | draining | omitted by its source                |
|-------------|----------|---------|----------|--------------------------------------|
| any         | active   | standby | draining | absent: finish, then gone            |

Health, found out by this router (`core/health.py` makes the moves):

| from      | probe ok | answer good | failures in a row, or no connection | server errors in a row   | back-off over           |
|-----------|----------|-------------|-------------------------------------|--------------------------|-------------------------|
| unknown   | ready    | ready       | ejected                             | -                        | -                       |
| ready     | ready    | ready       | ejected                             | ejected, if not too few  | -                       |
| ejected   | -        | -           | -                                   | -                        | half-open (one request) |
| half-open | -        | ready       | ejected, longer                     | the same; ready, if so   | -                       |

A good answer is one that came whole; for a half-open endpoint, whose one request may take minutes, the first event of a
stream too.

Too few = fewer than half of the model's endpoints (active and started) would be ready then. When that comes to pass
later, those out for server errors alone (`soft`) are ready again at once, unless their active probe fails.

Routable = intent active, not starting, not paused after a cut (0.1 s), and health ready, or half-open with its one
probing request not yet out. A slot (`in_flight`) is held from the pick to the last byte or the client's departure. The
object is mutable and handed out for speed; only the dispatcher writes it, except `pool`, which belongs to the shell
and is never looked at here.
"""

from __future__ import annotations

from typing import Any, Final

from router.core.requests import Request
from router.model import EndpointIntent, EndpointLoad, EngineLoad, Health, host_and_port

ACTIVE: Final = "active"
STANDBY: Final = "standby"
DRAINING: Final = "draining"
ABSENT: Final = "absent"

UNKNOWN: Final = "unknown"
READY: Final = "ready"
EJECTED: Final = "ejected"
HALF_OPEN: Final = "half-open"

# Outcomes of one attempt, as indices into `Endpoint.counts`: an int and a list cost half of a str and a dict on the
# hot path.
SUCCESS: Final = 0  # answered below 400, to the last byte
CLIENT_ERROR: Final = 1  # answered 4xx: neutral to health
SATURATED: Final = 2  # answered 429 or 503: soft, neutral to health
SERVER_ERROR: Final = 3  # answered another 5xx: a failure, but never reason enough to empty a pool
UNREACHABLE: Final = 4  # no connection: a failure that ejects at once
TIMEOUT: Final = 5  # no first byte, or none for too long in between: a failure
CUT: Final = 6  # died or broke the protocol: a failure
CLIENT_GONE: Final = 7  # the client left first: says nothing
IGNORED: Final = 8  # our own fault: says nothing
OUTCOMES: Final = (
    "success",
    "client_error",
    "saturated",
    "server_error",
    "unreachable",
    "timeout",
    "cut",
    "client_gone",
    "ignored",
)


def outcome_of(status: int) -> int:
    """Outcome of an answer that arrived whole, by its HTTP status."""
    if status < 400:
        return SUCCESS
    if status in (429, 503):
        return SATURATED
    return CLIENT_ERROR if status < 500 else SERVER_ERROR


def share_of(limit: int, share: float) -> int:
    """This router's part of a limit that all routers share: at least 1, so N routers together exceed it by at most N
    - 1.
    """
    return max(1, round(limit * share))


class Endpoint:
    """One replica in this router.

    `told_limit`: this router's share of its limit · `limit`: that after correction (`limits.py`: `squeeze`, `ttft_*`,
    `late_looks`, `engine_waits`) · `weight`: its capacity in the pick, less while it ramps up · `serving`: active and ready, since
    `serving_since` · `failures`: failed attempts in a row, `server_errors` of them answered · `soft`: out for server errors
    alone · `hung`: out because all its streams went silent · `heard_at`: when bytes of an answer last came, to a few
    beats · `turn`, `points`: its places in the round and on the ring (`picking.py`, `affinity.py`) · `pool`: the shell's own.
    """

    __slots__ = (
        "capacity",
        "counts",
        "drained_told",
        "ejections",
        "engine",
        "engine_load",
        "engine_read_at",
        "engine_waits",
        "failures",
        "health",
        "heard_at",
        "host",
        "hung",
        "id",
        "in_flight",
        "intent",
        "late_looks",
        "limit",
        "looked_at",
        "max_input_tokens",
        "model",
        "paused_until",
        "plain",
        "points",
        "pool",
        "port",
        "probe",
        "probe_failures",
        "retry_at",
        "served_model",
        "server_errors",
        "serving",
        "serving_since",
        "soft",
        "source",
        "squeeze",
        "squeezed_at",
        "starting",
        "told_limit",
        "ttft_best",
        "ttft_count",
        "ttft_usual",
        "turn",
        "url",
        "variant",
        "version",
        "weight",
    )

    def __init__(self, intent: EndpointIntent, source: str, model: str, share: float) -> None:
        self.id: Final = intent.id
        self.source = source
        self.model = model
        self.url: Final = intent.url
        self.host, self.port = host_and_port(intent.url)
        self.health: Health = UNKNOWN
        self.in_flight = 0
        self.counts = [0] * len(OUTCOMES)
        self.drained_told = False
        self.failures = 0
        self.server_errors = 0
        self.soft = False
        self.ejections = 0
        self.retry_at = 0.0
        self.paused_until = 0.0
        self.probe: Request | None = None
        self.probe_failures = 0
        self.engine_load = EngineLoad()
        self.engine_read_at: float | None = None
        self.engine_waits = False
        self.heard_at = 0.0
        self.hung = False
        self.serving = False
        self.serving_since = 0.0
        self.squeeze = 1.0
        self.squeezed_at = 0.0
        self.looked_at = 0.0
        self.late_looks = 0
        self.ttft_best = float("inf")
        self.ttft_count = 0
        self.ttft_usual: float | None = None
        self.turn = 0.0
        self.points: tuple[int, ...] = ()
        self.pool: Any = None
        self.tell(intent, share)

    def tell(self, intent: EndpointIntent, share: float) -> None:
        """Take over what the source says now; health and work in flight stay."""
        self.engine = intent.engine
        self.variant = intent.variant
        self.version = intent.version
        self.capacity = self.weight = intent.capacity
        self.told_limit = share_of(intent.limit, share)
        self.correct()
        self.max_input_tokens = intent.max_input_tokens
        self.intent: str = intent.intent
        self.starting = intent.starting
        self.served_model: str | None = intent.served_model
        if intent.intent != DRAINING:
            self.drained_told = False
        self.settle()

    def correct(self) -> None:
        """Put what is told and what is seen of the limit into force."""
        self.limit = max(1, round(self.told_limit * self.squeeze))

    def settle(self) -> None:
        """Refresh `plain`: True when the end of a request on this endpoint needs no second look (active, ready, no
        failure lately).
        """
        self.plain = self.intent == ACTIVE and self.health == READY and not self.failures

    @property
    def exists(self) -> bool:
        """A replica that is meant to serve now, healthy or not."""
        return self.intent == ACTIVE and not self.starting

    @property
    def routable(self) -> bool:
        """May it be given a request, room apart."""
        if self.intent != ACTIVE or self.starting or self.paused_until:
            return False
        return self.health == READY or (self.health == HALF_OPEN and self.probe is None)

    @property
    def drained(self) -> bool:
        """Told to drain, and nothing is bound to it any more (connecting, being replayed, streaming)."""
        return self.intent == DRAINING and self.in_flight == 0

    @property
    def outcomes(self) -> dict[str, int]:
        """Attempts by outcome, cumulative; only those that happened."""
        return {name: count for name, count in zip(OUTCOMES, self.counts, strict=True) if count}

    def load(self, now: float) -> EndpointLoad:
        """This endpoint's part of wire 1; what its engine reported carries its age at `now`, all None when it never
        did.
        """
        engine = self.engine_load
        if self.engine_read_at is not None:
            age_s = round(now - self.engine_read_at, 3)
            engine = EngineLoad(running=engine.running, waiting=engine.waiting, kv=engine.kv, age_s=age_s)
        return EndpointLoad(
            intent=self.intent,
            health=self.health,
            in_flight=self.in_flight,
            limit=self.limit,
            outcomes=self.outcomes,
            engine=engine,
        )

    def __repr__(self) -> str:
        return f"<Endpoint {self.id} {self.intent} {self.health} {self.in_flight}/{self.limit}>"
