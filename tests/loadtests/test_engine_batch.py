"""Continuous batching told as time stories; no loop, no sockets."""

from __future__ import annotations

import pytest

from loadtests.engine_batch import Batch, Generation, Rates


def batch(slots: int = 2, slowdown: float = 0.0) -> Batch:
    return Batch(Rates(slots=slots, prefill_tokens_per_s=100.0, decode_tokens_per_s=10.0, slowdown=slowdown))


def generation(input_tokens: int = 50, output_tokens: int = 3) -> Generation:
    return Generation(input_tokens=input_tokens, output_tokens=output_tokens, arrived_s=0.0)


def test_one_request_prefills_then_decodes() -> None:
    world, one = batch(), generation()
    world.add(one, 10.0)
    assert world.next_due() == 10.5
    assert world.advance(10.49) == {}
    assert world.advance(10.5) == {one: 1}
    assert world.next_due() == pytest.approx(10.6)
    assert world.advance(10.7001) == {one: 2}
    assert one.finished
    assert (one.started_s, one.first_token_s) == (10.0, 10.5)
    assert (world.running, world.waiting, world.next_due()) == (0, 0, None)


def test_the_third_waits_for_a_slot_and_takes_it_when_it_falls_free_not_when_asked() -> None:
    world, rows = batch(), [generation(), generation(), generation()]
    for row in rows:
        world.add(row, 0.0)
    assert (world.running, world.waiting) == (2, 1)
    # Asked late: everything up to 5 s in one go. The third started at 0.7 s, when the first ended.
    assert world.advance(5.0) == {rows[0]: 3, rows[1]: 3, rows[2]: 3}
    assert rows[2].started_s == pytest.approx(0.7)
    assert rows[2].first_token_s == pytest.approx(1.2)


def test_tokens_of_all_running_come_in_the_order_they_fall_due() -> None:
    world, slow, quick = batch(), generation(input_tokens=100), generation(input_tokens=1)
    world.add(slow, 0.0)
    world.add(quick, 0.0)
    assert list(world.advance(1.0)) == [quick, slow]


def test_one_that_leaves_frees_its_slot_at_once() -> None:
    world, rows = batch(slots=1), [generation(), generation()]
    for row in rows:
        world.add(row, 0.0)
    assert world.leave(rows[0], 0.2)
    assert rows[1].started_s == 0.2
    assert world.next_due() == pytest.approx(0.7)
    assert not world.leave(rows[0], 0.3)


def test_one_that_leaves_the_line_never_runs() -> None:
    world, rows = batch(slots=1), [generation(), generation()]
    for row in rows:
        world.add(row, 0.0)
    assert world.leave(rows[1], 0.1)
    assert rows[1].started_s is None
    assert (world.running, world.waiting) == (1, 0)


@pytest.mark.parametrize(
    ("slowdown", "full", "between_s"), [(0.0, 4, 0.1), (1.0, 1, 0.1), (1.0, 4, 0.2), (3.0, 4, 0.4)]
)
def test_a_fuller_batch_is_slower_as_asked(slowdown: float, full: int, between_s: float) -> None:
    world = batch(slots=4, slowdown=slowdown)
    rows = [generation() for _ in range(full)]
    for row in rows:
        world.add(row, 0.0)
    world.advance(0.5)
    assert world.next_due() == pytest.approx(0.5 + between_s)


def test_standing_still_puts_everything_off() -> None:
    world, one = batch(), generation()
    world.add(one, 0.0)
    world.shift(2.0)
    assert world.next_due() == 2.5


def test_the_cache_holds_prompts_and_what_was_given() -> None:
    world = batch()
    world.add(generation(), 0.0)
    world.add(generation(input_tokens=20), 0.0)
    assert world.tokens_held == 70
    world.advance(0.5)
    assert world.tokens_held == 50 + 1 + 0  # the short one gave its three tokens at 0.2, 0.3 and 0.4 s and is gone


def test_all_work_is_done_however_it_arrives() -> None:
    world, rows = batch(slots=3), [generation(input_tokens=n, output_tokens=1 + n % 5) for n in range(1, 40)]
    given: dict[Generation, int] = {}
    for number, row in enumerate(rows):
        world.add(row, number * 0.05)
        for key, count in world.advance(number * 0.05).items():
            given[key] = given.get(key, 0) + count
        assert world.running <= 3
        assert world.waiting == 0 or world.running == 3
    for key, count in world.advance(1e6).items():
        given[key] = given.get(key, 0) + count
    assert given == {row: row.output_tokens for row in rows}
