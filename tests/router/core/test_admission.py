"""Who is let in, who waits, and what the others are told: time stories over the dispatcher."""

from __future__ import annotations

from router.core.dispatcher import QUEUED
from router.core.endpoints import Endpoint
from router.core.refusals import Refusal
from tests.router.core.story import Story, endpoint


def test_a_request_gets_a_slot_and_its_end_starts_who_waits_longest() -> None:
    story = Story(endpoint("a", limit=1))
    first = story.sent()
    second, verdict = story.arrive()
    third, _ = story.arrive()
    assert verdict == QUEUED
    story.later(2)
    story.end(first)
    assert story.started() == [second]
    assert second.endpoint is story.at("a")
    assert second.waited_s == 2
    story.end(second)
    assert story.started() == [third]


def test_a_client_that_leaves_the_queue_frees_its_place_and_is_never_started() -> None:
    story = Story(endpoint("a", limit=1), routing={"queue": {"max_requests": 2}})
    first = story.sent()
    second, third = story.arrive()[0], story.arrive()[0]
    story.dispatcher.left(second, story.now)
    fourth, verdict = story.arrive()
    assert verdict == QUEUED
    story.end(first)
    assert story.started() == [third]
    story.end(third)
    assert story.started() == [fourth]
    story.end(fourth)
    load = story.dispatcher.report(story.now).models["m"]
    assert (load.queued, load.queued_tokens, load.in_flight) == (0, 0, 0)


def test_a_full_queue_is_429_with_the_time_it_takes_to_drain() -> None:
    story = Story(endpoint("a", limit=1), routing={"queue": {"max_requests": 4}})
    for _ in range(10):  # ten seconds with one request served in each
        story.end(story.sent())
        story.later(1)
    story.sent()
    for _ in range(4):
        assert story.arrive()[1] == QUEUED
    verdict = story.arrive()[1]
    assert isinstance(verdict, Refusal)
    assert (verdict.status, verdict.code, verdict.retry_after_s) == (429, "queue_full", 4)
    assert "4 requests wait, the bound is 4" in verdict.message
    assert sum(story.dispatcher.report(story.now + 1).models["m"].shed) == 1


def test_a_queue_is_bounded_in_bytes_too() -> None:
    story = Story(endpoint("a", limit=1), routing={"queue": {"max_bytes": 1000}})
    story.sent()
    assert story.arrive(size=900)[1] == QUEUED
    verdict = story.arrive(size=101)[1]
    assert isinstance(verdict, Refusal)
    assert verdict.status == 429
    assert "900 bytes wait, 101 more would pass the bound of 1000" in verdict.message
    assert story.arrive(size=100)[1] == QUEUED


def test_who_waits_until_the_deadline_is_told_503_and_when_supply_comes() -> None:
    story = Story(endpoint("a", limit=1), supply={"eta_s": 45}, routing={"queue": {"timeout_s": 5}})
    story.sent()
    story.arrive()
    story.later(4.9)
    assert story.refused() == []
    assert story.dispatcher.next_deadline() == story.now + 5 - 4.9
    story.later(0.1)
    (refusal,) = story.refused()
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "queue_timeout", 40)
    assert story.dispatcher.next_deadline() is None


def test_without_an_announced_replica_retry_after_is_the_default() -> None:
    story = Story(endpoint("a", limit=1), routing={"queue": {"timeout_s": 5}})
    story.sent()
    story.arrive()
    story.later(5)
    assert [refusal.retry_after_s for refusal in story.refused()] == [5]


def test_a_known_model_without_replicas_holds_the_request_and_wakes_the_controller() -> None:
    story = Story(supply={"eta_s": None})
    held, verdict = story.arrive()
    assert verdict == QUEUED
    assert story.wakes == 1
    assert story.dispatcher.report(story.now).models["m"].held_from_zero == 1
    story.later(3)
    story.tell(endpoint("a"))
    assert story.started() == [held]
    assert story.dispatcher.report(story.now).models["m"].held_from_zero == 0


def test_when_the_next_replica_comes_too_late_the_request_is_told_so_at_once() -> None:
    story = Story(endpoint("a", starting=True), supply={"eta_s": 90}, routing={"queue": {"timeout_s": 30}})
    verdict = story.arrive()[1]
    assert isinstance(verdict, Refusal)
    assert (verdict.status, verdict.code, verdict.retry_after_s) == (503, "no_capacity", 60)
    story.later(70)  # the announcement ages: 20 s are left now, so the request may wait
    assert story.arrive()[1] == QUEUED


def test_unknown_models_missing_names_and_aliases() -> None:
    story = Story()
    assert story.arrive()[1] == Refusal(
        status=503, code="not_ready", message="the router has not been told of any model yet", retry_after_s=5
    )
    story.tell(endpoint("a"))
    assert story.sent("alias").endpoint is story.at("a")
    assert story.sent(None).endpoint is story.at("a")
    verdict = story.arrive("other")[1]
    assert isinstance(verdict, Refusal)
    assert (verdict.status, verdict.code) == (404, "model_not_found")
    models = [{"name": "m"}, {"name": "n"}]
    story.tell(endpoint("a"), models=models)
    verdict = story.arrive(None)[1]
    assert isinstance(verdict, Refusal)
    assert (verdict.status, verdict.code) == (400, "model_required")
    assert "m, n" in verdict.message


def test_zero_requests_may_wait_means_never_queue() -> None:
    story = Story(endpoint("a", limit=1), routing={"queue": {"max_requests": 0}})
    story.end(story.sent())
    story.sent()
    verdict = story.arrive()[1]
    assert isinstance(verdict, Refusal)
    assert verdict.status == 429


def test_a_removed_model_refuses_who_waits_and_lets_finish_who_runs() -> None:
    story = Story(endpoint("a", limit=1))
    running = story.sent()
    story.arrive()
    story.tell(models=[])
    assert [refusal.code for refusal in story.refused()] == ["model_removed"]
    story.tell(endpoint("a", limit=1))  # it comes back while its request still runs: the slot still counts
    assert story.at("a").in_flight == 1
    waiting, verdict = story.arrive()
    assert verdict == QUEUED
    story.end(running)
    assert story.started() == [waiting]


def test_load_per_second_is_filed_by_second() -> None:
    story = Story(endpoint("a", limit=100))
    for count in (3, 0, 2):
        for _ in range(count):
            made, verdict = story.arrive(tokens_in=7)
            assert isinstance(verdict, Endpoint)
            story.end(made)
        story.now += 1
    story.arrive(tokens_in=7)
    report = story.dispatcher.report(story.now)
    assert report.second == 3
    assert report.models["m"].arrived[-3:] == (3, 0, 2)
    assert report.models["m"].tokens_in[-3:] == (21, 0, 14)
    assert story.dispatcher.report(story.now + 500).models["m"].arrived == (0,) * 120
    assert report.models["m"].service_s.count == 5


def test_a_queue_that_fills_and_empties_all_the_time_wakes_at_most_once_a_second() -> None:
    story = Story(endpoint("a", limit=1))
    running = story.sent()
    for _ in range(30):
        waiting, _ = story.arrive()
        story.end(running)
        assert story.started() == [waiting]
        running = waiting
        story.later(0.1)
    assert 3 <= story.wakes <= 4
