"""The fluid queue against one request after another, and how load and policy are brought together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.backtest_world import FluidQueue, Setting, default_policy, recent_work, world_of
from loadtests.trace import TraceError
from tests.loadtests.backtest_loads import daily, policy

STEP_S = 15.0
steps = st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 25)), min_size=1, max_size=40)


def played(rows: list[tuple[float, int]], queue_s: float = 5.0, timeout_s: float = 30.0) -> list[tuple[float, ...]]:
    """(late, evicted, backlog) of each step."""
    demand = np.array([demand for demand, _ in rows])
    recent = recent_work(demand, STEP_S, timeout_s)
    queue = FluidQueue(STEP_S, queue_s, timeout_s)
    return [
        (*queue.step(float(asked), float(capacity), float(last)), queue.backlog)
        for (asked, capacity), last in zip(rows, recent, strict=True)
    ]


def one_by_one(rows: list[tuple[float, int]], parts: int, timeout_s: float = 30.0) -> list[tuple[float, ...]]:
    """The same by sending a step's load as `parts` equal requests, one after another, each served in its turn."""
    queue: list[list[float]] = []  # [work left, 1 if late]
    results: list[tuple[float, ...]] = []
    for asked, capacity in rows:
        size, gap_s, late, gone = asked * STEP_S / parts, STEP_S / parts, 0.0, 0.0
        while queue and sum(left for left, _ in queue) > capacity * timeout_s + 1e-6:
            left, was_late = queue.pop()
            late, gone = late + left * (1 - was_late), gone + left
        waiting = sum(left for left, _ in queue)
        for _ in range(parts):
            free = capacity * gap_s
            while queue and free > 0:
                done = min(free, queue[0][0])
                queue[0][0] -= done
                free, waiting = free - done, waiting - done
                if queue[0][0] <= 1e-12:
                    del queue[0]
            is_late = waiting > 5.0 * capacity
            late += size * is_late
            if waiting + size > capacity * timeout_s:
                gone += size
            else:
                queue.append([size, float(is_late)])
                waiting += size
        results.append((late, gone, waiting))
    return results


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(11, 13)), min_size=1, max_size=8))
def test_the_flow_is_what_many_small_requests_are(steps: list[tuple[float, int]]) -> None:
    # A request is at most 0.75 replica-seconds here; a few of them may fall on either side of a bound.
    for flow, requests in zip(played(steps), one_by_one(steps, parts=600), strict=True):
        assert flow == pytest.approx(requests, abs=3.0)


@settings(max_examples=200, deadline=None)
@given(steps=steps)
def test_work_is_neither_lost_nor_made(steps: list[tuple[float, int]]) -> None:
    before = total_late = total_came = 0.0
    for (asked, capacity), (late, evicted, backlog) in zip(steps, played(steps), strict=True):
        came = asked * STEP_S
        served = before + came - evicted - backlog
        assert -1e-9 <= served <= capacity * STEP_S + 1e-6
        assert min(late, evicted, backlog) >= 0.0
        total_late, total_came, before = total_late + late, total_came + came, backlog
        assert total_late <= total_came * (1 + 1e-9) + 1e-9


@settings(max_examples=200, deadline=None)
@given(steps=steps)
def test_whatever_is_evicted_is_late(steps: list[tuple[float, int]]) -> None:
    rows = played(steps)
    assert sum(evicted for _, evicted, _ in rows) <= sum(late for late, _, _ in rows) + 1e-6


@settings(max_examples=100, deadline=None)
@given(steps=steps, place=st.integers(0, 39))
def test_a_replica_more_never_makes_more_wait(steps: list[tuple[float, int]], place: int) -> None:
    more = [(asked, capacity + (index == place)) for index, (asked, capacity) in enumerate(steps)]
    for less, grown in zip(played(steps, timeout_s=1e9), played(more, timeout_s=1e9), strict=True):
        assert grown[2] <= less[2] + 1e-9


def test_a_story_of_a_queue() -> None:
    rows = [(20.0, 20), (22.0, 20), (30.0, 20), (10.0, 20), (10.0, 20), (40.0, 20), (90.0, 20), (10.0, 0), (10.0, 0)]
    story = played(rows)
    assert story[0] == (0.0, 0.0, 0.0)
    # 2 too many for 15 s: 30 replica-seconds wait, 1.5 s on 20 replicas, nobody is late.
    assert story[1] == (0.0, 0.0, 30.0)
    # Then 10 too many: after 7 s 100 are exceeded, the last 8 of 15 s are late.
    assert story[2] == pytest.approx((30 * 8, 0.0, 180.0))
    # It drains by 10 a second: late until 100 are reached, after 8 s.
    assert story[3] == pytest.approx((10 * 8, 0.0, 30.0))
    assert story[4] == (0.0, 0.0, 0.0)
    assert story[5] == pytest.approx((40 * 10, 0.0, 300.0))
    # 600 fit into a queue of 30 s: of 1050 more 750 leave.
    assert story[6] == pytest.approx((90 * 15, 750.0, 600.0))
    # Nobody ready: what came in the last 30 s may wait on; all of it is late already.
    assert story[7] == (150.0, 0.0, 750.0)
    assert story[8] == pytest.approx((150.0, 600.0, 300.0))


def test_when_capacity_falls_those_who_must_leave_turn_late_once() -> None:
    late, evicted, backlog = played([(25.0, 20), (0.0, 1)])[1]
    # 75 replica-seconds wait on time; one replica keeps 30 of them within its queue of 30 s.
    assert (late, evicted, backlog) == (45.0, 45.0, 15.0)


def test_the_judged_span_needs_twenty_replicas_on_average() -> None:
    world = world_of(daily(24.0), policy(), Setting(judge_from_day=0.5))
    assert world.judged == 2880
    assert world.demand[world.judged :].mean() == pytest.approx(20.0)
    assert world.unit_per_s == pytest.approx(float(world.load.rate_per_s[2880:].mean()) / 20)
    # 40 requests at a time of 10 s each: a replica is shown to carry four a second.
    assert world.shown_per_s == 4.0


def test_the_load_as_it_is() -> None:
    world = world_of(daily(24.0, mean=40.0), policy(), Setting(replicas_mean=None, judge_from_day=0.0))
    assert world.unit_per_s == 4.0
    assert world.demand.tolist() == pytest.approx((world.load.rate_per_s / 4.0).tolist())


def test_more_load_than_capacity_was_chosen_for() -> None:
    one, two = (world_of(daily(24.0), policy(), Setting(load_factor=factor)) for factor in (1.0, 2.0))
    assert two.demand.tolist() == pytest.approx((2 * one.demand).tolist())
    assert two.unit_per_s == one.unit_per_s


def test_a_short_trace_is_judged_from_its_second_third() -> None:
    assert world_of(daily(24.0), policy(), Setting()).judged == 1920
    assert world_of(daily(96.0), policy(), Setting()).judged == 2 * 5760


def test_what_cannot_be_judged() -> None:
    with pytest.raises(TraceError, match=r"judging from day 2 leaves nothing of a trace of 1\.00 days"):
        world_of(daily(24.0), policy(), Setting(judge_from_day=2.0))
    with pytest.raises(TraceError, match="no load in the judged span"):
        world_of(daily(24.0, mean=0.0), policy(), Setting())


def test_start_times_are_fixed_and_the_tick_is_the_step() -> None:
    world = world_of(daily(24.0), policy(), Setting(start_time_s=300.0))
    assert (world.start_times["gpu"].p50_s, world.start_times["gpu"].p90_s, world.policy.tick_s) == (300.0, 300.0, 15.0)
    assert world_of(daily(24.0), policy(), Setting()).start_time_s == 120.0


def test_bounds_that_cannot_hold_the_scaled_load_are_lifted_and_said() -> None:
    tight = policy(budget={"maxGPUs": 8}).model_copy()
    variant = tight.spec.variants[0].model_copy(update={"max_replicas": 4})
    tight = tight.model_copy(update={"spec": tight.spec.model_copy(update={"variants": (variant,), "mode": "Observe"})})
    world = world_of(daily(24.0), tight, Setting())
    assert world.policy.spec.variants[0].max_replicas == 200
    assert world.policy.spec.budget.max_gpus is None
    assert "mode Observe is played as Auto" in world.notes
    assert any("maxReplicas hold 4 replicas" in note for note in world.notes)
    kept = world_of(daily(24.0), tight, Setting(replicas_mean=None)).policy.spec
    assert (kept.variants[0].max_replicas, kept.budget.max_gpus) == (4, 8)


def test_the_default_policy_is_a_policy() -> None:
    assert default_policy(120.0).spec.variants[0].start_time.p90_seconds == 120.0
