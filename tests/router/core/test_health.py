"""Ejection, back-off, half-open, drain and shares: time stories over the dispatcher."""

from __future__ import annotations

import pytest

from router.core.dispatcher import QUEUED
from router.core.endpoints import (
    CLIENT_ERROR,
    CLIENT_GONE,
    CUT,
    SATURATED,
    TIMEOUT,
    UNREACHABLE,
    Endpoint,
    outcome_of,
)
from router.core.refusals import Refusal
from router.errors import BadTable, StaleTable, TableMismatch
from router.model import EndpointAck, EngineLoad
from tests.router.core.story import Story, endpoint, table


@pytest.mark.parametrize("outcome", [CUT, TIMEOUT])
def test_three_failures_in_a_row_eject_and_one_success_in_between_forgives(outcome: int) -> None:
    """The same with server errors, which eject only while enough others are ready: `test_ejection_cap.py`."""
    story = Story(endpoint("a", limit=9))
    for failure in range(2):
        story.end(story.sent(), outcome)
        assert story.at("a").failures == failure + 1
        story.later(0.2)
    story.end(story.sent())
    for _ in range(2):
        story.end(story.sent(), outcome)
        story.later(0.2)
    assert story.at("a").health == "ready"
    story.end(story.sent(), outcome)
    assert story.at("a").health == "ejected"
    assert story.wakes == 1


def test_after_a_cut_the_endpoint_gets_nothing_for_a_moment() -> None:
    """A killed engine's listener outlives its connections: who waits must not be sent into that gap."""
    story = Story(endpoint("dying", limit=1))
    first = story.sent()
    waiting, verdict = story.arrive()
    assert verdict == QUEUED
    story.end(first, CUT)
    assert waiting.endpoint is None
    assert story.dispatcher.next_deadline() == pytest.approx(story.now + 0.1)
    story.later(0.11)
    assert waiting.endpoint is story.at("dying")


@pytest.mark.fault("R5")
@pytest.mark.parametrize("outcome", [CLIENT_ERROR, SATURATED, CLIENT_GONE])
def test_what_the_client_or_a_full_engine_says_is_neutral(outcome: int) -> None:
    story = Story(endpoint("a"))
    for _ in range(20):
        story.end(story.sent(), outcome)
    assert story.at("a").health == "ready"


def test_outcome_follows_from_the_status() -> None:
    said = {
        200: "success",
        304: "success",
        404: "client_error",
        429: "saturated",
        503: "saturated",
        500: "server_error",
    }
    story = Story(endpoint("a", limit=99))
    for status in said:
        story.end(story.sent(), outcome_of(status))
    assert story.at("a").outcomes == {"success": 2, "client_error": 1, "saturated": 2, "server_error": 1}


def test_an_unreachable_endpoint_is_ejected_at_once_and_comes_back_through_one_probing_request() -> None:
    story = Story(endpoint("a", limit=9))
    story.fail(story.sent(), UNREACHABLE, sent=False)  # it goes back to the queue: nothing was sent
    waiting = [story.arrive()[0] for _ in range(3)]
    assert story.at("a").health == "ejected"
    story.later(0.9)
    assert story.started() == []
    story.later(0.1)
    (probe,) = story.started()
    assert story.at("a").health == "half-open"
    assert story.at("a").in_flight == 1
    story.end(probe)
    assert story.at("a").health == "ready"
    assert story.started() == waiting


def test_back_off_doubles_while_it_keeps_failing() -> None:
    story = Story(endpoint("a", limit=9), routing={"retries": {"max_attempts": 1}, "queue": {"timeout_s": 1000}})
    waits = []
    story.fail(story.sent(), UNREACHABLE, sent=False)
    for _ in range(7):
        ejected_at = story.now
        waiting, _ = story.arrive()
        due = story.dispatcher.next_deadline()
        assert due is not None
        story.later(due - story.now)
        waits.append(round(story.now - ejected_at))
        assert story.started() == [waiting]
        refusal = story.fail(waiting, UNREACHABLE, sent=False)
        assert isinstance(refusal, Refusal)
        assert refusal.status == 502
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_probing_request_whose_client_leaves_lets_another_try() -> None:
    story = Story(endpoint("a", limit=9))
    story.fail(story.sent(), UNREACHABLE, sent=False)
    story.later(1)
    (probe,) = story.started()
    other, verdict = story.arrive()
    assert verdict == QUEUED
    story.dispatcher.left(probe, story.now)
    assert story.started() == [other]
    assert story.at("a").health == "half-open"


def test_a_failing_active_probe_keeps_an_ejected_endpoint_from_risking_a_request() -> None:
    story = Story(endpoint("a"))
    for _ in range(3):
        story.dispatcher.probed("a", False, story.now)
    assert story.at("a").health == "ejected"
    story.later(1)
    assert story.at("a").health == "ejected"
    story.dispatcher.probed("a", True, story.now)
    story.later(1)
    assert story.at("a").health == "half-open"


def test_an_active_probe_makes_unknown_ready_but_does_not_forgive_failed_requests() -> None:
    story = Story()
    story.tell(endpoint("a"), ready=False)
    waiting, verdict = story.arrive()
    assert verdict == QUEUED
    effects: list[int] = []
    story.dispatcher.on_effects = lambda: effects.append(1)
    story.dispatcher.probed("a", True, story.now)
    assert effects == [1]
    assert story.started() == [waiting]
    story.end(waiting)
    for _ in range(3):
        story.end(story.sent(), TIMEOUT)
        story.dispatcher.probed("a", True, story.now)
    assert story.at("a").health == "ejected"


def test_drained_is_said_when_nothing_is_bound_and_woken_once() -> None:
    story = Story(endpoint("a"), endpoint("b"))
    on_a = [made for made in (story.sent(), story.sent(), story.sent(), story.sent()) if made.endpoint is story.at("a")]
    assert len(on_a) == 2
    story.tell(endpoint("a", intent="draining"), endpoint("b"))
    assert story.dispatcher.acknowledgement("test").endpoints["a"] == EndpointAck(
        in_flight=2, drained=False, health="ready"
    )
    story.end(on_a[0])
    wakes = story.wakes
    story.dispatcher.left(on_a[1], story.now)
    assert story.dispatcher.acknowledgement("test").endpoints["a"].drained
    assert story.wakes == wakes + 1
    assert story.arrive()[1] == QUEUED  # b is full, and a gets nothing new


def test_a_draining_endpoint_can_be_called_back() -> None:
    story = Story(endpoint("a", limit=1))
    story.tell(endpoint("a", limit=1, intent="draining"))
    waiting, verdict = story.arrive()
    assert verdict == QUEUED
    story.tell(endpoint("a", limit=1))
    assert story.started() == [waiting]


def test_an_omitted_endpoint_finishes_and_is_then_gone() -> None:
    story = Story(endpoint("a"))
    running = story.sent()
    story.tell()
    assert story.dispatcher.report(story.now).endpoints["a"].intent == "absent"
    assert story.arrive()[1] == QUEUED
    story.end(running)
    assert story.dispatcher.endpoints == {}


def test_the_same_id_at_another_address_is_another_replica() -> None:
    story = Story(endpoint("a", limit=1))
    running = story.sent()
    story.tell(endpoint("a", limit=1, url="http://127.0.0.1:1234"), ready=False)
    assert (story.at("a").port, story.at("a").health, story.at("a").in_flight) == (1234, "unknown", 0)
    story.end(running)
    assert story.at("a").in_flight == 0


@pytest.mark.parametrize(
    ("limit", "share", "here"), [(8, 1.0, 8), (8, 0.5, 4), (8, 1 / 3, 3), (1, 0.1, 1), (100, 0.25, 25)]
)
def test_share_of_the_limit(limit: int, share: float, here: int) -> None:
    story = Story(endpoint("a", limit=limit), share=share)
    for _ in range(here):
        story.sent()
    assert story.arrive()[1] == QUEUED
    assert story.dispatcher.report(story.now).endpoints["a"].limit == here


def test_a_limit_that_shrank_takes_nothing_new_until_below() -> None:
    story = Story(endpoint("a", limit=4))
    running = [story.sent() for _ in range(4)]
    story.tell(endpoint("a", limit=2))
    waiting, _ = story.arrive()
    for made in running[:2]:
        story.end(made)
        assert story.started() == []
    story.end(running[2])
    assert story.started() == [waiting]


def test_revisions_only_go_up_and_a_pair_has_one_body() -> None:
    story = Story()
    dispatcher = story.dispatcher
    assert not dispatcher.has_table
    assert dispatcher.apply(table(endpoint("a"), revision=5), 0).applied == (1, 5)
    assert dispatcher.apply(table(endpoint("a"), revision=5), 0).applied == (1, 5)
    with pytest.raises(TableMismatch):
        dispatcher.apply(table(endpoint("b"), revision=5), 0)
    with pytest.raises(StaleTable) as stale:
        dispatcher.apply(table(endpoint("a"), revision=4), 0)
    assert stale.value.held == (1, 5)
    with pytest.raises(BadTable, match="belongs to the source 'test'"):
        dispatcher.apply(table(endpoint("z"), source="other"), 0)
    assert list(dispatcher.endpoints) == ["a"]
    assert dispatcher.tables().keys() == {"test"}


def test_engine_readings_age_and_absent_is_not_zero() -> None:
    story = Story(endpoint("a"))
    assert story.dispatcher.report(story.now).endpoints["a"].engine == EngineLoad()
    story.dispatcher.engine_read("a", EngineLoad(waiting=3, age_s=0.5), story.now)
    story.dispatcher.engine_read("nobody", EngineLoad(), story.now)
    assert story.dispatcher.report(story.now + 1).endpoints["a"].engine == EngineLoad(waiting=3, age_s=1.5)


def test_standby_starting_and_unprobed_endpoints_get_nothing() -> None:
    story = Story()
    told = (endpoint("a", intent="standby"), endpoint("b", starting=True), endpoint("c"))
    story.tell(*told, ready=False)
    story.dispatcher.probed("a", True, story.now)
    story.dispatcher.probed("b", True, story.now)
    waiting, verdict = story.arrive()
    assert verdict == QUEUED
    story.tell(endpoint("a"), *told[1:], ready=False)  # promoted
    assert story.started() == [waiting]
    assert isinstance(waiting.endpoint, Endpoint)
    assert waiting.endpoint.id == "a"


@pytest.mark.parametrize(("field", "value"), [("limit", 10**400), ("limit", 0), ("capacity", 1e300), ("capacity", -1)])
def test_a_number_that_no_endpoint_can_have_is_refused_and_nothing_is_applied(field: str, value: float) -> None:
    story = Story(endpoint("a"))
    with pytest.raises(BadTable, match=field):
        story.tell(endpoint("b", **{field: value}))
    assert list(story.dispatcher.endpoints) == ["a"]
    assert story.dispatcher.tables()["test"].revision == 1
