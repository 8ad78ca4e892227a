"""The metrics page: what the dispatcher and the data plane count, in Prometheus' text form, made when it is asked for.

Nothing is counted here and nothing of this is on the path of a request: the page reads plain ints. Labels take their
values from the intent tables and from small fixed sets, never from clients, so their number is bounded. Absent is not
zero: what an engine does not say has no sample. Durations are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from router.core.dispatcher import Dispatcher
from router.core.endpoints import OUTCOMES, Endpoint
from router.core.meter import Buckets
from router.core.models import Model
from router.core.refusals import MODEL_REMOVED
from router.shell.http import Counters
from router.shell.memory import BodyMemory

PREFIX = "tidegate_router"

COUNTERS = {
    "bad_requests": "Requests refused because they are not valid HTTP or beyond a bound",
    "bugs": "Errors of the router itself; any is worth a report",
    "cut_off": "Clients disconnected inside an answer because it could not be ended well",
    "error_events": "Streams ended by an error event because their engine failed",
    "left": "Clients that left before the end of their answer",
    "local_answers": "Requests that the router answered itself",
    "timeouts": "Attempts ended because a bound on the engine's side passed",
}
"""Counters of the data plane that have no label, and their help text."""

CONNECTIONS = {
    "client_connections": "Client connections accepted",
    "engine_connections": "Connections opened to engines",
}


class Dropping(Protocol):
    """The access log as far as the page sees it."""

    @property
    def dropped(self) -> int: ...


class Counting(Protocol):
    """The data plane as far as the page sees it."""

    @property
    def counters(self) -> Counters: ...
    @property
    def clients(self) -> Sized: ...
    @property
    def memory(self) -> BodyMemory: ...
    @property
    def access_log(self) -> Dropping | None: ...


class MetricsPage(Collector):
    """Collects at each call of `page`; `now` gives the loop's time."""

    def __init__(self, dispatcher: Dispatcher, plane: Counting, now: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._plane = plane
        self._now = now
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def page(self) -> tuple[bytes, str]:
        """The page and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are the same at each collect, and collecting at registration would be too early."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, those without samples too, so that a dashboard finds them."""
        dispatcher, now = self._dispatcher, self._now()
        dispatcher.report(now)  # files the complete seconds, so that the page never lags behind the load report
        yield from self._process()
        yield from _models(dispatcher.model_states(), now)
        yield _refused(dispatcher)
        yield from _endpoints(list(dispatcher.endpoints.values()), now)

    def _process(self) -> Iterator[Metric]:
        dispatcher, counters = self._dispatcher, self._plane.counters
        info = InfoMetricFamily(PREFIX, "This router process")
        info.add_metric([], {"name": dispatcher.router, "boot": dispatcher.boot})
        yield info
        yield GaugeMetricFamily(f"{PREFIX}_accepting", "1 = serving, 0 = draining", value=float(dispatcher.accepting))
        yield CounterMetricFamily(f"{PREFIX}_wakes", "Times the controller was woken", value=dispatcher.seq)
        epochs = GaugeMetricFamily(f"{PREFIX}_table_epoch", "Epoch of the table in force", labels=["source"])
        revisions = GaugeMetricFamily(f"{PREFIX}_table_revision", "Revision of the table in force", labels=["source"])
        for source, table in dispatcher.tables().items():
            epochs.add_metric([source], table.epoch)
            revisions.add_metric([source], table.revision)
        yield from (epochs, revisions)
        for name, text in {**COUNTERS, **CONNECTIONS}.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=getattr(counters, name))
        access_log = self._plane.access_log
        if access_log is not None:
            yield CounterMetricFamily(
                f"{PREFIX}_access_log_dropped",
                "Lines of the access log that were not written",
                value=access_log.dropped,
            )
        yield GaugeMetricFamily(
            f"{PREFIX}_open_client_connections", "Client connections that are open", value=len(self._plane.clients)
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_body_bytes", "Bytes of request bodies that are held", value=self._plane.memory.held
        )


def _refused(dispatcher: Dispatcher) -> Metric:
    """Refusals by model and code. No model = the request named none in the tables, or one that was removed while it
    waited; a removed model is off the page, so those are filed there also when it comes back.
    """
    refused = CounterMetricFamily(
        f"{PREFIX}_requests_refused",
        "Requests refused or evicted, by code; no model: it is not in the tables",
        labels=["model", "code"],
    )
    for code, count in sorted(dispatcher.refused_by_code.items()):
        refused.add_metric(["", code], count)
    for model in dispatcher.model_states():
        for code, count in sorted(model.meter.refused.items()):
            if code != MODEL_REMOVED.code:
                refused.add_metric([model.name, code], count)
    return refused


def _models(models: Iterable[Model], now: float) -> Iterator[Metric]:
    """What was asked of each model, what became of it, and what waits."""
    by_model, by_outcome = ["model"], ["model", "outcome"]
    arrived = CounterMetricFamily(f"{PREFIX}_requests", "Requests that arrived, refused ones too", labels=by_model)
    ended = CounterMetricFamily(f"{PREFIX}_requests_ended", "Requests that ended, by last outcome", labels=by_outcome)
    retries = CounterMetricFamily(f"{PREFIX}_retries", "Attempts after the first", labels=by_model)
    replays = CounterMetricFamily(f"{PREFIX}_replays", "Requests sent again after a keep-alive race", labels=by_model)
    in_flight = GaugeMetricFamily(f"{PREFIX}_requests_in_flight", "Requests at an endpoint", labels=by_model)
    queued = GaugeMetricFamily(f"{PREFIX}_requests_queued", "Requests that wait", labels=by_model)
    queued_bytes = GaugeMetricFamily(f"{PREFIX}_queue_bytes", "Bytes held by waiting requests", labels=by_model)
    oldest = GaugeMetricFamily(f"{PREFIX}_queue_oldest_seconds", "Age of the oldest waiting request", labels=by_model)
    service = SummaryMetricFamily(f"{PREFIX}_service_seconds", "From the pick to the last byte", labels=by_model)
    histograms = {
        "ttft": HistogramMetricFamily(
            f"{PREFIX}_time_to_first_byte_seconds", "From arrival to first byte", labels=by_model
        ),
        "gap": HistogramMetricFamily(
            f"{PREFIX}_inter_token_seconds", "Mean gap of events of a stream", labels=by_model
        ),
        "wait": HistogramMetricFamily(
            f"{PREFIX}_queue_wait_seconds",
            "Time in the queue until an endpoint, a refusal or the client's departure",
            labels=by_model,
        ),
    }
    for model in models:
        meter, label = model.meter, [model.name]
        arrived.add_metric(label, meter.asked_for())
        for outcome, count in zip(OUTCOMES, meter.outcomes, strict=True):
            ended.add_metric([model.name, outcome], count)
        retries.add_metric(label, meter.retries)
        replays.add_metric(label, meter.replays)
        in_flight.add_metric(label, model.in_flight)
        queued.add_metric(label, model.queue.count)
        queued_bytes.add_metric(label, model.queue.bytes)
        oldest.add_metric(label, model.queue.oldest_s(now))
        service.add_metric(label, meter.service_count, meter.service_sum)
        for name, family in histograms.items():
            buckets: Buckets = getattr(meter, name)
            family.add_metric(label, _cumulative(buckets), buckets.sum)
    yield from (arrived, ended, retries, replays, in_flight, queued, queued_bytes, oldest, service)
    yield from histograms.values()


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    """(upper bound, count up to it), the last bound +Inf."""
    report = buckets.report()
    bounds = [*map(str, report.le), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, report.count, strict=True)]


def _endpoints(endpoints: Iterable[Endpoint], now: float) -> Iterator[Metric]:
    """State and load of each endpoint in the tables; one that is gone is off the page."""
    by_endpoint = ["endpoint", "model"]
    gauges = {
        name: GaugeMetricFamily(f"{PREFIX}_endpoint_{name}", text, labels=by_endpoint)
        for name, text in {
            "in_flight": "Requests at the endpoint",
            "limit": "Most requests this router sends to it at once, its share applied",
            "capacity": "Signal units it holds within its objective",
            "routable": "1 = may be given a request, room apart",
            "engine_running": "Requests that the engine runs, by its own word",
            "engine_waiting": "Requests that wait in the engine, by its own word",
            "engine_kv_usage_ratio": "Use of the fullest KV cache, 0 to 1",
            "engine_reading_age_seconds": "Age of what the engine said",
        }.items()
    }
    states = GaugeMetricFamily(
        f"{PREFIX}_endpoint_state", "1 at the intent and health it has", labels=[*by_endpoint, "intent", "health"]
    )
    attempts = CounterMetricFamily(
        f"{PREFIX}_endpoint_attempts", "Attempts by outcome", labels=[*by_endpoint, "outcome"]
    )
    for endpoint in endpoints:
        label = [endpoint.id, endpoint.model]
        engine = endpoint.load(now).engine
        values = {
            "in_flight": endpoint.in_flight,
            "limit": endpoint.limit,
            "capacity": endpoint.capacity,
            "routable": float(endpoint.routable),
            "engine_running": engine.running,
            "engine_waiting": engine.waiting,
            "engine_kv_usage_ratio": engine.kv,
            "engine_reading_age_seconds": engine.age_s,
        }
        for name, value in values.items():
            if value is not None:
                gauges[name].add_metric(label, value)
        states.add_metric([*label, endpoint.intent, endpoint.health], 1.0)
        for outcome, count in endpoint.outcomes.items():
            attempts.add_metric([*label, outcome], count)
    yield from (*gauges.values(), states, attempts)
