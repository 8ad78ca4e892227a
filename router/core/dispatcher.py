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
| `replayed(request)`                 | kept   | send again to the same endpoint on a fresh connection            |
| `left(request)`                     | freed  | ended: the client is gone, wherever the request was              |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

from router.core import admission, health, refusals, retries
from router.core.endpoints import CLIENT_GONE, EJECTED, HALF_OPEN, SERVER_ERROR, SUCCESS, TIMEOUT, Endpoint
from router.core.models import Model
from router.core.refusals import Refusal
from router.core.requests import Request
from router.core.tables import Tables
from router.model import EngineLoad, IntentTable, LoadReport, ModelIntent, TableAck

QUEUED: Final = "queued"
WAKE_EVERY_S = 1.0
"""A model whose queue fills and empties all the time wakes the controller at most this often; it ticks by itself."""

Verdict = Endpoint | Refusal | Literal["queued"]


def _nothing() -> None:
    """Default of the two hooks."""


class Dispatcher:
    """Routing state. `router`, `boot`: names for the load report; `random`: gives [0, 1); `now`: start of this boot.

    For the shell and the admin side: `endpoints` by id, `names` (model names and aliases -> Model), `accepting`
    (False = /ready says 503, requests are still served), `seq` (grows on each wake-worthy event, `on_wake` is then
    called), `on_effects`, `effects` (request -> its refusal, None = send it to its `endpoint`), `refused_by_code`
    (refusals that no model in the tables accounts for: it was never one of them, or was removed).
    """

    def __init__(self, *, router: str, boot: str, random: Callable[[], float], now: float) -> None:
        self.router = router
        self.boot = boot
        self.accepting = True
        self.seq = 0
        self.on_wake: Callable[[], None] = _nothing
        self.on_effects: Callable[[], None] = _nothing
        self.effects: OrderedDict[Request, Refusal | None] = OrderedDict()
        self.refused_by_code: dict[str, int] = {}
        self._random = random
        self._tables = Tables()
        self.endpoints = self._tables.endpoints
        self.names = self._tables.names
        self._only: Model | None = None
        self._boot_at = now
        self._second = 0
        self._second_ends = now + 1.0

    # ---- data path

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
        if not model.queue.count:
            endpoint = model.candidates.pick(self._random)
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
            if not endpoint.plain:
                self._judge(endpoint, request, outcome, now)
        else:
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

    def count_refusal(self, refusal: Refusal) -> Refusal:
        """File a refusal that no model accounts for; the shell's own, before a model is known, are among them."""
        self.refused_by_code[refusal.code] = self.refused_by_code.get(refusal.code, 0) + 1
        return refusal

    # ---- time

    def expired(self, now: float) -> None:
        """Do what is due by `now`: evictions, half-open endpoints, complete seconds. An early call does nothing."""
        if now >= self._second_ends:
            self._roll(now)
        for endpoint in list(self.endpoints.values()):
            if health.resumed(endpoint, now) | health.reopened(endpoint, now):
                self._refresh(endpoint, now)
        for model in self._tables.models.values():
            deadline = model.queue.deadline()
            while deadline is not None and deadline <= now:
                request = model.queue.take(now)
                eta_s, freed_per_s = model.eta_s(now), model.meter.served_per_s()
                refusal = admission.evicted(model.queue, model.name, eta_s, freed_per_s)
                model.meter.refuse(refusal.code)
                self.effects[request] = refusal
                deadline = model.queue.deadline()

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expired` has more to do than to count seconds; None = nothing is due."""
        due = [endpoint.retry_at for endpoint in self.endpoints.values() if endpoint.health == EJECTED]
        due += [endpoint.paused_until for endpoint in self.endpoints.values() if endpoint.paused_until]
        for model in self._tables.models.values():
            deadline = model.queue.deadline()
            if deadline is not None:
                due.append(deadline)
        return min(due, default=None)

    # ---- admin side

    @property
    def has_table(self) -> bool:
        """Was any intent table applied."""
        return bool(self._tables.held)

    def models(self) -> tuple[ModelIntent, ...]:
        """What was told about each model, by name."""
        return tuple(model.intent for _, model in sorted(self._tables.models.items()))

    def model_states(self) -> tuple[Model, ...]:
        """Live state of each model (meters, queue, gauges), by name: for the metrics page; read only."""
        return tuple(model for _, model in sorted(self._tables.models.items()))

    def tables(self) -> dict[str, IntentTable]:
        """The table held of each source, for persisting."""
        return dict(self._tables.held)

    def apply(self, table: IntentTable, now: float) -> TableAck:
        """Apply the whole table of one source; what it omits becomes absent (finishes, then is gone). Same pair, same
        body: nothing.

        Raises `StaleTable` for a lower (epoch, revision), `TableMismatch` for the pair held with another body,
        `BadTable` for a model name or an endpoint id that another source owns.
        """
        if self._tables.apply(table, now):
            for model in self._tables.take_removed():
                self._dismiss(model, now)
            models = self._tables.models
            self._only = next(iter(models.values())) if len(models) == 1 else None
            for model in models.values():
                model.refresh()
                if model.queue.count:
                    self._pump(model, now)
            for endpoint in self.endpoints.values():
                self._tell_drained(endpoint)
            self._after_admin()
        return self.acknowledgement(table.source)

    def acknowledgement(self, source: str) -> TableAck:
        """What is held of a source and the state of its endpoints. Raises `KeyError` for an unknown source."""
        return self._tables.acknowledgement(source)

    def probed(self, endpoint_id: str, ok: bool, now: float) -> None:
        """Result of an active probe. Unknown ids (gone meanwhile) are ignored."""
        endpoint = self.endpoints.get(endpoint_id)
        if endpoint is None:
            return
        before, returns = endpoint.health, ok and endpoint.soft
        if health.probed(endpoint, ok, now):
            self._wake()
        if endpoint.health != before or returns:
            self._refresh(endpoint, now)
            self._after_admin()

    def engine_read(self, endpoint_id: str, load: EngineLoad, now: float) -> None:
        """What an engine reports about itself, read at `now` (minus its own `age_s`). Unknown ids are ignored."""
        endpoint = self.endpoints.get(endpoint_id)
        if endpoint is not None:
            endpoint.engine_load = load
            endpoint.engine_read_at = now - (load.age_s or 0.0)

    def report(self, now: float) -> LoadReport:
        """Wire 1 as of `now`."""
        if now >= self._second_ends:
            self._roll(now)
        return LoadReport(
            router=self.router,
            boot=self.boot,
            seq=self.seq,
            second=self._second,
            held={source: (table.epoch, table.revision) for source, table in self._tables.held.items()},
            accepting=self.accepting,
            models={name: model.load(now) for name, model in self._tables.models.items()},
            endpoints={endpoint.id: endpoint.load(now) for endpoint in self.endpoints.values()},
        )

    # ---- inside

    def _bind(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Give a slot of a routable endpoint to a request."""
        endpoint.in_flight += 1
        request.model.in_flight += 1
        request.endpoint = endpoint
        request.attempts += 1
        request.started_at = now
        if endpoint.health == HALF_OPEN:
            endpoint.probe = request
            request.model.refresh()

    def _again(self, request: Request, model: Model, now: float) -> Verdict:
        """Another attempt: elsewhere at once, or at the head of the queue."""
        model.meter.retries += 1
        other = model.candidates.again(request.tried)
        if other is not None:
            self._bind(request, other, now)
            return other
        model.queue.put_back(request, now)
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
        elif SERVER_ERROR <= outcome < CLIENT_GONE and health.failed(endpoint, outcome, now, few=few(endpoint)):
            self._wake()
        if endpoint.probe is request:  # a probing request that proved nothing: another may try
            endpoint.probe = None
        endpoint.settle()
        self._tables.drop_if_gone(endpoint)
        self._tell_drained(endpoint)
        if (endpoint.routable, endpoint.health) != before:
            request.model.refresh()

    def _refresh(self, endpoint: Endpoint, now: float) -> None:
        """An endpoint's health changed outside of a request."""
        endpoint.settle()
        model = self.names.get(endpoint.model)
        if model is not None:
            model.refresh()
            if model.queue.count:
                self._pump(model, now)

    def _enqueue(self, request: Request, model: Model, now: float) -> Verdict:
        """No slot now: wait, or be told why not."""
        queue = model.queue
        if (
            queue.count and queue.count == queue.retried
        ):  # who waits only keeps away from what failed it: no line to join
            endpoint = model.candidates.pick(self._random)
            if endpoint is not None:
                self._bind(request, endpoint, now)
                return endpoint
        if not model.existing:
            eta_s, timeout_s = model.eta_s(now), queue.bounds.timeout_s
            if eta_s is not None and eta_s > timeout_s:
                self._wake_for(model, now, always=not queue.count)
                model.meter.refuse("no_capacity")
                return admission.none_in_time(model.name, eta_s, timeout_s)
        if not queue.has_room(request.size):
            model.meter.refuse("queue_full")
            return admission.full(queue, request.size, model.meter.served_per_s())
        queue.put(request, now)
        if queue.count == 1:
            self._wake_for(model, now, always=not model.existing)
        return QUEUED

    def _pump(self, model: Model, now: float) -> None:
        """Free slots go to whoever waits longest; one that only an endpoint it tried could take lets others by."""
        queue, passed = model.queue, []
        while (request := queue.head()) is not None:
            candidates = model.candidates
            endpoint = candidates.again(request.tried) if request.tried else candidates.pick(self._random)
            if endpoint is not None:
                queue.take(now)
                self._bind(request, endpoint, now)
                self.effects[request] = None
            elif request.tried:
                passed.append(queue.set_aside())
            else:
                break
        for request in reversed(passed):
            queue.restore(request)

    def _dismiss(self, model: Model, now: float) -> None:
        """Its source removed the model: who waits is refused, who is in flight finishes."""
        while model.queue.head() is not None:
            request = model.queue.take(now)
            model.meter.refuse(refusals.MODEL_REMOVED.code)
            self.effects[request] = self.count_refusal(refusals.MODEL_REMOVED)
        model.refresh()

    def _tell_drained(self, endpoint: Endpoint) -> None:
        if endpoint.drained and not endpoint.drained_told:
            endpoint.drained_told = True
            self._wake()

    def _wake_for(self, model: Model, now: float, *, always: bool) -> None:
        if always or model.waked_at is None or now - model.waked_at >= WAKE_EVERY_S:
            model.waked_at = now
            self._wake()

    def _wake(self) -> None:
        self.seq += 1
        self.on_wake()

    def _after_admin(self) -> None:
        if self.effects:
            self.on_effects()

    def _roll(self, now: float) -> None:
        """File the complete seconds."""
        seconds = int(now - self._boot_at) - self._second
        if seconds > 0:
            for model in self._tables.models.values():
                model.meter.roll(seconds)
            self._second += seconds
        self._second_ends = self._boot_at + self._second + 1
