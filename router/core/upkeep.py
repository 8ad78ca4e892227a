"""What happens to the routing state apart from requests: tables, probes, readings, silence, and time passing.

The lower half of the dispatcher, in a file of its own: it holds the state, and starts or refuses whoever waits when one
of these changes it (`_pump`). Each event takes `now`; what it causes is left in `effects`, and `on_effects` is called.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from router.core import admission, health, limits, refusals
from router.core.endpoints import EJECTED, HALF_OPEN, Endpoint
from router.core.models import Model
from router.core.refusals import Refusal
from router.core.requests import Request
from router.core.tables import Tables
from router.model import EngineLoad, IntentTable, LoadReport, ModelIntent, TableAck

WAKE_EVERY_S: Final = 1.0
"""A model whose queue fills and empties all the time wakes the controller at most this often; it ticks by itself."""

AHEAD_MAX: Final = 64
"""Requests whose turn has come and that wait for a certain endpoint; beyond, nobody else passes them."""


def _nothing() -> None:
    """Default of the two hooks."""


class Upkeep:
    """Routing state and what keeps it true. See `Dispatcher`, which adds the events of requests."""

    def __init__(self, *, router: str, boot: str, random: Callable[[], float], now: float) -> None:
        self.router = router
        self.boot = boot
        self.accepting = True
        self.seq = 0
        self.on_wake: Callable[[], None] = _nothing
        self.on_effects: Callable[[], None] = _nothing
        self.effects: OrderedDict[Request, Refusal | None] = OrderedDict()
        self.refused_by_code: dict[str, int] = {}
        self._tables = Tables(random)
        self.endpoints = self._tables.endpoints
        self.names = self._tables.names
        self._only: Model | None = None
        self._boot_at = now
        self._second = 0
        self._second_ends = now + 1.0

    # ---- time

    def expired(self, now: float) -> None:
        """Do what is due by `now`: evictions, half-open endpoints, ramps, complete seconds. An early call does nothing."""
        if now >= self._second_ends:
            self._roll(now)
        back: set[str] = set()
        for endpoint in self.endpoints.values():
            if health.resumed(endpoint, now) | health.reopened(endpoint, now):
                endpoint.settle()
                back.add(endpoint.model)
        for name in sorted(back):  # each once: a pool that was full as a whole comes back as a whole
            self._refresh(name, now)
        for model in self._tables.models.values():
            if model.ramping:
                model.ramp(now)
            while (request := model.queue.overdue(now)) is not None:
                eta_s, freed_per_s = model.eta_s(now), model.meter.served_per_s()
                waited_s = now - request.arrived_at
                refusal = admission.evicted(model.queue, model.shortage(), waited_s, eta_s, freed_per_s)
                model.meter.refuse(refusal.code)
                self.effects[request] = refusal
                self._let_pass(model, now)

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expired` has more to do than to count seconds and ramp up; None = nothing is
        due.
        """
        due = [endpoint.retry_at for endpoint in self.endpoints.values() if endpoint.health == EJECTED]
        due += [endpoint.paused_until for endpoint in self.endpoints.values() if endpoint.paused_until]
        for model in self._tables.models.values():
            deadline = model.queue.deadline()
            if deadline is not None:
                due.append(deadline)
        return min(due, default=None)

    # ---- tables and reports

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
                model.refresh(now)
                if model.queue.count:
                    self._pump(model, now)
            for endpoint in self.endpoints.values():
                self._tell_drained(endpoint)
            self._after_admin()
        return self.acknowledgement(table.source)

    def acknowledgement(self, source: str) -> TableAck:
        """What is held of a source and the state of its endpoints. Raises `KeyError` for an unknown source."""
        return self._tables.acknowledgement(source)

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

    # ---- what is found out about endpoints

    def probed(self, endpoint_id: str, ok: bool, now: float) -> None:
        """Result of an active probe. Unknown ids (gone meanwhile) are ignored."""
        endpoint = self.endpoints.get(endpoint_id)
        if endpoint is None:
            return
        before, returns = endpoint.health, ok and endpoint.soft
        if health.probed(endpoint, ok, now):
            self._wake()
        if endpoint.health != before or returns:
            endpoint.settle()
            self._refresh(endpoint.model, now)
            self._after_admin()

    def engine_read(self, endpoint_id: str, load: EngineLoad, now: float) -> None:
        """What an engine reports about itself, read at `now` (minus its own `age_s`). Unknown ids are ignored."""
        endpoint = self.endpoints.get(endpoint_id)
        if endpoint is not None:
            limits.read(endpoint, load, now - (load.age_s or 0.0), now)

    def first_event(self, endpoint: Endpoint, request: Request, now: float) -> None:
        """A stream begins to answer: how late that is says something about the endpoint."""
        request.model.meter.streams_now += 1
        limits.first_event(endpoint, now - request.started_at, now)
        if endpoint.probe is request and endpoint.health == HALF_OPEN:  # others need not wait for its end
            health.succeeded(endpoint)
            endpoint.settle()
            self._refresh(endpoint.model, now)
            self._after_admin()

    def streaming(self, endpoint: Endpoint, heard_at: float, now: float) -> None:
        """An endpoint has event streams under way whose clients read; the newest byte of any came at `heard_at`."""
        if health.heard(endpoint, heard_at):
            endpoint.settle()
            self._refresh(endpoint.model, now)
            self._after_admin()
            return
        model = self.names.get(endpoint.model)
        if model is not None and health.silent(endpoint, now, model.timeouts.progress_s):
            self._wake()
            endpoint.settle()
            self._refresh(endpoint.model, now)
            self._after_admin()

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
            request.model.refresh(now)

    def _refresh(self, name: str, now: float) -> None:
        """The health of a model's endpoints changed outside of a request."""
        model = self.names.get(name)
        if model is not None:
            model.refresh(now)
            if model.queue.count:
                self._pump(model, now)

    def _pump(self, model: Model, now: float, freed: Endpoint | None = None) -> None:
        """Free slots go to whose turn it is. `freed`: the one endpoint that may have got room. Those who wait were asked
        about all others before, so whatever the policy it is this one or none, and nobody looks for it among 1,000.
        """
        queue = model.queue
        if freed is not None and (not freed.routable or len(queue.ahead) >= AHEAD_MAX):
            freed = None
        if queue.ahead:
            self._serve_ahead(model, now, freed)
        self._serve_line(model, now, freed)

    def _serve_ahead(self, model: Model, now: float, freed: Endpoint | None) -> None:
        """Slots for those whose turn had come before. 1 us for each of them with `freed`."""
        queue, candidates = model.queue, model.candidates
        for request in list(queue.ahead):
            if freed is None:
                endpoint = candidates.again(request)
                if endpoint is None and candidates.least() is None:
                    return
            elif freed.in_flight >= freed.limit:
                return
            elif not candidates.fits(request)(freed):
                continue
            else:
                endpoint = candidates.again(request) if freed in request.tried else freed
            if endpoint is not None:
                queue.discard(request, now)
                self._start(request, endpoint, now)

    def _serve_line(self, model: Model, now: float, freed: Endpoint | None) -> None:
        """Slots for all others, in turn; who is too long for those that have room steps ahead, and others pass."""
        queue, candidates = model.queue, model.candidates
        while (head := queue.head()) is not None:
            if freed is None:
                endpoint = model.pick(head)
            elif freed.in_flight >= freed.limit:
                return
            else:
                endpoint = freed if candidates.fits(head)(freed) else None
            if endpoint is not None:
                queue.take(head, model.meter.mean_output, now)
                self._start(head, endpoint, now)
            elif candidates.sized is not None and len(queue.ahead) < AHEAD_MAX and candidates.least() is not None:
                queue.step_ahead(head, model.meter.mean_output)
            else:
                return

    def _let_pass(self, model: Model, now: float) -> None:
        """Somebody came into the line or left it: another may be first, and too long for those that have room, or not."""
        queue = model.queue
        ahead = len(queue.ahead)
        if model.candidates.sized is not None and (queue.count - ahead == 1 or ahead >= AHEAD_MAX - 1):
            self._serve_line(model, now, None)

    def _start(self, request: Request, endpoint: Endpoint, now: float) -> None:
        self._bind(request, endpoint, now)
        self.effects[request] = None

    def _dismiss(self, model: Model, now: float) -> None:
        """Its source removed the model: who waits is refused, who is in flight finishes."""
        while (request := model.queue.take_any(now)) is not None:
            model.meter.refuse(refusals.MODEL_REMOVED.code)
            self.effects[request] = self.count_refusal(refusals.MODEL_REMOVED)
        model.refresh(now)

    def count_refusal(self, refusal: Refusal) -> Refusal:
        """File a refusal that no model accounts for; the shell's own, before a model is known, are among them."""
        self.refused_by_code[refusal.code] = self.refused_by_code.get(refusal.code, 0) + 1
        return refusal

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
        """File the complete seconds, and give limits back."""
        seconds = int(now - self._boot_at) - self._second
        if seconds > 0:
            for model in self._tables.models.values():
                model.meter.roll(seconds)
            self._second += seconds
            for endpoint in self.endpoints.values():
                if endpoint.squeeze < 1 and limits.recovered(endpoint, now):
                    model_of = self.names.get(endpoint.model)
                    if model_of is not None and model_of.queue.count:
                        self._pump(model_of, now, endpoint)
        self._second_ends = self._boot_at + self._second + 1
