"""Answers of 500 alone never empty a pool, and what they ejected comes back when too few are left: time stories."""

from __future__ import annotations

import pytest

from router.core.dispatcher import QUEUED
from router.core.endpoints import CUT, SERVER_ERROR, TIMEOUT, UNREACHABLE
from tests.router.core.story import Story, endpoint


def healths(story: Story) -> dict[str, str]:
    return {each.id: each.health for each in story.dispatcher.endpoints.values()}


def answers_500(story: Story, name: str, times: int = 3) -> None:
    """`name` answers so many requests with a server error, the others answer theirs well."""
    while times:
        made = story.sent()
        if made.endpoint is story.at(name):
            story.end(made, SERVER_ERROR)
            times -= 1
        else:
            story.end(made)


@pytest.mark.parametrize(("size", "kept"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4)])
def test_however_many_requests_get_500_half_of_the_pool_stays_ready(size: int, kept: int) -> None:
    story = Story(*(endpoint(f"e{number}", limit=9) for number in range(size)))
    for _ in range(50 * size):
        story.end(story.sent(), SERVER_ERROR)
    assert list(healths(story).values()).count("ready") == kept


def test_endpoints_that_are_not_meant_to_serve_are_no_part_of_the_pool() -> None:
    story = Story(endpoint("a", limit=9), endpoint("b", limit=9), endpoint("c", intent="standby"))
    story.tell(
        endpoint("a", limit=9), endpoint("b", limit=9), endpoint("c", intent="standby"), endpoint("d", starting=True)
    )
    answers_500(story, "a")
    assert healths(story) == {"a": "ejected", "b": "ready", "c": "ready", "d": "unknown"}


@pytest.mark.parametrize("outcome", [CUT, TIMEOUT, UNREACHABLE])
def test_an_endpoint_that_does_not_answer_is_ejected_even_if_it_is_the_last(outcome: int) -> None:
    story = Story(endpoint("a", limit=9))
    for _ in range(1 if outcome == UNREACHABLE else 3):
        made = story.sent()
        story.end(made, outcome)
        story.later(0.2)
    assert story.at("a").health == "ejected"


def test_one_cut_after_many_spared_500s_ejects_nobody() -> None:
    story = Story(endpoint("a", limit=9))
    for _ in range(9):
        story.end(story.sent(), SERVER_ERROR)
    story.end(story.sent(), CUT)
    assert story.at("a").health == "ready"
    for _ in range(2):
        story.later(0.2)
        story.end(story.sent(), CUT)
    assert story.at("a").health == "ejected"  # three without an answer, whatever came in between


def test_those_ejected_for_500s_come_back_at_once_when_the_others_die() -> None:
    story = Story(*(endpoint(name, limit=1) for name in "abcd"))
    for name in "ab":
        answers_500(story, name)
    assert healths(story) == {"a": "ejected", "b": "ejected", "c": "ready", "d": "ready"}
    on_c, on_d = story.sent(), story.sent()
    waiting = [story.arrive()[0] for _ in range(2)]
    for made in (on_c, on_d):
        story.fail(made, UNREACHABLE, sent=False)
    assert [healths(story)[name] for name in "ab"] == ["ready", "ready"]
    assert {made.endpoint for made in (*waiting, on_c, on_d)} >= {story.at("a"), story.at("b")}
    assert sum(made.endpoint is not None for made in (*waiting, on_c, on_d)) == 2


def test_those_ejected_for_500s_come_back_when_one_that_is_paused_is_found_dead() -> None:
    story = Story(endpoint("a", limit=9), endpoint("b", limit=3))
    answers_500(story, "a")
    for made in [story.sent() for _ in range(3)]:
        story.end(made, CUT)  # the first one pauses it, so it was out of the pick when the third ejected it
    assert healths(story) == {"a": "ready", "b": "ejected"}
    assert story.sent().endpoint is story.at("a")


def test_those_ejected_for_500s_come_back_when_a_table_takes_the_others_away() -> None:
    story = Story(endpoint("a", limit=9), endpoint("b", limit=1))
    answers_500(story, "a")
    on_b, waiting = story.sent(), story.arrive()[0]
    story.tell(endpoint("a", limit=9), endpoint("b", limit=1, intent="draining"), ready=False)
    assert story.started() == [waiting]
    assert waiting.endpoint is story.at("a")
    story.end(on_b)


def test_who_is_tried_with_one_request_and_answers_500_is_kept_when_nobody_else_is_ready() -> None:
    story = Story(endpoint("a", limit=9))
    story.end(story.sent(), UNREACHABLE)
    story.later(1)
    trial = story.sent()
    assert story.at("a").health == "half-open"
    waiting, verdict = story.arrive()
    assert verdict == QUEUED
    story.end(trial, SERVER_ERROR)
    assert story.at("a").health == "ready"
    assert story.started() == [waiting]


def test_who_is_tried_with_one_request_and_answers_500_stays_out_while_enough_others_are_ready() -> None:
    story = Story(endpoint("a", limit=9), endpoint("b", limit=9))
    answers_500(story, "a")
    story.later(1)
    assert story.at("a").health == "half-open"
    answers_500(story, "a", times=1)
    assert healths(story) == {"a": "ejected", "b": "ready"}


def test_one_that_its_active_probe_finds_dead_does_not_come_back_until_it_answers_again() -> None:
    story = Story(endpoint("a", limit=9), endpoint("b", limit=9))
    answers_500(story, "a")
    story.dispatcher.probed("a", False, story.now)
    story.fail(story.sent(), UNREACHABLE, sent=False)
    assert healths(story) == {"a": "ejected", "b": "ejected"}
    story.dispatcher.probed("a", True, story.now)
    assert story.at("a").health == "ready"
    assert len(story.started()) == 1


def test_one_that_stopped_answering_after_its_500s_does_not_come_back() -> None:
    story = Story(endpoint("a", limit=6), endpoint("b", limit=1))
    held = [story.sent() for _ in range(7)]
    on_a = [made for made in held if made.endpoint is story.at("a")]
    (on_b,) = set(held) - set(on_a)
    for made in on_a[:3]:
        story.end(made, SERVER_ERROR)
    assert story.at("a").health == "ejected"
    for made in on_a[3:]:
        story.end(made, TIMEOUT)
    story.fail(on_b, UNREACHABLE, sent=False)
    assert healths(story) == {"a": "ejected", "b": "ejected"}
