"""Policies beside the default: prefix, session, round-robin, prompts by length, and the ring they hang on."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from router.core.affinity import Ring, hash_of
from router.core.dispatcher import QUEUED
from router.core.endpoints import SUCCESS, Endpoint
from router.core.picking import POLICIES
from router.core.requests import Request
from router.core.upkeep import AHEAD_MAX
from router.errors import BadTable
from tests.router.core.story import Story, endpoint

NAMES = tuple("abcdefgh")


def story(policy: str, *rows: dict[str, Any], seed: int = 1, **routing: Any) -> Story:
    rows = rows or tuple(endpoint(name, limit=16) for name in NAMES)
    made = Story(*rows, routing={"policy": policy, **routing}, seed=seed)
    made.later(60)
    return made


def home(at: Story, **said: Any) -> Endpoint:
    """Where one request goes that ends at once."""
    made = at.sent(**said)
    assert made.endpoint is not None
    where = made.endpoint
    at.end(made, SUCCESS)
    return where


@pytest.mark.parametrize(
    "said", [lambda n: {"key": hash_of(b"%d" % n)}, lambda n: {"fields": {"x-session-id": f"s{n}"}}]
)
def test_equal_keys_meet_and_different_ones_spread(said: Any) -> None:
    policy = "prefix" if "key" in said(0) else "session"
    one, other = story(policy), story(policy, seed=2)
    homes = [home(one, **said(n)) for n in range(400)]
    assert [each.id for each in homes] == [home(one, **said(n)).id for n in range(400)]
    assert [each.id for each in homes] == [home(other, **said(n)).id for n in range(400)]  # another router
    counts = Counter(each.id for each in homes)
    assert set(counts) == set(NAMES)
    assert max(counts.values()) < 3 * 400 / 8


def test_when_an_endpoint_goes_only_its_keys_move_and_when_it_is_ejected_too() -> None:
    at = story("session")
    said = [{"fields": {"x-session-id": f"s{n}"}} for n in range(300)]
    before = [home(at, **each).id for each in said]
    at.dispatcher.probed("c", False, at.now)
    for _ in range(3):
        at.dispatcher.probed("c", False, at.now)
    assert at.at("c").health == "ejected"
    out = [home(at, **each).id for each in said]
    assert all((a == b) == (a != "c") for a, b in zip(before, out, strict=True))
    at.tell(*(endpoint(name, limit=16) for name in NAMES if name != "c"), routing={"policy": "session"})
    assert [home(at, **each).id for each in said] == out


def test_keys_go_by_capacity() -> None:
    rows = [endpoint(name, limit=64, capacity=7.0 if name == "a" else 1.0) for name in NAMES]
    at = story("prefix", *rows)
    counts = Counter(home(at, key=hash_of(b"%d" % n)).id for n in range(2000))
    assert counts["a"] / 2000 == pytest.approx(0.5, rel=0.2)


def test_a_prefix_stays_home_until_home_is_much_busier_than_the_others() -> None:
    at = story("prefix")
    held = [at.sent(key=42) for _ in range(8)]
    assert len({made.endpoint for made in held}) == 1  # up to half of its limit nothing is gained elsewhere
    more = [at.sent(key=42) for _ in range(16)]
    where = Counter(made.endpoint.id for made in [*held, *more] if made.endpoint)
    assert max(where.values()) == 8
    assert len(where) == 3  # and then its second and third home, not everywhere


def test_a_session_stays_home_while_there_is_room_at_all() -> None:
    at = story("session")
    held = [at.sent(fields={"x-session-id": "s"}) for _ in range(17)]
    where = Counter(made.endpoint.id for made in held if made.endpoint)
    assert sorted(where.values()) == [1, 16]


def test_the_sessions_header_is_the_tables_to_name_and_without_one_the_load_decides() -> None:
    at = story("session", session={"header": "X-Chat"})
    assert len({home(at, fields={"x-chat": "s"}) for _ in range(20)}) == 1
    assert len({home(at) for _ in range(50)}) > 3
    assert len({home(at, fields={"x-chat": ""}) for _ in range(50)}) > 3
    by_prefix = story("prefix")
    assert len({home(by_prefix, key=None) for _ in range(50)}) > 3


def test_turns_are_taken_in_order_and_by_capacity() -> None:
    at = story("round-robin")
    first = [home(at).id for _ in range(8)]
    assert sorted(first) == list(NAMES)
    assert [home(at).id for _ in range(8)] == first
    mixed = story("round-robin", endpoint("small", limit=9), endpoint("large", limit=63, capacity=7.0))
    counts = Counter(home(mixed).id for _ in range(800))
    assert counts == {"small": 100, "large": 700}


def test_a_full_endpoint_loses_its_turn_and_a_new_one_does_not_catch_up() -> None:
    rows = [endpoint("a", limit=1), endpoint("b", limit=50), endpoint("c", limit=50)]
    at = story("round-robin", *rows)
    held = [at.sent() for _ in range(21)]
    assert Counter(made.endpoint.id for made in held if made.endpoint) == {"a": 1, "b": 10, "c": 10}
    at.tell(*rows, endpoint("d", limit=50), routing={"policy": "round-robin", "ramp_s": 0})
    counts = Counter(at.sent().endpoint.id for _ in range(30))  # type: ignore[union-attr]  # all are sent
    assert counts["d"] <= 11


@pytest.mark.parametrize("policy", list(POLICIES))
def test_whatever_the_policy_the_rules_hold(policy: str) -> None:
    """Never above a limit, never where it failed before, the last slot is found, and then the queue."""
    at = story(policy, *(endpoint(name, limit=2) for name in "abc"), retries={"idempotent": True})
    made = [at.sent(key=7, fields={"x-session-id": "s"}) for _ in range(6)]
    assert Counter(each.endpoint.id for each in made if each.endpoint) == {"a": 2, "b": 2, "c": 2}
    waiting, verdict = at.arrive(key=7, fields={"x-session-id": "s"})
    assert verdict == QUEUED
    at.end(made[3])
    assert at.started() == [waiting]
    for each in (*made[:3], *made[4:], waiting):
        at.end(each)
    first = at.sent(key=7, fields={"x-session-id": "s"})
    gone = first.endpoint
    assert at.fail(first, 6, sent=True) is not gone


def small_and_large(**large: Any) -> Story:
    rows = [endpoint("small", limit=2, max_input_tokens=1000), endpoint("large", limit=2, **large)]
    return story("least-load", *rows)


def test_long_prompts_are_kept_off_small_variants() -> None:
    at = small_and_large()
    long = [at.sent(tokens_in=5000) for _ in range(2)]
    assert all(made.endpoint is at.at("large") for made in long)
    waiting, verdict = at.arrive(tokens_in=5000)
    assert verdict == QUEUED
    assert at.sent(tokens_in=10).endpoint is at.at("small")  # it does not wait behind the long one
    behind = [at.arrive(tokens_in=5000)[0] for _ in range(2)]
    assert at.sent(tokens_in=1000).endpoint is at.at("small")
    short = at.arrive(tokens_in=10)[0]
    at.end(long[0])
    assert at.started() == [waiting]
    at.end(long[1])
    assert at.started() == [behind[0]]
    report = at.dispatcher.report(at.now).models["m"]
    assert report.queued == 2
    at.later(31)
    assert {made for made, _ in at.effects()[1]} == {behind[1], short}


def test_short_prompts_pass_long_ones_that_wait_in_line() -> None:
    at = small_and_large()
    held = [at.sent(tokens_in=5000), at.sent(tokens_in=5000), at.sent(), at.sent()]
    long = at.arrive(tokens_in=5000)[0]
    short = at.arrive()[0]
    at.end(held[2])
    assert at.started() == [short]
    at.end(held[0])
    assert at.started() == [long]


def test_a_prompt_longer_than_any_takes_goes_to_the_largest_which_says_so_itself() -> None:
    at = small_and_large(max_input_tokens=8000)
    assert at.sent(tokens_in=9000).endpoint is at.at("large")


def test_a_ring_of_a_thousand_is_built_once_and_walked_quickly() -> None:
    rows = [endpoint(f"e{n}", limit=4) for n in range(300)]
    at = story("prefix", *rows)
    home(at, key=1)
    (model,) = at.dispatcher.model_states()
    ring = model.candidates._ring
    assert isinstance(ring, Ring)
    at.dispatcher.probed("e1", True, at.now)
    at.tell(*rows, routing={"policy": "prefix"})
    home(at, key=1)
    assert model.candidates._ring is ring
    assert len(list(itertools.islice(ring.walk(5), 100))) == 16


def test_an_unknown_policy_is_refused_with_those_allowed() -> None:
    with pytest.raises(BadTable, match="policy"):
        Story(endpoint("a"), routing={"policy": "random"})


def test_a_request_of_the_default_kind_has_nothing_to_tell() -> None:
    made = Request()
    assert (made.patience_s, made.field("x"), made.prefix_key()) == (None, None, None)


@pytest.mark.parametrize("how", ["the long one leaves", "one ahead leaves", "the long one is evicted"])
def test_when_a_long_prompt_gives_up_the_short_ones_behind_it_go_on(how: str) -> None:
    rows = [endpoint("small", limit=1, max_input_tokens=100), endpoint("large", limit=1, max_input_tokens=1000)]
    at = Story(*rows, routing={"queue": {"timeout_s": 1000}})
    busy = [at.sent(tokens_in=500), at.sent(tokens_in=10)]
    ahead = [at.arrive(tokens_in=500)[0] for _ in range(AHEAD_MAX)]
    at.end(busy[1])
    assert at.started() == []
    busy[1] = at.sent(tokens_in=10)
    long = at.arrive(tokens_in=500, patience_s=5.0)[0]
    short = at.arrive(tokens_in=10)[0]
    at.end(busy[1])
    assert at.started() == []  # nobody passes any more
    if how == "the long one leaves":
        at.dispatcher.left(long, at.now)
    elif how == "one ahead leaves":
        at.dispatcher.left(ahead[3], at.now)
    else:
        at.later(6)
    assert at.started() == [short]
