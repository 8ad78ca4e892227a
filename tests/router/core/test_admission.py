"""Who is let in, who waits, and what the others are told: time stories over the dispatcher."""

from __future__ import annotations

from router.core.dispatcher import QUEUED
from router.core.endpoints import CUT, UNREACHABLE, Endpoint
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


def test_a_client_that_leaves_after_a_table_started_its_request_makes_room_for_the_next() -> None:
    story = Story(endpoint("a", limit=1, starting=True))
    first, second = story.arrive()[0], story.arrive()[0]
    story.tell(endpoint("a", limit=1))
    assert first.endpoint is story.at("a")
    story.dispatcher.left(first, story.now)  # before the shell has taken what the table caused
    assert story.started() == [second]
    assert story.at("a").in_flight == 1
    story.end(second)
    assert story.at("a").outcomes == {"client_gone": 1, "success": 1}


def test_a_client_that_leaves_after_a_table_refused_its_request_is_not_refused() -> None:
    story = Story(endpoint("a", limit=1))
    story.sent()
    waiting = story.arrive()[0]
    story.tell(models=[])
    story.dispatcher.left(waiting, story.now)
    assert story.refused() == []


def waits(story: Story) -> tuple[int, float]:
    """How many waits of the model were filed, and their sum in seconds."""
    (model,) = story.dispatcher.model_states()
    return sum(model.meter.wait.counts), model.meter.wait.sum


def test_a_wait_is_filed_once_when_it_ends() -> None:
    story = Story(endpoint("a", limit=1), routing={"queue": {"timeout_s": 9}})
    running = story.sent()
    story.arrive()
    story.end(running)
    assert waits(story) == (1, 0.0)  # it waited, for no time; who is sent at once has not waited
    (second,) = story.started()
    third, fourth = story.arrive()[0], story.arrive()[0]
    story.later(2)
    story.end(second)
    assert story.started() == [third]
    assert waits(story) == (2, 2.0)
    story.later(3)
    story.dispatcher.left(fourth, story.now)
    assert waits(story) == (3, 7.0)  # a client that gave up has waited too
    story.arrive()
    story.later(9)
    assert [refusal.code for refusal in story.refused()] == ["queue_timeout"]
    assert waits(story) == (4, 16.0)


def test_a_request_that_waits_again_after_a_failed_attempt_files_the_second_wait_alone() -> None:
    story = Story(endpoint("a", limit=1, starting=True))
    made, _ = story.arrive()
    story.later(4)
    story.tell(endpoint("a", limit=1))
    assert story.started() == [made]
    story.fail(made, UNREACHABLE, sent=False)
    story.later(1)
    assert story.started() == [made]
    assert made.waited_s == 5
    assert waits(story) == (2, 5.0)


def test_a_retry_that_lets_others_by_files_one_wait() -> None:
    story = Story(endpoint("a", limit=1), endpoint("b", limit=1), routing={"retries": {"idempotent": True}})
    one, two = story.sent(), story.sent()
    behind, _ = story.arrive()
    story.later(1)
    story.fail(one, CUT, sent=True)  # it waits for the endpoint that it has not tried
    story.later(0.2)
    assert story.started() == [behind]
    story.later(1.8)
    story.end(two)
    assert story.started() == [one]
    assert [round(value, 3) for value in waits(story)] == [2, 3.2]


def test_an_endpoint_that_ends_while_its_model_is_away_is_off_its_list_when_it_comes_back() -> None:
    story = Story(endpoint("a", limit=1), endpoint("b", limit=1))
    running = {made.endpoint.id: made for made in (story.sent(), story.sent()) if made.endpoint is not None}
    story.tell(models=[])
    story.end(running["a"])
    story.tell(endpoint("c"))
    (model,) = story.dispatcher.model_states()
    assert [each.id for each in model.endpoints] == ["b", "c"]
    story.end(running["b"])
    assert [each.id for each in model.endpoints] == ["c"]


def test_refusals_that_belong_to_no_model_in_the_table_are_counted_by_code() -> None:
    story = Story()
    story.arrive()
    story.tell(endpoint("a", limit=1), models=[{"name": "m"}, {"name": "n"}])
    for _ in range(2):
        story.arrive("a name that a client made up")
    story.arrive(None)
    story.sent()
    story.arrive()
    story.tell(models=[])
    assert story.dispatcher.refused_by_code == {
        "not_ready": 1,
        "model_not_found": 2,
        "model_required": 1,
        "model_removed": 1,
    }
