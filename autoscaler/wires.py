"""The two wires as the control plane sees them: it reads load reports and writes intent tables.

Kept apart from the router's own types on purpose (there is no shared package); `tests/contracts/` proves that each
side reads what the other writes. Unknown fields are ignored, an unknown version is refused, and a report that cannot
be read is missing, never zero.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from autoscaler.errors import BadReport


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every wire type: immutable, keyword only, unknown fields ignored."""


class SloWire(Value, frozen=True, kw_only=True):
    queue_s: float
    ttft_s: float | None = None


class QueueWire(Value, frozen=True, kw_only=True):
    max_requests: int
    max_bytes: int
    timeout_s: float


class RetriesWire(Value, frozen=True, kw_only=True):
    budget_percent: float
    max_attempts: int
    idempotent: bool


class TimeoutsWire(Value, frozen=True, kw_only=True):
    connect_s: float
    first_byte_s: float
    between_bytes_s: float
    total_s: float
    progress_s: float = 20.0


class TenantsWire(Value, frozen=True, kw_only=True):
    header: str = "x-tenant-id"
    weights: dict[str, float] = {}
    default: float = 1.0


class PrioritiesWire(Value, frozen=True, kw_only=True):
    header: str = "x-priority"
    bands: tuple[str, ...] = ("system", "interactive", "batch")


class SessionWire(Value, frozen=True, kw_only=True):
    header: str = "x-session-id"


class RoutingWire(Value, frozen=True, kw_only=True):
    policy: str
    queue: QueueWire
    retries: RetriesWire
    timeouts: TimeoutsWire
    tenants: TenantsWire | None = None
    priorities: PrioritiesWire | None = None
    session: SessionWire = SessionWire()
    ramp_s: float = 5.0


class SupplyWire(Value, frozen=True, kw_only=True):
    eta_s: float | None = None


class ModelWire(Value, frozen=True, kw_only=True):
    name: str
    slo: SloWire
    routing: RoutingWire
    aliases: tuple[str, ...] = ()
    supply: SupplyWire = SupplyWire()
    versions: dict[str, float] = {}
    mirror: dict[str, float] = {}


class EndpointWire(Value, frozen=True, kw_only=True):
    id: str
    url: str
    model: str
    version: str
    variant: str
    engine: str
    capacity: float
    limit: int
    intent: Literal["active", "standby", "draining"]
    starting: bool = False
    max_input_tokens: int | None = None
    served_model: str | None = None


class TableWire(Value, frozen=True, kw_only=True):
    """The whole intent table of this controller, all its policies merged."""

    source: str
    epoch: int
    revision: int
    version: Literal[1] = 1
    share: float = 1.0
    models: tuple[ModelWire, ...] = ()
    endpoints: tuple[EndpointWire, ...] = ()


class EndpointAckWire(Value, frozen=True, kw_only=True):
    in_flight: int
    drained: bool
    health: str


class AckWire(Value, frozen=True, kw_only=True):
    applied: tuple[int, int]
    endpoints: dict[str, EndpointAckWire] = {}


class TotalWire(Value, frozen=True, kw_only=True):
    count: int = 0
    sum: float = 0.0


class ModelLoadWire(Value, frozen=True, kw_only=True):
    """One model's load in one router's report; see the router's own type for units."""

    arrived: tuple[int, ...] = ()
    shed: tuple[int, ...] = ()
    in_flight: int = 0
    queued: int = 0
    queued_tokens: int = 0
    oldest_s: float = 0.0
    held_from_zero: int = 0
    service_s: TotalWire = TotalWire()


class EngineLoadWire(Value, frozen=True, kw_only=True):
    running: float | None = None
    waiting: float | None = None
    kv: float | None = None
    age_s: float | None = None


class EndpointLoadWire(Value, frozen=True, kw_only=True):
    intent: str
    health: str
    in_flight: int
    limit: int
    outcomes: dict[str, int] = {}
    engine: EngineLoadWire = EngineLoadWire()


class ReportWire(Value, frozen=True, kw_only=True):
    """One router's report. `second`: whole seconds completed since its boot; the last of `arrived` is second `second
    - 1`.
    """

    router: str
    boot: str
    seq: int
    second: int
    version: Literal[1] = 1
    held: dict[str, tuple[int, int]] = {}
    accepting: bool = True
    models: dict[str, ModelLoadWire] = {}
    endpoints: dict[str, EndpointLoadWire] = {}


_REPORT = msgspec.json.Decoder(ReportWire)
_ACK = msgspec.json.Decoder(AckWire)


def parse_report(document: bytes) -> ReportWire:
    """Read one load report. Raises `BadReport` naming the field."""
    try:
        return _REPORT.decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReport(f"load report: {error}") from error


def parse_ack(document: bytes) -> AckWire:
    """Read the answer to a table. Raises `BadReport` naming the field."""
    try:
        return _ACK.decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReport(f"table acknowledgement: {error}") from error


def encode_table(table: TableWire) -> bytes:
    """The document that `PUT /admin/v1/endpoints` takes."""
    return msgspec.json.encode(table)
