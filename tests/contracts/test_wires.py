"""One suite for both planes: what either writes, the other reads, field by field.

The router's types and the controller's are kept apart on purpose; this is what holds them together. Each generated
document is read by one side, written again, read by the other, and compared with the document itself.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from msgspec import inspect

from autoscaler import wires
from autoscaler.errors import BadReport
from router import model
from router.errors import BadTable
from tests.contracts import documents

Plain = dict[str, Any]

FIELDS_ONLY_ROUTERS_USE = {"tokens_in", "tokens_out", "ttft_s", "itl_s"}
"""Parts of a load report that the controller does not read yet."""


def plain(value: object) -> Plain:
    """A wire value as the JSON that travels."""
    document: Plain = msgspec.json.decode(msgspec.json.encode(value))
    return document


def as_bytes(document: Plain) -> bytes:
    return msgspec.json.encode(document)


def seen_by_controller(report: Plain) -> Plain:
    """A report without what the controller does not read."""
    kept = copy.deepcopy(report)
    for load in kept["models"].values():
        for name in FIELDS_ONLY_ROUTERS_USE:
            del load[name]
    return kept


def controllers_table(document: Plain) -> wires.TableWire:
    return msgspec.convert(document, wires.TableWire)


# ---- Wire 2: the intent table and the answer to it ----


def test_the_table_of_the_fixture_is_read_whole_by_the_router() -> None:
    assert plain(model.parse_table(as_bytes(documents.TABLE))) == documents.TABLE


def test_the_table_of_the_fixture_is_what_a_controller_writes() -> None:
    assert msgspec.json.decode(wires.encode_table(controllers_table(documents.TABLE))) == documents.TABLE


@settings(max_examples=60, deadline=None)
@given(documents.tables())
def test_any_table_that_a_controller_writes_the_router_reads(document: Plain) -> None:
    written = wires.encode_table(controllers_table(document))
    assert plain(model.parse_table(written)) == document


@settings(max_examples=60, deadline=None)
@given(documents.acks)
def test_any_answer_of_the_router_the_controller_reads(document: Plain) -> None:
    written = msgspec.json.encode(msgspec.convert(document, model.TableAck))
    assert plain(wires.parse_ack(written)) == document


def test_the_answer_of_the_fixture_is_read_by_the_controller() -> None:
    assert plain(wires.parse_ack(as_bytes(documents.ACK))) == documents.ACK


def test_a_table_with_only_what_has_no_default_gets_the_same_defaults_on_both_sides() -> None:
    smallest = wires.TableWire(source="s", epoch=0, revision=0)
    read = model.parse_table(wires.encode_table(smallest))
    assert plain(read) == plain(smallest)
    assert plain(model.IntentTable(source="s")) == plain(smallest)


# ---- Wire 1: the load report ----


def test_the_report_of_the_fixture_is_what_a_router_writes() -> None:
    assert plain(msgspec.convert(documents.REPORT, model.LoadReport)) == documents.REPORT


def test_the_report_of_the_fixture_is_read_by_the_controller() -> None:
    assert plain(wires.parse_report(as_bytes(documents.REPORT))) == seen_by_controller(documents.REPORT)


@settings(max_examples=60, deadline=None)
@given(documents.reports)
def test_any_report_that_a_router_writes_the_controller_reads(document: Plain) -> None:
    written = msgspec.json.encode(msgspec.convert(document, model.LoadReport))
    assert plain(wires.parse_report(written)) == seen_by_controller(document)


def test_a_report_with_only_what_has_no_default_gets_the_same_defaults_on_both_sides() -> None:
    smallest = model.LoadReport(router="r", boot="b", seq=0, second=0)
    assert plain(wires.parse_report(msgspec.json.encode(smallest))) == plain(smallest)
    assert plain(wires.ReportWire(router="r", boot="b", seq=0, second=0)) == plain(smallest)


# ---- Both: unknown fields, unknown versions, wrong types ----

READERS: list[tuple[str, Plain, Callable[[bytes], object], type[Exception]]] = [
    ("router reads a table", documents.TABLE, model.parse_table, BadTable),
    ("controller reads a report", documents.REPORT, wires.parse_report, BadReport),
    ("controller reads an answer", documents.ACK, wires.parse_ack, BadReport),
]
readers = pytest.mark.parametrize(
    ("document", "read", "refusal"), [row[1:] for row in READERS], ids=[row[0] for row in READERS]
)


OPEN_MAPS = {"held", "models", "endpoints", "outcomes", "versions", "mirror", "weights"}
"""Objects whose keys are data, not fields."""


def fields_only(value: object, key: str = "") -> Iterator[Plain]:
    """The objects of a document whose keys are fields."""
    if isinstance(value, dict):
        if key not in OPEN_MAPS:
            yield value
        for name, item in value.items():
            yield from fields_only(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from fields_only(item)


@readers
def test_unknown_fields_are_ignored_at_every_depth(
    document: Plain, read: Callable[[bytes], object], refusal: type[Exception]
) -> None:
    extended = copy.deepcopy(document)
    places = list(fields_only(extended))
    assert len(places) > 2
    for place in places:
        place["from_a_later_release"] = {"deep": [1, 2]}
    assert read(as_bytes(extended)) == read(as_bytes(document))


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
@pytest.mark.parametrize(("document", "read", "refusal"), [row[1:] for row in READERS[:2]], ids=["table", "report"])
def test_an_unknown_version_is_refused_by_name(
    document: Plain, read: Callable[[bytes], object], refusal: type[Exception], version: object
) -> None:
    with pytest.raises(refusal, match=r"\$\.version"):
        read(as_bytes({**document, "version": version}))


@readers
@pytest.mark.parametrize("text", [b"", b"nonsense", b"[]", b"null", b"{", b"[" * 100_000, b'{"a": NaN}', b"\xff\xfe"])
def test_what_is_no_document_is_refused_and_never_read_as_empty(
    document: Plain, read: Callable[[bytes], object], refusal: type[Exception], text: bytes
) -> None:
    with pytest.raises(refusal):
        read(text)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"limit": 0}, "$.endpoints[0].limit"),
        ({"limit": "4"}, "$.endpoints[0].limit"),
        ({"capacity": 0}, "$.endpoints[0].capacity"),
        ({"intent": "resting"}, "$.endpoints[0].intent"),
        ({"id": ""}, "$.endpoints[0].id"),
        ({"url": "https://127.0.0.1:1"}, "$.endpoints[0]`.url"),
        ({"url": "http://127.0.0.1:1/v1"}, "$.endpoints[0]`.url"),
        ({"model": "another"}, "$.endpoints[0]`.model"),
        ({"id": "llama-slice-8"}, "$.endpoints[1]`.id"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_the_path_of_its_field(change: Plain, field: str) -> None:
    document = copy.deepcopy(documents.TABLE)
    document["endpoints"][0].update(change)
    with pytest.raises(BadTable, match=re.escape(field)):
        model.parse_table(as_bytes(document))


def test_a_model_name_has_one_owner() -> None:
    document = copy.deepcopy(documents.TABLE)
    document["models"].append({**document["models"][0], "name": "other"})
    with pytest.raises(BadTable, match="'llama-latest' already belongs to 'llama'"):
        model.parse_table(as_bytes(document))


# ---- Names and units that a machine can check ----

TIMELESS_FLOATS = {"share", "default", "capacity", "budget_percent", "running", "waiting", "kv", "sum", "le"}
"""Floats that are no durations: fractions, units, percent, engine gauges; `sum` and `le` are inside `*_s` objects."""


def described(kind: type, seen: set[type]) -> Iterator[tuple[str, inspect.Type]]:
    """Every field of a wire type and of the types inside it."""
    if kind in seen:
        return
    seen.add(kind)
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        yield field.encode_name, field.type
        for inner in inner_types(field.type):
            if isinstance(inner, inspect.StructType):
                yield from described(inner.cls, seen)


def inner_types(kind: inspect.Type) -> Iterator[inspect.Type]:
    """A type and the types it is made of."""
    yield kind
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from inner_types(member)
    elif isinstance(kind, inspect.VarTupleType):
        yield from inner_types(kind.item_type)
    elif isinstance(kind, inspect.DictType):
        yield from inner_types(kind.value_type)


WIRE_TYPES = [model.IntentTable, model.TableAck, model.LoadReport, wires.TableWire, wires.AckWire, wires.ReportWire]


@pytest.mark.parametrize("kind", WIRE_TYPES)
def test_durations_are_floats_in_seconds_and_say_so_and_no_wall_clock_travels(kind: type) -> None:
    for name, type_ in described(kind, set()):
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name), f"{name}: not a snake_case name"
        assert not re.search(r"_ms$|_us$|seconds|epoch_s|timestamp|_at$", name), (
            f"{name}: seconds as `_s`, ages and no wall clock"
        )
        has_float = any(isinstance(inner, inspect.FloatType) for inner in inner_types(type_))
        if name.endswith("_s"):
            assert has_float or isinstance(type_, inspect.StructType), f"{name}: a duration is a float"
        elif has_float and not isinstance(type_, inspect.DictType):
            assert name in TIMELESS_FLOATS, f"{name}: a float without a unit"


@pytest.mark.parametrize(
    ("routers", "controllers"), [(model.IntentTable, wires.TableWire), (model.TableAck, wires.AckWire)]
)
def test_both_sides_of_wire_2_have_exactly_the_same_fields(routers: type, controllers: type) -> None:
    assert {name for name, _ in described(routers, set())} == {name for name, _ in described(controllers, set())}


def test_the_controller_reads_no_field_of_a_report_that_no_router_writes() -> None:
    written = {name for name, _ in described(model.LoadReport, set())}
    read = {name for name, _ in described(wires.ReportWire, set())}
    assert read <= written
    assert written - read == FIELDS_ONLY_ROUTERS_USE | {"le"}


def test_absence_and_zero_stay_apart_on_the_way() -> None:
    loads = {
        "silent": model.EngineLoad(),
        "idle": model.EngineLoad(running=0.0, waiting=0.0, kv=0.0, age_s=0.0),
    }
    report = model.LoadReport(
        router="r",
        boot="b",
        seq=1,
        second=1,
        endpoints={
            name: model.EndpointLoad(intent="active", health="ready", in_flight=0, limit=1, engine=load)
            for name, load in loads.items()
        },
    )
    read = wires.parse_report(msgspec.json.encode(report)).endpoints
    assert read["silent"].engine == wires.EngineLoadWire(running=None, waiting=None, kv=None, age_s=None)
    assert read["idle"].engine == wires.EngineLoadWire(running=0.0, waiting=0.0, kv=0.0, age_s=0.0)
