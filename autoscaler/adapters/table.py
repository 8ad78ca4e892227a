"""Policies and replicas -> the intent table that a router takes (wire 2). Pure.

A replica appears once its URL is known: while it loads it is listed as starting (supply, never routed), then as
active, standby or draining; one that is being stopped, or is gone, is left out, which tells the router to finish what
it has there and forget it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from autoscaler.model import LOADING, Now, Replica, ReplicaState, StartTime
from autoscaler.policy import ScalingPolicy, Variant
from autoscaler.policy_routing import Routing
from autoscaler.wires import (
    EndpointWire,
    ModelWire,
    PrioritiesWire,
    QueueWire,
    RetriesWire,
    RoutingWire,
    SessionWire,
    SloWire,
    SupplyWire,
    TableWire,
    TenantsWire,
    TimeoutsWire,
)

StartTimes = Callable[[ScalingPolicy, str], StartTime]
"""The start time known for one variant of a policy."""

SOONEST_S = 1.0
"""The least that is told to clients of a replica that is due: not 0, which would say "now"."""


def table(
    source: str,
    policies: Sequence[ScalingPolicy],
    replicas: Mapping[str, Sequence[Replica]],
    start_times: StartTimes,
    now: Now,
) -> TableWire:
    """The whole table of all policies, at epoch 0 and revision 0 and with the whole share; `replicas` by policy key."""
    return TableWire(
        source=source,
        epoch=0,
        revision=0,
        models=tuple(model(policy, replicas.get(policy.key, ()), start_times, now) for policy in policies),
        endpoints=tuple(
            endpoint(policy, replica)
            for policy in policies
            for replica in replicas.get(policy.key, ())
            if listed(replica)
        ),
    )


def listed(replica: Replica) -> bool:
    """Whether the router is told of it."""
    states = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)
    return replica.url is not None and not replica.failed and replica.state in states


def intent(replica: Replica) -> Literal["active", "standby", "draining"]:
    """What the router is to do with it."""
    if replica.state is ReplicaState.DRAINING:
        return "draining"
    return "standby" if replica.standby else "active"


def endpoint(policy: ScalingPolicy, replica: Replica) -> EndpointWire:
    """One row. A router sends at most `floor(capacity)` requests at once (concurrency), so that no work queues out of
    sight in the engine; for rates the capacity says nothing about slots, so the limit is what it would hold at the
    policy's service time.
    """
    variant = variant_of(policy, replica.variant)
    return EndpointWire(
        id=replica.id,
        url=replica.url or "",
        model=policy.spec.model,
        version=replica.version,
        variant=replica.variant,
        engine=variant.engine,
        capacity=variant.capacity,
        limit=limit(policy, variant),
        intent=intent(replica),
        starting=replica.ready_s is None,
        max_input_tokens=variant.max_input_tokens,
        served_model=variant.served_model,
    )


def limit(policy: ScalingPolicy, variant: Variant) -> int:
    """Most requests in flight at one replica, over all routers."""
    signal = policy.spec.signal
    slots = variant.capacity * signal.service_seconds if signal.type == "requestRate" else variant.capacity
    return max(1, math.floor(slots))


def model(policy: ScalingPolicy, replicas: Sequence[Replica], start_times: StartTimes, now: Now) -> ModelWire:
    """One policy's model, its routing in seconds, and when the next replica is due."""
    spec = policy.spec
    routing = spec.routing
    return ModelWire(
        name=spec.model,
        aliases=tuple(spec.aliases),
        slo=SloWire(queue_s=spec.slo.queue_seconds, ttft_s=spec.slo.ttft_seconds),
        routing=RoutingWire(
            policy=routing.policy,
            queue=QueueWire(
                max_requests=routing.queue.max_requests,
                max_bytes=routing.queue.max_bytes,
                timeout_s=routing.queue.timeout_seconds,
            ),
            retries=RetriesWire(
                budget_percent=routing.retries.budget_percent,
                max_attempts=routing.retries.max_attempts,
                idempotent=routing.retries.idempotent,
            ),
            timeouts=TimeoutsWire(
                connect_s=routing.timeouts.connect_seconds,
                first_byte_s=routing.timeouts.first_byte_seconds,
                between_bytes_s=routing.timeouts.between_bytes_seconds,
                total_s=routing.timeouts.total_seconds,
                progress_s=routing.timeouts.progress_seconds,
            ),
            tenants=tenants(routing),
            priorities=priorities(routing),
            session=SessionWire(header=routing.session.header),
            ramp_s=float(routing.ramp_seconds),
        ),
        supply=SupplyWire(eta_s=next_eta(policy, replicas, start_times, now)),
    )


def tenants(routing: Routing) -> TenantsWire | None:
    """Fairness between tenants, None = all requests are equal."""
    told = routing.tenants
    return None if told is None else TenantsWire(header=told.header, weights=dict(told.weights), default=told.default)


def priorities(routing: Routing) -> PrioritiesWire | None:
    """The bands, None = one."""
    told = routing.priorities
    return None if told is None else PrioritiesWire(header=told.header, bands=tuple(told.bands))


def next_eta(policy: ScalingPolicy, replicas: Sequence[Replica], start_times: StartTimes, now: Now) -> float | None:
    """Seconds until the first of the loading replicas is due, rounded up (it becomes Retry-After); None when none is on
    its way that can be counted on: a client is not told to come back for one that is overdue.
    """
    etas = [
        start_times(policy, replica.variant).eta_s(now.monotonic_s - replica.started_s)
        for replica in replicas
        if replica.state in LOADING and not replica.failed and not replica.overdue
    ]
    due = [eta_s for eta_s in etas if eta_s is not None]
    return max(SOONEST_S, float(math.ceil(min(due)))) if due else None


def variant_of(policy: ScalingPolicy, name: str) -> Variant:
    """The variant of that name. Raises `StopIteration` for an unknown one, which is a bug of the caller."""
    return next(variant for variant in policy.spec.variants if variant.name == name)
