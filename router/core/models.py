"""One model as the router serves it: what was told about it, its endpoints, its queue, its meter and its retry
budget.

Plain mutable state that the dispatcher owns; requests hold a reference, so a model that its source removes lives
until they end.

An ejection for server errors alone holds only while enough endpoints are ready: engines answer malformed requests
with 500 too (Triton does), so one client can make every endpoint look ill, and a pool that is ejected whole serves
nobody. `few_ready` is that condition, asked before such an ejection (`core/health.py`) and at each `refresh`, which
takes those back that it no longer allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router.core import health, limits
from router.core.admission import Order, Queue
from router.core.endpoints import EJECTED, READY, Endpoint
from router.core.meter import Meter
from router.core.picking import LEAST_LOAD, POLICIES, Candidates
from router.core.requests import Request
from router.core.retries import RetryBudget
from router.model import ModelIntent, ModelLoad, Timeouts

READY_SHARE_KEPT: Final = 0.5
"""Server errors alone never leave a smaller share of a model's endpoints ready. Of those that are active and started."""


class Model:
    """State of one model. `in_flight` counts slots held on all its endpoints; `existing` its active endpoints that do
    not start any more; `pick`: the policy's choice for a request that failed nowhere yet; `order`: None = all requests are
    equal; `ramping`: some endpoint's weight still grows.
    """

    __slots__ = (
        "budget",
        "candidates",
        "endpoints",
        "existing",
        "in_flight",
        "intent",
        "meter",
        "name",
        "order",
        "pick",
        "queue",
        "ramping",
        "source",
        "supply_at",
        "timeouts",
        "waked_at",
    )

    def __init__(self, intent: ModelIntent, source: str, random: Callable[[], float], now: float) -> None:
        self.name = intent.name
        self.endpoints: dict[Endpoint, None] = {}
        self.in_flight = 0
        self.candidates = Candidates(random, self)
        self.pick: Callable[[Request], Endpoint | None] = self.candidates.two
        self.existing = 0
        self.ramping = False
        self.meter = Meter()
        self.budget = RetryBudget()
        self.queue = Queue(intent.routing.queue, self.meter.wait)
        self.waked_at: float | None = None
        self.tell(intent, source, now)

    def tell(self, intent: ModelIntent, source: str, now: float) -> None:
        """Take over what the source says at `now`."""
        self.intent = intent
        self.source = source
        routing = intent.routing
        order = Order(routing)
        self.order = order if routing.tenants or routing.priorities else None
        self.queue.tell(routing.queue, order.bands)
        self.candidates.session = routing.session.header.lower()
        self.timeouts: Timeouts = routing.timeouts
        self.supply_at = now

    def refresh(self, now: float) -> None:
        """Rebuild what the pick reads, after an endpoint came, went or changed its state; take those back that may no
        longer be left out.
        """
        if any(endpoint.soft for endpoint in self.endpoints) and self.few_ready():
            for endpoint in self.endpoints:
                health.pardon(endpoint)
        for endpoint in self.endpoints:
            serving = endpoint.exists and endpoint.health == READY
            if serving and not endpoint.serving:
                endpoint.serving_since = now
            endpoint.serving = serving
        self._ramp(now)
        self.candidates.rebuild(self.endpoints)
        self.existing = sum(endpoint.exists for endpoint in self.endpoints)
        steps = POLICIES[self.intent.routing.policy]
        plain = steps is LEAST_LOAD and self.candidates.sized is None
        self.pick = self.candidates.two if plain else self._by_policy

    def ramp(self, now: float) -> None:
        """Time passed: weights grow."""
        self._ramp(now)
        self.candidates.weigh()

    def _ramp(self, now: float) -> None:
        ramp_s = self.intent.routing.ramp_s
        growing = [endpoint for endpoint in self.endpoints if limits.ramped(endpoint, now, ramp_s)]
        self.ramping = bool(growing)

    def _by_policy(self, request: Request) -> Endpoint | None:
        return self.candidates.by(request, POLICIES[self.intent.routing.policy])

    def most_spared(self) -> bool:
        """Would less than half of the endpoints that are to serve go on, if one more paused."""
        paused = sum(bool(endpoint.paused_until) for endpoint in self.endpoints if endpoint.exists)
        return (paused + 1) * 2 > self.existing

    def shortage(self) -> str:
        """Why a request got no endpoint, in words."""
        existing = [endpoint for endpoint in self.endpoints if endpoint.exists]
        ejected = sum(endpoint.health == EJECTED for endpoint in existing)
        if not existing:
            return f"no replica of {self.name!r} was there"
        if ejected == len(existing):
            return f"no replica of {self.name!r} could be reached ({ejected} ejected)"
        return f"no replica of {self.name!r} had room"

    def few_ready(self, without: Endpoint | None = None) -> bool:
        """Are fewer than `READY_SHARE_KEPT` of the endpoints that are to serve ready, not counting `without` as such."""
        existing = [endpoint for endpoint in self.endpoints if endpoint.exists]
        ready = sum(endpoint.health == READY for endpoint in existing if endpoint is not without)
        return ready < READY_SHARE_KEPT * len(existing)

    def eta_s(self, now: float) -> float | None:
        """Seconds until the next replica is ready, as told and aged since; None when none was announced."""
        eta_s = self.intent.supply.eta_s
        return None if eta_s is None else max(0.0, eta_s - (now - self.supply_at))

    def load(self, now: float) -> ModelLoad:
        """This model's part of wire 1. The meter must have been rolled to `now`."""
        meter, queue = self.meter, self.queue
        return ModelLoad(
            arrived=tuple(meter.arrived),
            tokens_in=tuple(meter.tokens_in),
            tokens_out=tuple(meter.tokens_out),
            shed=tuple(meter.shed),
            in_flight=self.in_flight,
            queued=queue.count,
            queued_tokens=queue.tokens,
            oldest_s=round(queue.oldest_s(now), 3),
            held_from_zero=0 if self.existing else queue.count,
            service_s=meter.service(),
            ttft_s=meter.ttft.report(),
            itl_s=meter.gap.report(),
        )
