"""How requests are queued, picked, retried and bounded: the part of a ScalingPolicy that the controller passes on to
the routers."""

from __future__ import annotations

from typing import Literal

from autoscaler.policy_values import Count, CountFromOne, Flag, Part, Percent, Positive, Seconds, Text


class Queue(Part):
    """Where requests wait for room. Every bound is a hard one: what does not fit is refused with a Retry-After."""

    max_requests: Count = 2000
    """Requests waiting per router; 0 = refuse instead of waiting."""
    max_bytes: Count = 268435456
    """Bytes of waiting bodies per router; default 256 MiB, far above 2,000 ordinary prompts."""
    timeout_seconds: Seconds = 30
    """Longest wait before a 503; about what clients' own timeouts allow."""


class Tenants(Part):
    """Fairness between tenants under saturation."""

    header: Text = "x-tenant-id"
    """Request header that names the tenant."""
    weights: dict[str, Positive] = {}
    """Share of each named tenant relative to the others."""
    default: Positive = 1
    """Share of everybody else."""


class Priorities(Part):
    """Bands served strictly in order."""

    header: Text = "x-priority"
    """Request header that names the band."""
    bands: tuple[Text, ...] = ("system", "interactive", "batch")
    """Highest first."""


class Session(Part):
    """What the policy `session` keeps together."""

    header: Text = "x-session-id"
    """Request header that names the session."""


class Retries(Part):
    """When a request may be tried on another replica."""

    budget_percent: Percent = 20
    """Retries per hundred requests; 0 = never retry. Bounds what a dying fleet can multiply."""
    max_attempts: CountFromOne = 3
    """Attempts in all, the first included; 1 = never retry."""
    idempotent: Flag = False
    """True: a request that was sent may be sent again while no byte has come back. Off, as a generation is costly."""


class Timeouts(Part):
    """Bounds of one attempt, each on its own."""

    connect_seconds: Seconds = 2
    """Until connected."""
    first_byte_seconds: Seconds = 120
    """From sent to the first byte: a long prompt takes that long on a full engine."""
    between_bytes_seconds: Seconds = 60
    """Between two reads of a stream."""
    total_seconds: Seconds = 1800
    """All of it."""
    progress_seconds: Seconds = 20
    """A replica all of whose streams are silent for this long is hung: it gets no new requests until it is heard again.
    Above the longest pause that an engine makes for one prompt."""


class Routing(Part):
    """What the router does with this model's requests."""

    policy: Literal["least-load", "prefix", "session", "round-robin"] = "least-load"
    """How a replica is picked. least-load: by load over capacity; prefix: prompts that begin alike go where the last one
    went, as long as that replica is not much busier than the others; session: the same for a session's requests;
    round-robin: in turns, by capacity."""
    queue: Queue = Queue()
    """Where requests wait."""
    tenants: Tenants | None = None
    """None = all requests are equal."""
    priorities: Priorities | None = None
    """None = one band."""
    session: Session = Session()
    """What the policy `session` keeps together."""
    ramp_seconds: Count = 5
    """A replica that begins to serve is given its full share over this long; 0 = at once."""
    retries: Retries = Retries()
    """When to try again."""
    timeouts: Timeouts = Timeouts()
    """When to give up."""
