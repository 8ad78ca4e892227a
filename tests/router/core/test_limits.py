"""Limits corrected by what is seen of an endpoint, the ramp of a fresh one, endpoints that say that they are full, and
silence: time stories."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from router.core.dispatcher import QUEUED
from router.core.endpoints import CUT, SUCCESS, TIMEOUT, Endpoint
from router.model import EngineLoad
from tests.router.core.story import Story, endpoint


def limits(story: Story) -> dict[str, int]:
    return {each.id: each.limit for each in story.dispatcher.endpoints.values()}


def read(story: Story, name: str = "a", **values: Any) -> None:
    """The engine's own metrics are read, two seconds after the last time."""
    story.later(2)
    story.dispatcher.engine_read(name, EngineLoad(**values), story.now)


@pytest.mark.fault("R22")
def test_an_engine_that_keeps_requests_waiting_gets_fewer_and_all_of_them_again_later() -> None:
    story = Story(endpoint("a", limit=100))
    read(story, waiting=20.0)
    assert limits(story) == {"a": 100}  # once may be chance
    for limit in (90, 81, 73):
        read(story, waiting=20.0)
        assert limits(story) == {"a": limit}
    for _ in range(20):
        read(story, waiting=20.0)
    assert limits(story) == {"a": 25}  # never below a quarter of what was told
    for _ in range(30):
        read(story, waiting=0.0)
    assert limits(story) == {"a": 100}


@pytest.mark.fault("R22")
@pytest.mark.parametrize("absent", [{}, {"running": 3.0}, {"waiting": None, "kv": None}])
def test_what_an_engine_does_not_say_corrects_nothing(absent: dict[str, Any]) -> None:
    story = Story(endpoint("a", limit=100))
    for _ in range(10):
        read(story, **absent)
    assert limits(story) == {"a": 100}
    assert story.dispatcher.report(story.now).endpoints["a"].engine.waiting is None


@pytest.mark.fault("R22")
def test_when_the_metrics_are_gone_our_own_counts_go_on() -> None:
    story = Story(endpoint("a", limit=100))
    for _ in range(10):
        read(story, waiting=9.0)
    story.dispatcher.engine_read("a", EngineLoad(waiting=9.0, age_s=60.0), story.now)
    before = limits(story)["a"]
    for _ in range(40):
        story.later(1)
    assert before < 100
    assert limits(story) == {"a": 100}
    for _ in range(100):
        story.sent()
    assert story.arrive()[1] == QUEUED


def test_a_full_cache_takes_the_limit_down() -> None:
    story = Story(endpoint("a", limit=100))
    read(story, kv=0.94)
    assert limits(story) == {"a": 100}
    read(story, kv=0.96)
    assert limits(story) == {"a": 90}


def test_a_limit_that_comes_back_starts_who_waits() -> None:
    story = Story(endpoint("a", limit=10))
    for _ in range(4):
        read(story, waiting=3.0)
    assert limits(story) == {"a": 7}
    for _ in range(7):
        story.sent()
    waiting = story.arrive()[0]
    read(story, waiting=0.0)
    story.later(2)
    story.later(2)
    assert story.started() == [waiting]


def stream(story: Story, after_s: float, count: int = 5) -> None:
    """So many streams begin, each `after_s` after it was sent, and end."""
    made = [story.sent() for _ in range(count)]
    story.now += after_s
    for each in made:
        assert each.endpoint is not None
        story.dispatcher.first_event(each.endpoint, each, story.now)
        story.end(each)


def test_first_events_that_come_late_take_the_limit_down_when_it_is_busy() -> None:
    story = Story(endpoint("a", limit=20))
    for _ in range(20):
        stream(story, 0.1)
    held = [story.sent() for _ in range(10)]
    for _ in range(20):
        stream(story, 0.28)
    assert limits(story) == {"a": 20}
    looks = 0
    while limits(story) == {"a": 20}:  # may be a row of long prompts
        stream(story, 0.9)
        looks += 1
    assert 10 <= looks <= 12
    assert limits(story) == {"a": 18}
    stream(story, 0.9)
    stream(story, 0.9)
    stream(story, 0.9)
    assert limits(story)["a"] <= 17
    for each in held:
        story.end(each)
    for _ in range(20):
        story.later(1)
    for _ in range(20):
        stream(story, 0.9)  # long prompts on an idle engine: it is not overloaded
    assert limits(story) == {"a": 20}


@pytest.mark.parametrize("long_share", [0.5, 0.8, 0.9, 0.97])
def test_an_engine_whose_prompts_are_mostly_long_is_not_taken_for_a_late_one(long_share: float) -> None:
    """Half full all the time, first events after 0.1 s or 1 s: whatever the mix, it keeps its limit."""
    story = Story(endpoint("a", limit=20))
    rng = random.Random(3)
    for _ in range(11):
        story.sent()
    told = 0
    for _ in range(4000):
        story.later(0.05)
        made = story.sent()
        made.started_at -= 1.0 if rng.random() < long_share else 0.1
        assert made.endpoint is not None
        story.dispatcher.first_event(made.endpoint, made, story.now)
        story.end(made)
        told += limits(story)["a"]
    assert told / 4000 > 18


def test_one_quick_stream_of_five_says_that_the_engine_is_well() -> None:
    story = Story(endpoint("a", limit=10))
    for _ in range(20):
        stream(story, 0.1)
    for _ in range(5):
        story.sent()
    for _ in range(40):
        stream(story, 3.0, count=4)
        stream(story, 0.1, count=1)
    assert limits(story) == {"a": 10}


@pytest.mark.fault("R6")
def test_a_full_engine_is_spared_for_as_long_as_it_asks_and_the_request_goes_elsewhere() -> None:
    story = Story(endpoint("a", limit=8), endpoint("b", limit=8))
    made = story.sent()
    first = made.endpoint
    assert first is not None
    verdict = story.dispatcher.full(made, 503, 4.0, story.now)
    assert isinstance(verdict, Endpoint)
    assert verdict is not first
    assert (first.health, first.in_flight, verdict.in_flight) == ("ready", 0, 1)
    assert first.limit == 2  # it held nothing else: never below a quarter
    assert all(story.sent().endpoint is verdict for _ in range(7))
    assert story.arrive()[1] == QUEUED
    story.later(3.9)
    assert story.started() == []
    story.later(0.2)
    assert len(story.started()) == 1
    for _ in range(20):
        story.later(1)
    assert first.limit == 8  # it recovers by itself
    assert first.outcomes == {"saturated": 1}


@pytest.mark.fault("R6")
def test_the_only_engine_says_full_and_the_request_waits_for_it() -> None:
    story = Story(endpoint("a", limit=8))
    made = story.sent()
    assert story.dispatcher.full(made, 429, None, story.now) == QUEUED
    story.later(0.3)
    assert story.started() == [made]
    assert story.dispatcher.full(made, 429, 300.0, story.now) == QUEUED
    story.later(1.1)  # a 429 may be about one client only: it holds nobody for long
    assert story.started() == [made]
    assert story.dispatcher.full(made, 429, None, story.now) is None  # the third attempt: the answer is passed on
    story.end(made, 2)
    assert story.at("a").in_flight == 0
    assert story.at("a").health == "ready"


@pytest.mark.fault("R6")
def test_refusals_of_full_engines_spend_the_retry_budget() -> None:
    story = Story(endpoint("a", limit=100), endpoint("b", limit=100), routing={"retries": {"budget_percent": 0}})
    made = story.sent()
    assert story.dispatcher.full(made, 503, None, story.now) is None


@pytest.mark.fault("R21")
def test_a_fresh_endpoint_is_given_its_share_step_by_step() -> None:
    """Two of equal capacity, the second begins to serve: what it is given grows from a tenth to its half over the ramp."""
    old = endpoint("old", limit=1000, capacity=100)
    story = Story(old, routing={"ramp_s": 10})
    story.later(60)
    held = [story.sent() for _ in range(200)]
    story.tell(old, endpoint("new", limit=1000, capacity=100), routing={"ramp_s": 10})
    rng = random.Random(4)
    shares = []
    for _ in range(12):
        got = 0
        for _ in range(200):
            story.later(0.005)
            gone = held.pop(rng.randrange(len(held)))
            story.end(gone)
            held.append(story.sent())
            got += held[-1].endpoint is story.at("new")
        shares.append(story.at("new").in_flight / 200)
    assert shares[0] < 0.25
    assert shares == sorted(shares) or max(a - b for a, b in pairwise(shares)) < 0.05
    assert 0.4 < shares[-1] < 0.6


@pytest.mark.fault("R21")
def test_a_fresh_endpoint_takes_what_it_can_hold_when_requests_wait() -> None:
    story = Story(endpoint("old", limit=2))
    for _ in range(2):
        story.sent()
    waiting = [story.arrive()[0] for _ in range(6)]
    story.tell(endpoint("old", limit=2), endpoint("new", limit=4))
    assert story.started() == waiting[:4]
    assert story.at("new").in_flight == 4


@pytest.mark.fault("R7")
def test_an_endpoint_whose_streams_all_went_silent_gets_nothing_until_it_is_heard() -> None:
    story = Story(endpoint("a"), endpoint("b"), routing={"timeouts": {"progress_s": 20}})
    a = story.at("a")
    for _ in range(22):
        story.later(1)
        story.dispatcher.streaming(story.at("b"), story.now, story.now)
        story.dispatcher.streaming(a, 1001.0, story.now)
    assert (a.health, a.hung, story.at("b").health) == ("ejected", True, "ready")
    assert story.dispatcher.seq == 1
    assert all(story.sent().endpoint is story.at("b") for _ in range(2))
    waiting = story.arrive()[0]
    story.dispatcher.streaming(a, story.now, story.now)  # it was only paused
    assert (a.health, a.hung) == ("ready", False)
    assert story.started() == [waiting]


@pytest.mark.fault("R7")
def test_one_time_out_is_enough_when_others_waited_in_vain_too() -> None:
    story = Story(endpoint("a", limit=9))
    story.end(story.sent())
    story.later(1)
    made, other = story.sent(), story.sent()
    story.later(120)
    story.fail(made, TIMEOUT, sent=True)
    assert story.at("a").health == "ejected"
    story.fail(other, CUT, sent=True)


@pytest.mark.fault("R7")
@pytest.mark.parametrize("heard", [True, False])
def test_one_time_out_is_not_enough_when_it_may_be_the_request(heard: bool) -> None:
    story = Story(endpoint("a", limit=9))
    made = story.sent()
    if heard:
        other = story.sent()
        story.sent()
        story.later(60)
        story.end(other, SUCCESS)
    story.later(60)
    story.fail(made, TIMEOUT, sent=True)
    assert story.at("a").health == "ready"


@pytest.mark.fault("R7")
def test_an_endpoint_that_is_tried_again_is_well_when_its_stream_begins_not_only_when_it_ends() -> None:
    """An answer may take minutes: all others would wait for it."""
    story = Story(endpoint("a", limit=9))
    for _ in range(3):
        story.fail(story.sent(), CUT, sent=True)
        story.later(0.5)
    assert story.at("a").health == "ejected"
    story.later(1)
    probing, waiting = story.sent(), story.arrive()[0]
    assert (story.at("a").health, waiting.queued) == ("half-open", True)
    story.later(1)
    story.dispatcher.first_event(story.at("a"), probing, story.now)
    assert (story.at("a").health, story.started()) == ("ready", [waiting])


@pytest.mark.fault("R6")
@pytest.mark.parametrize(("status", "limit"), [(429, 7), (503, 2)])
def test_one_request_that_every_engine_refuses_spares_one_engine_not_all(status: int, limit: int) -> None:
    """It may be about that request: its client's quota, a model that is nowhere loaded."""
    story = Story(*(endpoint(name, limit=8) for name in "abc"))
    made = story.sent()
    for _ in range(2):
        assert isinstance(story.dispatcher.full(made, status, 9.0, story.now), Endpoint)
    assert story.dispatcher.full(made, status, 9.0, story.now) is None
    assert sorted(limits(story).values()) == [limit, 8, 8]
    assert sum(each.routable for each in story.dispatcher.endpoints.values()) == 2
    for _ in range(2):  # others are refused there too: now it is the engine
        story.dispatcher.full(story.sent(), status, 9.0, story.now)
    assert not any(each.routable for each in story.dispatcher.endpoints.values())


@pytest.mark.fault("R6")
def test_a_pool_that_is_full_as_a_whole_is_asked_again_within_a_second() -> None:
    """A long pause is honoured while at least half of the endpoints go on."""
    story = Story(*(endpoint(name, limit=8) for name in "abcd"), routing={"retries": {"max_attempts": 1}})
    for _ in range(8):
        made = story.sent() if any(each.routable for each in story.dispatcher.endpoints.values()) else None
        if made is not None:
            story.dispatcher.full(made, 503, 9.0, story.now)
            story.end(made, 2)
    paused = sorted(round(each.paused_until - story.now, 2) for each in story.dispatcher.endpoints.values())
    assert paused == [1.0, 1.0, 9.0, 9.0]
    alone = Story(endpoint("a", limit=8))
    alone.dispatcher.full(alone.sent(), 503, 9.0, alone.now)
    assert alone.at("a").paused_until == alone.now + 1


def test_a_429_takes_a_tenth_of_the_limit_and_a_503_all_but_what_it_holds() -> None:
    story = Story(endpoint("a", limit=100))
    held = [story.sent() for _ in range(41)]
    story.dispatcher.full(held[0], 429, None, story.now)
    assert limits(story) == {"a": 90}
    story.dispatcher.full(held[1], 503, None, story.now)
    assert limits(story) == {"a": 39}


def test_a_waiting_request_or_two_at_a_large_engine_are_the_jitter_of_its_scheduler() -> None:
    story = Story(endpoint("a", limit=100))
    for _ in range(10):
        read(story, waiting=4.0)
    assert limits(story) == {"a": 100}
    small = Story(endpoint("a", limit=16))
    for _ in range(3):
        read(small, waiting=1.0)
    assert limits(small) == {"a": 14}
