"""The metrics page as Prometheus reads it: names with units, help and type, bounded labels, no invented zeros."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from router.core.dispatcher import Dispatcher
from router.core.endpoints import CUT, OUTCOMES, SUCCESS, Endpoint
from router.core.requests import Request
from router.model import EndpointIntent, EngineLoad, IntentTable, ModelIntent, QueueBounds, Routing
from router.shell.access_log import AccessLog
from router.shell.http import Counters
from router.shell.memory import BodyMemory
from router.shell.metrics import COUNTERS, PREFIX, MetricsPage
from tests.router.wire import Site, json_answer, on_uvloop, post


@dataclass
class Plane:
    """A data plane that only counts."""

    counters: Counters = field(default_factory=Counters)
    clients: set[int] = field(default_factory=set)
    memory: BodyMemory = field(default_factory=lambda: BodyMemory(1 << 20))
    access_log: AccessLog | None = None


def dispatcher() -> Dispatcher:
    """One model, two endpoints of one slot each, room for one waiting request; both endpoints ready."""
    holder = Dispatcher(router="r", boot="b", random=lambda: 0.25, now=0.0)
    queue = QueueBounds(max_requests=1, timeout_s=30.0)
    holder.apply(
        IntentTable(
            source="s",
            epoch=2,
            revision=9,
            models=(ModelIntent(name='m"1\\\n', aliases=("alias",), routing=Routing(queue=queue)),),
            endpoints=tuple(
                EndpointIntent(id=f"e{n}", url=f"http://127.0.0.1:{n}", model="alias", capacity=2.0) for n in (1, 2)
            ),
        ),
        0.0,
    )
    for id_ in ("e1", "e2"):
        holder.probed(id_, True, 0.0)
    return holder


def request(asked: str = "alias") -> Request:
    made = Request()
    made.asked, made.tokens_in, made.tokens, made.size = asked, 10, 20, 40
    return made


def families(holder: Dispatcher, plane: Plane | None = None, now: float = 10.0) -> dict[str, Metric]:
    page, content_type = MetricsPage(holder, plane or Plane(), lambda: now).page()
    assert content_type.startswith("text/plain; version=")
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(page.decode()):
        assert family.name not in found, f"{family.name} twice"
        assert family.documentation, f"{family.name} has no help"
        assert family.type != "unknown", f"{family.name} has no type"
        found[family.name] = family
    return found


def values(family: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in family.samples}


def test_every_name_has_our_prefix_a_unit_and_only_known_labels() -> None:
    known = {"model", "endpoint", "outcome", "code", "source", "intent", "health", "le", "name", "boot"}
    ours = [family for name, family in families(dispatcher()).items() if not name.startswith("process_")]
    assert len(ours) > 25
    for family in ours:
        assert re.fullmatch(rf"{PREFIX}(_[a-z]+)*", family.name), family.name
        assert not re.search(r"_(s|ms|secs|count)$", family.name), family.name
        if family.type in ("histogram", "summary"):
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            assert set(sample.labels) <= known, sample


def test_what_was_asked_and_what_became_of_it() -> None:
    holder = dispatcher()
    served, cut, queued, refused, unknown = (request() for _ in range(5))
    assert isinstance(holder.arrived(served, 1.0), Endpoint)
    assert isinstance(holder.arrived(cut, 1.0), Endpoint)
    assert holder.arrived(queued, 2.0) == "queued"
    holder.arrived(refused, 2.0)
    unknown.asked = "a name that a client made up"
    holder.arrived(unknown, 2.0)
    first = cut.endpoint
    assert first is not None
    found = families(holder)
    model = 'm"1\\\n'
    assert values(found[f"{PREFIX}_requests"], "model") == {(model,): 4.0}
    assert values(found[f"{PREFIX}_requests_refused"], "model", "code") == {
        (model, "queue_full"): 1.0,
        ("", "model_not_found"): 1.0,
    }
    assert values(found[f"{PREFIX}_requests_in_flight"], "model") == {(model,): 2.0}
    assert values(found[f"{PREFIX}_requests_queued"], "model") == {(model,): 1.0}
    assert values(found[f"{PREFIX}_queue_oldest_seconds"], "model") == {(model,): 8.0}
    holder.left(queued, 3.0)
    holder.finished(served, SUCCESS, 4.0)
    holder.finished(cut, CUT, 4.0)
    found = families(holder)
    ended = values(found[f"{PREFIX}_requests_ended"], "model", "outcome")
    assert {outcome: count for (_, outcome), count in ended.items() if count} == {
        "success": 1.0,
        "cut": 1.0,
        "client_gone": 1.0,
    }
    assert len(ended) == len(OUTCOMES)
    assert values(found[f"{PREFIX}_requests_in_flight"], "model") == {(model,): 0.0}
    service = {
        sample.name.removeprefix(f"{PREFIX}_service_seconds"): sample.value
        for sample in found[f"{PREFIX}_service_seconds"].samples
    }
    assert service == {"_count": 1.0, "_sum": 3.0}
    attempts = values(found[f"{PREFIX}_endpoint_attempts"], "endpoint", "outcome")
    assert attempts[(first.id, "cut")] == 1.0
    assert "a name that a client made up" not in str(found)


def test_histograms_are_cumulative_up_to_infinity() -> None:
    holder = dispatcher()
    (model,) = holder.model_states()
    for value in (0.001, 0.2, 3.0, 1000.0):
        model.meter.ttft.observe(value)
    family = families(holder)[f"{PREFIX}_time_to_first_byte_seconds"]
    buckets = [(s.labels["le"], s.value) for s in family.samples if s.name.endswith("_bucket")]
    assert [float(bound) for bound, _ in buckets] == sorted(float(bound) for bound, _ in buckets)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == ("+Inf", 4.0)
    totals = {s.name.rpartition("_")[2]: s.value for s in family.samples if not s.name.endswith("_bucket")}
    assert totals == {"count": 4.0, "sum": 1003.201}


def test_what_an_engine_does_not_say_has_no_sample_and_a_true_zero_has_one() -> None:
    holder = dispatcher()
    holder.engine_read("e1", EngineLoad(running=0.0, waiting=None, kv=0.5, age_s=0.0), 4.0)
    found = families(holder)
    assert values(found[f"{PREFIX}_endpoint_engine_running"], "endpoint") == {("e1",): 0.0}
    assert values(found[f"{PREFIX}_endpoint_engine_waiting"], "endpoint") == {}
    assert values(found[f"{PREFIX}_endpoint_engine_kv_usage_ratio"], "endpoint") == {("e1",): 0.5}
    assert values(found[f"{PREFIX}_endpoint_engine_reading_age_seconds"], "endpoint") == {("e1",): 6.0}


def test_an_endpoint_has_one_state_and_is_off_the_page_when_it_is_gone() -> None:
    holder = dispatcher()
    states = families(holder)[f"{PREFIX}_endpoint_state"]
    assert values(states, "endpoint", "intent", "health") == {
        ("e1", "active", "ready"): 1.0,
        ("e2", "active", "ready"): 1.0,
    }
    holder.apply(IntentTable(source="s", epoch=3), 1.0)
    found = families(holder)
    assert found[f"{PREFIX}_endpoint_state"].samples == []
    assert values(found[f"{PREFIX}_table_epoch"], "source") == {("s",): 3.0}
    assert values(found[f"{PREFIX}_table_revision"], "source") == {("s",): 0.0}


def test_the_data_planes_counters_are_on_the_page() -> None:
    plane = Plane(clients={1, 2})
    plane.counters.bad_requests = 7
    holder = dispatcher()
    holder.accepting = False
    found = families(holder, plane)
    assert found[f"{PREFIX}_bad_requests"].samples[0].value == 7.0
    assert found[f"{PREFIX}_open_client_connections"].samples[0].value == 2.0
    assert found[f"{PREFIX}_accepting"].samples[0].value == 0.0
    assert {f"{PREFIX}_{name}" for name in COUNTERS} <= found.keys()
    assert found["process_open_fds"].samples[0].value > 0


def test_a_wait_in_the_queue_is_on_the_page_when_it_ends() -> None:
    holder = dispatcher()
    running = [request(), request()]
    for made in running:
        holder.arrived(made, 1.0)
    waiting = request()
    assert holder.arrived(waiting, 2.0) == "queued"
    name = f"{PREFIX}_queue_wait_seconds"
    assert sum(sample.value for sample in families(holder)[name].samples) == 0
    holder.finished(running[0], SUCCESS, 4.5)
    totals = {s.name.removeprefix(name): s.value for s in families(holder)[name].samples if "le" not in s.labels}
    assert totals == {"_count": 1.0, "_sum": 2.5}
    buckets = {s.labels["le"]: s.value for s in families(holder)[name].samples if "le" in s.labels}
    assert (buckets["1.0"], buckets["2.5"]) == (0.0, 1.0)


def test_refusals_of_no_model_and_of_one_that_is_gone_are_on_the_page_under_no_model() -> None:
    holder = Dispatcher(router="r", boot="b", random=lambda: 0.25, now=0.0)
    name = f"{PREFIX}_requests_refused"
    holder.arrived(request(), 0.0)
    models = (ModelIntent(name="m"), ModelIntent(name="n"))
    only = EndpointIntent(id="e", url="http://127.0.0.1:1", model="m")
    holder.apply(IntentTable(source="s", models=models, endpoints=(only,)), 0.0)
    holder.probed("e", True, 0.0)
    running, waiting, nameless, unknown = request("m"), request("m"), request(), request("a name that a client made up")
    nameless.asked = None
    for made in (running, waiting, nameless, unknown, unknown):
        holder.arrived(made, 1.0)
    assert values(families(holder)[name], "model", "code") == {
        ("", "not_ready"): 1.0,
        ("", "model_required"): 1.0,
        ("", "model_not_found"): 2.0,
    }
    holder.apply(IntentTable(source="s", revision=1), 2.0)
    assert values(families(holder)[name], "model", "code")[("", "model_removed")] == 1.0
    holder.apply(
        IntentTable(source="s", revision=2, models=models), 3.0
    )  # the same model again, its request still runs
    removed = {k: v for k, v in values(families(holder)[name], "model", "code").items() if k[1] == "model_removed"}
    assert removed == {("", "model_removed"): 1.0}  # counted once


def test_the_bytes_of_bodies_that_are_held_are_on_the_page() -> None:
    assert families(dispatcher(), Plane(memory=BodyMemory(100)))[f"{PREFIX}_body_bytes"].samples[0].value == 0.0


def series(site: Site) -> set[tuple[str, ...]]:
    """Every name with its labels on the page."""
    page, _ = MetricsPage(site.dispatcher, site.plane, asyncio.get_running_loop().time).page()
    return {
        (sample.name, *(f"{label}={value}" for label, value in sorted(sample.labels.items())))
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@pytest.mark.fault("R27")
@on_uvloop
async def test_what_clients_send_makes_no_series() -> None:
    async with Site(json_answer(), limit=4) as site:
        caller = await site.call()

        async def ask(number: int) -> None:
            name = b"m" if number % 2 else b"made-up-%d" % number
            fields = [f"{name}: client-{number}" for name in ("x-tenant", "x-priority", "x-request-id", "user-agent")]
            answer = await caller.ask(
                post(b'{"model":"%b","user":"u-%d"}' % (name, number), *fields, path=f"/p{number}")
            )
            assert answer.status == (200 if number % 2 else 404)

        for number in (0, 1):
            await ask(number)
        before = series(site)
        for number in range(2, 1002):
            await ask(number)
        assert series(site) == before
        assert not [row for row in before if "made-up" in str(row) or "client-" in str(row) or "/p" in str(row)]
