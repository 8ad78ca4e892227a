"""The two wires as the router sees them, and the words both tables of an endpoint's state use.

What travels: wire 2, the intent table a source sends (`PUT /admin/v1/endpoints`, or the document of `router -f FILE`), and wire 1, the
load report the router gives (`GET /admin/v1/load`). The types are frozen; parsing refuses an unknown version, ignores unknown fields and
names the field, the value and what is allowed. This module knows no socket, no clock and nothing of the control plane, which parses its
own types; `tests/contracts/` holds the two together.

Units: seconds (`_s`), counts, bytes; ages relative to the sender; counters cumulative per boot.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from router.errors import BadTable

WIRE_VERSION = 1

Intent = Literal["active", "standby", "draining"]
Health = Literal["unknown", "ready", "ejected", "half-open"]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Capacity = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every wire type: immutable, keyword only, unknown fields ignored."""


class Slo(Value, frozen=True):
    """What a request is promised. `queue_s`: longest wait before it is sent on; `ttft_s`: to its first byte, None = not promised."""

    queue_s: Positive = 5.0
    ttft_s: Positive | None = None


class QueueBounds(Value, frozen=True):
    """Bounds of one model's queue. A request older than `timeout_s` is evicted with 503; 0 requests = never queue."""

    max_requests: Annotated[int, msgspec.Meta(ge=0)] = 2000
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 256 << 20
    timeout_s: Positive = 30.0


class Retries(Value, frozen=True):
    """How often a request may be sent again. `budget_percent` of recent requests; `idempotent`: may one be re-sent after it was sent."""

    budget_percent: NotNegative = 20.0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    idempotent: bool = False


class Timeouts(Value, frozen=True):
    """Bounds on the engine's side, each on its own. `progress_s`: an endpoint all of whose event streams are silent for that long
    is hung and gets no new requests."""

    connect_s: Positive = 2.0
    first_byte_s: Positive = 120.0
    between_bytes_s: Positive = 60.0
    total_s: Positive = 1800.0
    progress_s: Positive = 20.0


class Tenants(Value, frozen=True):
    """Fairness between tenants while requests wait. `header` names the tenant; `weights`: shares of named ones, `default`: of
    everybody else."""

    header: Name = "x-tenant-id"
    weights: dict[str, Positive] = {}
    default: Positive = 1.0


class Priorities(Value, frozen=True):
    """Bands served strictly in order, highest first. `header` gives a band's name, or its number from 0."""

    header: Name = "x-priority"
    bands: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=16)] = ("system", "interactive", "batch")


class Session(Value, frozen=True):
    """`header` names the session that the policy `session` keeps at one endpoint."""

    header: Name = "x-session-id"


class Routing(Value, frozen=True):
    """The policy's `routing`, durations in seconds. `ramp_s`: time over which an endpoint that begins to serve is given its full share."""

    policy: Literal["least-load", "prefix", "session", "round-robin"] = "least-load"
    queue: QueueBounds = QueueBounds()
    retries: Retries = Retries()
    timeouts: Timeouts = Timeouts()
    tenants: Tenants | None = None
    priorities: Priorities | None = None
    session: Session = Session()
    ramp_s: NotNegative = 5.0


class Supply(Value, frozen=True):
    """`eta_s`: seconds until the next replica is ready, None when none is on its way. It becomes Retry-After."""

    eta_s: NotNegative | None = None


class ModelIntent(Value, frozen=True):
    """One model name that requests may ask for, its aliases and how it is to be routed."""

    name: Name
    aliases: tuple[Name, ...] = ()
    slo: Slo = Slo()
    routing: Routing = Routing()
    supply: Supply = Supply()
    versions: dict[str, NotNegative] = {}
    mirror: dict[str, NotNegative] = {}


class EndpointIntent(Value, frozen=True):
    """One replica as the router is to see it.

    `capacity`: signal units it holds within the SLO (weight of the pick); `limit`: most requests in flight over all routers;
    `starting`: it exists but does not answer yet, so it is supply, never routable.
    """

    id: Name
    url: str
    model: Name
    version: str = "v1"
    variant: str = "default"
    engine: str = "generic"
    capacity: Capacity = 1.0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    intent: Intent = "active"
    starting: bool = False
    max_input_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    served_model: Name | None = None


class IntentTable(Value, frozen=True):
    """The whole table of one source: whatever it omits is gone."""

    source: Name
    version: Literal[1] = 1
    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0
    revision: Annotated[int, msgspec.Meta(ge=0)] = 0
    share: Share = 1.0
    models: tuple[ModelIntent, ...] = ()
    endpoints: tuple[EndpointIntent, ...] = ()


class EndpointAck(Value, frozen=True):
    """`drained`: the draining intent is applied and nothing is bound to the endpoint any more."""

    in_flight: int
    drained: bool
    health: Health


class TableAck(Value, frozen=True):
    """The answer to a table: the (epoch, revision) now held and each endpoint's state."""

    applied: tuple[int, int]
    endpoints: dict[str, EndpointAck] = {}


class Histogram(Value, frozen=True):
    """Cumulative per boot: `count[i]` values were <= `le[i]`; the last count is of all values."""

    le: tuple[float, ...] = ()
    count: tuple[int, ...] = ()


class Total(Value, frozen=True):
    """Cumulative per boot: how many and their sum in seconds."""

    count: int = 0
    sum: float = 0.0


class ModelLoad(Value, frozen=True):
    """Load of one model: per-second counts of the last complete seconds (the last one last) and gauges of now."""

    arrived: tuple[int, ...] = ()
    tokens_in: tuple[int, ...] = ()
    tokens_out: tuple[int, ...] = ()
    shed: tuple[int, ...] = ()
    in_flight: int = 0
    queued: int = 0
    queued_tokens: int = 0
    oldest_s: float = 0.0
    held_from_zero: int = 0
    service_s: Total = Total()
    ttft_s: Histogram = Histogram()
    itl_s: Histogram = Histogram()


class EngineLoad(Value, frozen=True):
    """What the engine itself reports; None = it does not say, which is not 0. `age_s`: how old the reading is."""

    running: float | None = None
    waiting: float | None = None
    kv: float | None = None
    age_s: float | None = None


class EndpointLoad(Value, frozen=True):
    """One endpoint as this router sees it. `outcomes`: cumulative counts by outcome; `limit`: this router's share."""

    intent: str
    health: Health
    in_flight: int
    limit: int
    outcomes: dict[str, int] = {}
    engine: EngineLoad = EngineLoad()


class LoadReport(Value, frozen=True):
    """Wire 1. `second`: how many whole seconds this boot has completed, so that a reader knows which of `arrived` are new to it."""

    router: str
    boot: str
    seq: int
    second: int
    version: Literal[1] = 1
    held: dict[str, tuple[int, int]] = {}
    accepting: bool = True
    models: dict[str, ModelLoad] = {}
    endpoints: dict[str, EndpointLoad] = {}


_engine_url = re.compile(
    r"http://(?:\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\]|([A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?)):([0-9]{1,5})/?"
).fullmatch
_TABLE = msgspec.json.Decoder(IntentTable)


def parse_table(document: bytes) -> IntentTable:
    """Read one intent table from JSON. Raises `BadTable` naming the field and what is allowed."""
    try:
        table = _TABLE.decode(document)
    except msgspec.ValidationError as error:
        raise BadTable(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadTable(f"not JSON: {error}") from error
    return checked(table)


def table_from(document: object) -> IntentTable:
    """The same from already parsed YAML or JSON. Raises `BadTable`."""
    try:
        return checked(msgspec.convert(document, IntentTable))
    except msgspec.ValidationError as error:
        raise BadTable(str(error)) from error


def checked(table: IntentTable) -> IntentTable:
    """Rules across fields: unique ids, one owner per model name, every endpoint's model known, plain http URLs. Raises `BadTable`."""
    owners: dict[str, str] = {}
    for index, model in enumerate(table.models):
        for name in (model.name, *model.aliases):
            if name in owners:
                raise BadTable(f"`$.models[{index}]`: the name {name!r} already belongs to {owners[name]!r}")
            owners[name] = model.name
    seen: set[str] = set()
    for index, endpoint in enumerate(table.endpoints):
        where = f"`$.endpoints[{index}]`"
        if endpoint.id in seen:
            raise BadTable(f"{where}.id: {endpoint.id!r} appears twice; ids are unique in a table")
        seen.add(endpoint.id)
        if endpoint.model not in owners:
            raise BadTable(
                f"{where}.model: {endpoint.model!r} is not one of the table's models: {sorted(owners) or 'none'}"
            )
        host_and_port(endpoint.url, f"{where}.url")
    return table


def host_and_port(url: str, where: str = "url") -> tuple[str, int]:
    """`http://HOST:PORT` -> (host, port); a path, a query, another scheme or a host that is no name, IPv4 address or
    IPv6 address in brackets is refused. Raises `BadTable`.
    """
    match = _engine_url(url)
    if match is None or not 0 < int(match[3]) < 65536:
        raise BadTable(f"{where}: {url!r} is not of the form http://HOST:PORT")
    return match[1] or match[2], int(match[3])
