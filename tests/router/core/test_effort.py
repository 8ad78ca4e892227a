"""Work and memory per event do not grow with tenants, endpoints, or how long requests wait: stories that count byte codes."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.dispatcher import QUEUED
from tests.router.core.story import Story, effort, endpoint

PATIENT: dict[str, Any] = {"queue": {"timeout_s": 1000, "max_requests": 10_000}}


def pool(size: int, routing: dict[str, Any] | None = None, **row: Any) -> Story:
    """So many ready endpoints with one slot each, their ramps over."""
    story = Story(
        *(endpoint(f"e{each}", limit=1, **row) for each in range(size)), routing={**PATIENT, **(routing or {})}
    )
    story.later(10)
    return story


def filled(story: Story) -> list[Any]:
    """Requests until one has to wait; gives those that run."""
    running: list[Any] = []
    while True:
        made, verdict = story.arrive()
        if verdict == QUEUED:
            return running
        running.append(made)


@pytest.mark.parametrize("policy", ["least-load", "prefix", "session", "round-robin"])
def test_a_freed_slot_of_a_full_pool_is_given_away_without_a_look_at_all_others(policy: str) -> None:
    def work(size: int) -> int:
        story = pool(size, {"policy": policy})
        running = filled(story)
        for _ in range(20):
            story.arrive(key=1, fields={"x-session-id": "s"})

        def ten_end() -> None:
            for each in running[:10]:
                story.end(each)

        return effort(ten_end)

    assert work(200) < 1.5 * work(20)


def test_long_prompts_that_wait_cost_those_that_arrive_and_end_little() -> None:
    def work(size: int, ahead: int) -> int:
        small = [endpoint(f"s{each}", limit=10, max_input_tokens=100) for each in range(size)]
        story = Story(*small, endpoint("large", limit=1, max_input_tokens=1000), routing=PATIENT)
        story.sent(tokens_in=500)
        for _ in range(ahead):
            assert story.arrive(tokens_in=500)[1] == QUEUED
        made = [story.sent() for _ in range(20)]

        def pass_by() -> None:
            for each in made:
                story.end(each)
            story.arrive(tokens_in=500)

        return effort(pass_by)

    assert work(200, 30) < 20 * 30 * 300 + 200 * 300


def test_an_endless_stream_of_tenants_costs_each_request_the_same() -> None:
    def work(tenants: int) -> int:
        story = pool(1, {"tenants": {}})
        (running,) = filled(story)
        for each in range(tenants):
            story.arrive(fields={"x-tenant-id": f"t{each}"})
            story.end(running)
            (running,) = story.started()

        def more() -> None:
            nonlocal running
            for each in range(200):
                story.arrive(fields={"x-tenant-id": f"t{each}"})
                story.end(running)
                (running,) = story.started()

        return effort(more)

    assert work(3000) < 1.5 * work(30)


@pytest.mark.fault("R24")
@pytest.mark.parametrize("routing", [{}, {"tenants": {}}])
def test_a_queue_that_is_never_empty_keeps_nobody_who_has_left_it(routing: dict[str, Any]) -> None:
    story = pool(1, routing)
    (running,) = filled(story)
    story.arrive()
    (model,) = story.dispatcher.model_states()
    for each in range(2000):
        story.end(running)
        (running,) = story.started()
        story.arrive(fields={"x-tenant-id": str(each % 3)})
        if not each % 10:
            story.later(0.25)
    (band,) = model.queue.bands
    kept = [len(tenant.line) + len(tenant.newest) for tenant in band.tenants.values()]
    assert sum(kept) < 500
    assert len(band._sizes) < 200
    assert model.queue.count == 2


def test_a_band_that_never_has_its_turn_keeps_nobody_who_was_evicted() -> None:
    story = pool(1, {"priorities": {}, "tenants": {}, "queue": {"timeout_s": 1.0}})
    running = story.sent()
    (model,) = story.dispatcher.model_states()
    for each in range(2000):
        story.arrive(fields={"x-priority": "system"})
        story.arrive(fields={"x-priority": "batch", "x-tenant-id": str(each)})
        story.end(running)
        (running,) = story.started()
        story.later(0.05)
        assert all(refusal.code == "queue_timeout" for refusal in story.refused())
    batch = model.queue.bands[2]
    assert sum(len(tenant.line) + len(tenant.newest) for tenant in batch.tenants.values()) == 2 * batch.waiting
    assert len(batch._sizes) + len(batch._turns) < 400


def test_endpoints_that_come_back_together_are_looked_at_together() -> None:
    def work(size: int) -> int:
        story = pool(size)
        for each in story.dispatcher.endpoints.values():
            each.paused_until = story.now + 0.1
        return effort(lambda: story.later(0.2))

    assert work(200) < 15 * work(20)


def test_further_answers_of_a_full_engine_change_nothing_for_the_others() -> None:
    def work(size: int) -> int:
        story = pool(size, {"retries": {"max_attempts": 1}})
        story.tell(*(endpoint(f"e{each}", limit=8) for each in range(size)), routing={"retries": {"max_attempts": 1}})
        made = [story.sent() for _ in range(3 * size)]
        there = [each for each in made if each.endpoint is made[0].endpoint]
        story.dispatcher.full(there[0], 503, 2.0, story.now)
        return effort(lambda: story.dispatcher.full(there[1], 503, 2.0, story.now))

    assert work(200) < 2 * work(20)


def test_a_table_that_is_sent_again_does_not_wake_for_a_drain_that_was_told() -> None:
    story = Story(endpoint("a"), endpoint("b"))
    made = story.sent()
    assert made.endpoint is not None
    name = made.endpoint.id
    other = "b" if name == "a" else "a"
    draining = endpoint(name, intent="draining")
    story.tell(draining, endpoint(other))
    before = story.wakes
    story.end(made)
    assert story.wakes == before + 1
    for _ in range(3):
        story.tell(draining, endpoint(other))
    assert story.wakes == before + 1
    story.tell(endpoint(name), endpoint(other))
    story.tell(draining, endpoint(other))
    assert story.wakes == before + 2  # taken back and drained again
