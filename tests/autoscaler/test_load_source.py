"""Load reports become samples: each second of each router is counted exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from autoscaler.adapters.load_cursor import LoadMerger
from autoscaler.wires import EndpointLoadWire, ModelLoadWire, ReportWire, TotalWire
from tests.builders import at

A, B = "http://a", "http://b"


def report(
    second: int,
    arrived: Sequence[int],
    boot: str = "one",
    served: tuple[int, float] = (0, 0.0),
    shed: Sequence[int] = (),
    **gauges: float,
) -> ReportWire:
    load = ModelLoadWire(
        arrived=tuple(arrived),
        shed=tuple(shed),
        service_s=TotalWire(count=served[0], sum=served[1]),
        **gauges,  # type: ignore[arg-type]  # rows of a table
    )
    return ReportWire(router="r", boot=boot, seq=1, second=second, models={"m": load})


def zeros(count: int) -> list[int]:
    return [0] * count


ONE_ROUTER = {
    "first contact takes what is listed": [(10, report(3, [1, 2, 3]), [1, 2, 3])],
    "only what is new": [(10, report(3, [1, 2, 3]), [1, 2, 3]), (12, report(5, [1, 2, 3, 4, 5]), [4, 5])],
    "nothing new": [(10, report(3, [1, 2, 3]), [1, 2, 3]), (10.2, report(3, [1, 2, 3]), [])],
    "a list padded with zeros from before the boot": [(10, report(2, [*zeros(118), 7, 8]), [7, 8])],
    "a jump within what is listed": [(10, report(1, [1]), [1]), (13, report(4, [1, 2, 3, 4]), [2, 3, 4])],
    "a jump beyond it is a gap": [
        (0, report(1, [1]), [1]),
        (130, report(131, [9] * 120), [*[None] * 10, *[9] * 120]),
    ],
    "a restart: what nobody counted is a gap": [
        (10, report(50, [5] * 50), [5] * 50),
        (16, report(2, [1, 2], boot="two"), [None, None, None, None, 1, 2]),
    ],
    "a restart at once loses nothing": [
        (10, report(50, [5] * 50), [5] * 50),
        (12, report(2, [1, 2], boot="two"), [1, 2]),
    ],
    "silence, then the same boot": [
        (10, report(1, [1]), [1]),
        (12, None, None),
        (14, report(5, [1, 2, 3, 4, 5]), [2, 3, 4, 5]),
    ],
    "a second never goes back": [
        (10, report(5, [1, 1, 1, 1, 9]), [1, 1, 1, 1, 9]),
        (11, report(4, [1] * 4), []),
        (12, report(6, [1, 9, 3]), [3]),
    ],
}


@pytest.mark.parametrize("story", ONE_ROUTER.values(), ids=ONE_ROUTER)
def test_one_router(story: list[tuple[float, ReportWire | None, list[float | None] | None]]) -> None:
    merger = LoadMerger([A])
    for moment_s, answer, arrivals in story:
        sample = merger.merge("p", "m", {A: answer}, at(moment_s))
        if arrivals is None:
            assert sample is None
        else:
            assert sample is not None
            assert list(sample.arrivals) == arrivals


def test_two_policies_have_cursors_of_their_own() -> None:
    merger = LoadMerger([A])
    for policy in ("p", "q"):
        sample = merger.merge(policy, "m", {A: report(2, [1, 2])}, at(0))
        assert sample is not None
        assert sample.arrivals == (1, 2)


def test_several_routers_are_summed_second_by_second() -> None:
    merger = LoadMerger([A, B])
    first = merger.merge(
        "p",
        "m",
        {A: report(2, [1, 2], in_flight=3, queued=1, oldest_s=2.0), B: report(3, [10, 20, 30], in_flight=4)},
        at(0),
    )
    assert first is not None
    assert list(first.arrivals) == [11, 22]  # B's third second waits for A's
    assert (first.in_flight, first.queued, first.oldest_s, first.routers_missing) == (7, 1, 2.0, ())
    second = merger.merge("p", "m", {A: report(3, [1, 2, 3]), B: report(4, [10, 20, 30, 40])}, at(1))
    assert second is not None
    assert list(second.arrivals) == [33]


def test_a_router_that_was_silent_comes_back_at_the_newest_second() -> None:
    merger = LoadMerger([A, B])
    merger.merge("p", "m", {A: report(1, [1]), B: report(1, [10])}, at(0))
    alone = merger.merge("p", "m", {A: report(21, [1] * 21), B: None}, at(20))
    assert alone is not None
    assert list(alone.arrivals) == [1] * 20
    assert alone.routers_missing == (B,)
    both = merger.merge("p", "m", {A: report(22, [2] * 22), B: report(22, [*[10] * 21, 30])}, at(21))
    assert both is not None
    assert list(both.arrivals) == [32]
    assert both.routers_missing == ()


def test_a_router_that_does_not_know_the_model_yet_is_missing() -> None:
    merger = LoadMerger([A])
    assert merger.merge("p", "unknown", {A: report(2, [1, 2])}, at(0)) is None


@pytest.mark.parametrize(
    ("before", "after", "growth"),
    [
        (report(5, [1] * 5, served=(4, 8.0)), report(6, [1] * 6, served=(7, 11.0)), (3, 3.0)),
        (report(5, [1] * 5, served=(4, 8.0)), report(1, [1], boot="two", served=(2, 1.0)), (2, 1.0)),
        (report(5, [1] * 5, served=(4, 8.0)), report(6, [1] * 6, served=(1, 1.0)), (0, 0.0)),
    ],
    ids=["growth since the last read", "a new boot counts from zero", "a counter that fell is no growth"],
)
def test_service_counters(before: ReportWire, after: ReportWire, growth: tuple[int, float]) -> None:
    merger = LoadMerger([A])
    merger.merge("p", "m", {A: before}, at(0))
    sample = merger.merge("p", "m", {A: after}, at(1))
    assert sample is not None
    assert (sample.service_count, sample.service_sum_s) == growth


def test_totals_of_an_old_boot_are_not_new() -> None:
    sample = LoadMerger([A]).merge("p", "m", {A: report(500, [1] * 120, served=(1000, 9000.0))}, at(0))
    assert sample is not None
    assert (len(sample.arrivals), sample.service_count) == (120, 0)


def test_shed_requests_are_counted_with_their_seconds() -> None:
    merger = LoadMerger([A])
    merger.merge("p", "m", {A: report(1, [1], shed=[1])}, at(0))
    sample = merger.merge("p", "m", {A: report(3, [1, 5, 6], shed=[1, 2, 3])}, at(2))
    assert sample is not None
    assert (sample.arrivals, sample.shed) == ((5, 6), 5)


def seen(*healths: str, **others: str) -> ReportWire:
    """A report of endpoints e0, e1, ... with these healths."""
    found = {f"e{number}": health for number, health in enumerate(healths)} | others
    rows = {name: EndpointLoadWire(intent="active", health=h, in_flight=0, limit=1) for name, h in found.items()}
    return msgspec.structs.replace(report(1, [1]), endpoints=rows)


@pytest.mark.parametrize(
    ("a", "b", "unhealthy"),
    [
        (seen("ready", "ejected", "ejected"), seen("ready", "ready", "ejected"), ("e2",)),
        (seen("half-open"), seen("ejected"), ("e0",)),
        (seen("unknown"), seen("ejected"), ()),
        (seen("ejected"), seen(), ()),
        (seen("ejected"), None, ()),
    ],
    ids=["all routers", "on trial is not back", "not tried yet", "one does not have it", "one says nothing"],
)
def test_what_every_router_has_ejected(a: ReportWire, b: ReportWire | None, unhealthy: tuple[str, ...]) -> None:
    sample = LoadMerger([A, B]).merge("p", "m", {A: a, B: b}, at(0))
    assert sample is not None
    assert sample.unhealthy == unhealthy
