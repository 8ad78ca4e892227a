"""The retry ladder and its budget: time stories over the dispatcher."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.dispatcher import QUEUED
from router.core.endpoints import CUT, TIMEOUT, UNREACHABLE, Endpoint
from router.core.refusals import CUT as CUT_REFUSAL
from router.core.refusals import TIMED_OUT, Refusal
from router.core.retries import RetryBudget, attempt_id
from tests.router.core.story import Story, endpoint

IDEMPOTENT = {"retries": {"idempotent": True}}


def test_nothing_was_sent_so_it_goes_elsewhere_up_to_three_attempts() -> None:
    story = Story(*(endpoint(name) for name in "abcd"))
    made = story.sent()
    seen = [made.endpoint]
    for _ in range(2):
        verdict = story.fail(made, UNREACHABLE, sent=False)
        assert isinstance(verdict, Endpoint)
        assert verdict not in seen
        seen.append(verdict)
    verdict = story.fail(made, UNREACHABLE, sent=False)
    assert isinstance(verdict, Refusal)
    assert (verdict.status, verdict.code) == (502, "unreachable")
    assert all(at.in_flight == 0 for at in story.dispatcher.endpoints.values())


def test_sent_and_no_byte_back_is_not_sent_again_unless_the_policy_says_idempotent() -> None:
    story = Story(endpoint("a"), endpoint("b"))
    assert story.fail(story.sent(), CUT, sent=True) == CUT_REFUSAL
    story.later(0.2)
    story.tell(endpoint("a"), endpoint("b"), routing=IDEMPOTENT)
    made = story.sent()
    first = made.endpoint
    verdict = story.fail(made, CUT, sent=True)
    assert isinstance(verdict, Endpoint)
    assert verdict is not first
    assert made.attempts == 2


@pytest.mark.fault("R3")
@pytest.mark.parametrize("routing", [{}, IDEMPOTENT])
def test_one_that_is_merely_late_is_never_sent_again_for_its_engine_may_still_run_it(routing: dict[str, Any]) -> None:
    story = Story(endpoint("a"), endpoint("b"), routing=routing)
    assert story.fail(story.sent(), TIMEOUT, sent=True) == TIMED_OUT
    verdict = story.fail(story.sent(), TIMEOUT, sent=False)  # it was late with the connection: nothing was sent
    assert isinstance(verdict, Endpoint)


def test_a_retry_waits_at_the_head_while_the_other_endpoint_is_full() -> None:
    story = Story(endpoint("a", limit=1), endpoint("b", limit=1), routing=IDEMPOTENT)
    one, two = story.sent(), story.sent()
    behind, _ = story.arrive()
    tried = one.endpoint
    assert story.fail(one, CUT, sent=True) == QUEUED
    story.later(0.2)  # the pause after a cut
    assert story.started() == [behind]  # the slot that came free is of the endpoint that failed the first
    assert behind.endpoint is tried
    story.end(two)
    assert story.started() == [one]
    assert one.endpoint is not tried


def test_with_a_single_endpoint_that_is_still_routable_the_retry_may_go_there_again() -> None:
    story = Story(endpoint("a", limit=1), routing=IDEMPOTENT)
    made = story.sent()
    assert story.fail(made, TIMEOUT, sent=False) is story.at("a")


def test_after_a_cut_it_goes_there_again_only_after_the_pause() -> None:
    story = Story(endpoint("a", limit=1), routing=IDEMPOTENT)
    made = story.sent()
    assert story.fail(made, CUT, sent=True) == QUEUED
    story.later(0.2)
    assert story.started() == [made]
    assert made.endpoint is story.at("a")


def test_the_budget_bounds_retries_to_a_share_of_requests() -> None:
    budget = RetryBudget()
    assert [budget.spend(0, 20) for _ in range(11)] == [True] * 10 + [False]
    assert not budget.spend(4, 20)  # 4 requests give 0.8
    assert budget.spend(5, 20)
    assert not budget.spend(5, 20)
    assert not RetryBudget().spend(1000, 0)


def test_a_storm_of_dying_engines_spends_the_budget_once() -> None:
    routing = {"retries": {"idempotent": True, "budget_percent": 0.1, "max_attempts": 10}}
    story = Story(*(endpoint(name, limit=100) for name in "abcdefgh"), routing=routing)
    verdicts = []
    for _ in range(20):
        verdicts.append(story.fail(story.sent(), CUT, sent=True))
        story.later(0.2)
    assert sum(isinstance(verdict, Endpoint) for verdict in verdicts) == 10


def test_a_replay_keeps_the_slot_and_gets_the_next_number() -> None:
    story = Story(endpoint("a"))
    made = story.sent()
    story.dispatcher.replayed(made)
    assert (made.attempts, story.at("a").in_flight) == (2, 1)
    assert [attempt_id(b"x-1", number) for number in (1, 2, 3)] == [b"x-1", b"x-1-a2", b"x-1-a3"]


def test_a_client_that_leaves_between_attempts_leaves_nothing_behind() -> None:
    story = Story(endpoint("a"))
    made = story.sent()
    assert story.fail(made, UNREACHABLE, sent=False) == QUEUED
    story.dispatcher.left(made, story.now)
    story.dispatcher.left(made, story.now)
    story.later(1)
    assert story.started() == []
    assert story.dispatcher.report(story.now).models["m"].queued == 0
