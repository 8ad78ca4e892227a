"""All mutable routing state of one router: events in, effects out, one synchronous owner.

An event is a method call that carries `now`; the core reads no clock. What an event causes to *other* requests than
its own is an effect: a request that waited got an endpoint and is to be sent to it, or will not be served and is to be
refused. `effects` holds them in order, and the shell takes them one by one after each event of its own; events of the
admin side (`apply`, `probed`) call `on_effects` when they leave some, and what happens before the shell's turn counts:
a request whose client leaves meanwhile is no effect any more. Two rules hold after every event: a request is sent only
to a routable endpoint below its limit, and a queue is not empty while a routable endpoint has room.

One request: `arrived` -> (Endpoint | QUEUED | Refusal); then `finished`, `failed` or `left` exactly once per attempt.

| event                               | slot   | then                                                            |
|-------------------------------------|--------|-----------------------------------------------------------------|
| `finished(request, outcome)`        | freed  | ended: the answer reached its end, or broke after its first byte |
| `failed(request, outcome, sent)`    | freed  | Endpoint (send again there), QUEUED, or a Refusal                |
| `full(request, status, retry_after)` | freed  | the same; or None: the slot is kept, pass the engine's answer on  |
| `replayed(request)`                 | kept   | send again to the same endpoint on a fresh connection            |
| `left(request)`                     | freed  | ended: the client is gone, wherever the request was              |
"""

from __future__ import annotations

from typing import Final, Literal

from router.core import admission, health, limits, refusals, retries
from router.core.endpoints import CLIENT_GONE, SATURATED, SERVER_ERROR, SUCCESS, TIMEOUT, Endpoint
from router.core.models import Model
from router.core.refusals import Refusal
from router.core.requests import Request
from router.core.upkeep import Upkeep

QUEUED: Final = "queued"
PUSHED_MAX: Final = 8
"""Waiting requests that one with a better claim may push out of a full queue, for it may hold more bytes than they."""

Verdict = Endpoint | Refusal | Literal["queued"]


class Dispatcher(Upkeep):
    """Routing state. `router`, `boot`: names for the load report; `random`: gives [0, 1); `now`: start of this boot.

    For the shell and the admin side: `endpoints` by id, `names` (model names and aliases -> Model), `accepting`
    (False = /ready says 503, requests are still served), `seq` (grows on each wake-worthy event, `on_wake` is then
    called), `on_effects`, `effects` (request -> its refusal, None = send it to its `endpoint`), `refused_by_code`
    (refusals that no model in the tables accounts for: it was never one of them, or was removed).
    """

    def arrived(self, request: Request, now: float) -> Verdict:
        """A whole request is here: an Endpoint = send it there; QUEUED = it comes back as an effect; or a Refusal."""
        if now >= self._second_ends:
            self._roll(now)
        asked = request.asked
        model = self._only if asked is None else self.names.get(asked)
        request.arrived_at = now
        if model is None:
            return self.count_refusal(refusals.no_model(asked, sorted(self._tables.models)))
        request.model = model
        meter = model.meter
        meter.arrived_now += 1
        meter.tokens_in_now += request.tokens_in
        if model.order is not None:
            model.order.classify(request)
        if not model.queue.count:
            endpoint = model.pick(request)
            if endpoint is not None:
                self._bind(request, endpoint, now)
                return endpoint
        return self._enqueue(request, model, now)

    def finished(self, request: Request, outcome: int, now: float) -> None:
        """The attempt ended with an outcome that no retry follows; frees its slot, which may start whoever waits."""
        if now >= self._second_ends:
            self._roll(now)
        endpoint = request.endpoint
        assert endpoint is not None, "finished twice"
        model = request.model
        meter = model.meter
        request.endpoint = None
        endpoint.in_flight -= 1
        endpoint.counts[outcome] += 1
        model.in_flight -= 1
        meter.outcomes[outcome] += 1
        meter.served_now += 1
        if outcome == SUCCESS:
            meter.service_count += 1
            meter.service_sum += now - request.started_at
            endpoint.heard_at = now
            if endpoint.plain:
                if model.queue.count:
                    self._pump(model, now, endpoint)
                return
        self._judge(endpoint, request, outcome, now)
        if model.queue.count:
            self._pump(model, now)

    def failed(self, request: Request, outcome: int, now: float, *, sent: bool) -> Verdict:
        """The attempt ended without a byte of an answer; `sent`: the request had left. Frees the slot; maybe again."""
        if now >= self._second_ends:
            self._roll(now)
        endpoint = request.endpoint
        assert endpoint is not None, "failed twice"
        model = request.model
        self._release(request, endpoint, outcome, now)
        request.tried = (*request.tried, endpoint)
        rules = model.intent.routing.retries
        again = retries.may_retry(rules, request.attempts, sent, late=outcome == TIMEOUT)
        if again and sent:
            again = model.budget.spend(model.meter.asked_for(), rules.budget_percent)
        if again and self.names.get(model.name) is model:
            verdict = self._again(request, model, now)
        else:
            model.meter.outcomes[outcome] += 1
            verdict = refusals.TIMED_OUT if outcome == TIMEOUT else refusals.CUT if sent else refusals.UNREACHABLE
        if model.queue.count:
            self._pump(model, now)
        return verdict

    def full(self, request: Request, status: int, retry_after_s: float | None, now: float) -> Verdict | None:
        """The engine answered 429 or 503: it did not take the request. None = the answer is to be passed on, the slot is
        kept until `finished`; otherwise as `failed`. Either way the endpoint is spared for a while, unless another one refused
        this request before.
        """
        endpoint = request.endpoint
        assert endpoint is not None, "full without an endpoint"
        model = request.model
        if all(each is endpoint for each in request.tried):  # else it was refused elsewhere too: it may be the request
            limits.refused(endpoint, status, now)
            paused = endpoint.paused_until > 0  # then who is picked from stays the same
            health.full(endpoint, status, retry_after_s, now, most=paused or model.most_spared())
            if not paused:
                model.refresh(now)
                if model.queue.count:
                    self._pump(model, now)
        rules = model.intent.routing.retries
        again = (
            retries.may_retry(rules, request.attempts, sent=False, late=False) and self.names.get(model.name) is model
        )
        if not again or not model.budget.spend(model.meter.asked_for(), rules.budget_percent):
            return None
        self._release(request, endpoint, SATURATED, now)
        request.tried = (*request.tried, endpoint)
        verdict = self._again(request, model, now)
        if model.queue.count:
            self._pump(model, now)
        return verdict

    def replayed(self, request: Request) -> None:
        """The keep-alive race: the same endpoint again, the slot stays held; the attempt gets the next number."""
        request.attempts += 1
        request.model.meter.replays += 1

    def left(self, request: Request, now: float) -> None:
        """The client is gone: out of the queue or the effects, its slot freed. Nothing for a request that has ended."""
        self.effects.pop(request, None)
        if request.endpoint is not None:
            self.finished(request, CLIENT_GONE, now)
        elif request.queued:
            request.model.queue.discard(request, now)
            request.model.meter.outcomes[CLIENT_GONE] += 1
            self._let_pass(request.model, now)

    # ---- inside

    def _again(self, request: Request, model: Model, now: float) -> Verdict:
        """Another attempt: elsewhere at once, or at the head of the queue."""
        model.meter.retries += 1
        other = model.candidates.again(request)
        if other is not None:
            self._bind(request, other, now)
            return other
        model.queue.put_ahead(request, now)
        if model.queue.count == 1:
            self._wake_for(model, now, always=not model.existing)
        return QUEUED

    def _release(self, request: Request, endpoint: Endpoint, outcome: int, now: float) -> None:
        """Take the slot back after an attempt that may be followed by another."""
        request.endpoint = None
        endpoint.in_flight -= 1
        endpoint.counts[outcome] += 1
        request.model.in_flight -= 1
        request.model.meter.served_now += 1
        self._judge(endpoint, request, outcome, now)

    def _judge(self, endpoint: Endpoint, request: Request, outcome: int, now: float) -> None:
        """What an outcome says about its endpoint; and the end of a drain or of an absent endpoint."""
        before = endpoint.routable, endpoint.health
        few = request.model.few_ready
        if outcome == SUCCESS:
            health.succeeded(endpoint)
        elif SERVER_ERROR <= outcome < CLIENT_GONE and health.failed(
            endpoint, outcome, request.started_at, now, few=few(endpoint)
        ):
            self._wake()
        if outcome <= SERVER_ERROR:
            endpoint.heard_at = now
        if endpoint.probe is request:  # a probing request that proved nothing: another may try
            endpoint.probe = None
        endpoint.settle()
        self._tables.drop_if_gone(endpoint)
        self._tell_drained(endpoint)
        if (endpoint.routable, endpoint.health) != before:
            request.model.refresh(now)

    def _enqueue(self, request: Request, model: Model, now: float) -> Verdict:
        """No slot now: wait, or be told why not."""
        queue = model.queue
        if queue.count and queue.count == len(queue.ahead):  # who waits wants a certain endpoint: no line to join
            endpoint = model.pick(request)
            if endpoint is not None:
                self._bind(request, endpoint, now)
                return endpoint
        if not model.existing:
            eta_s, timeout_s = model.eta_s(now), queue.bounds.timeout_s
            if request.patience_s is not None:
                timeout_s = min(timeout_s, request.patience_s)
            if eta_s is not None and eta_s > timeout_s:
                self._wake_for(model, now, always=not queue.count)
                model.meter.refuse("no_capacity")
                return admission.none_in_time(model.name, eta_s, timeout_s)
        if model.order is None:
            request.band, request.tenant_name, request.tenant_weight = 0, "", 1.0
        if not queue.has_room(request.size) and not self._make_room(request, model, now):
            model.meter.refuse("queue_full")
            return admission.full(queue, request.size, model.meter.served_per_s())
        queue.put(request, now)
        if queue.count == 1:
            self._wake_for(model, now, always=not model.existing)
        self._let_pass(model, now)
        return QUEUED

    def _make_room(self, request: Request, model: Model, now: float) -> bool:
        """In a full queue, refuse those whose claim to a place is worse. True when this one fits then."""
        queue = model.queue
        if model.order is None or not queue.bounds.max_requests or request.size > queue.bounds.max_bytes:
            return False
        out = queue.push_out(request, PUSHED_MAX)
        for each in out:
            queue.discard(each, now)
            model.meter.refuse("pushed_out")
            self.effects[each] = admission.pushed_out(queue, model.meter.served_per_s())
        return bool(out)
