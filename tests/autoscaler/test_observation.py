"""What is known at a tick: stories of reports that come, stay away, come back and lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from autoscaler.model import Observation, Replica, Sample, StartTime
from autoscaler.observe.observation import Windows, fold
from autoscaler.policy import ScalingPolicy
from tests.builders import a_policy, a_replica, a_sample, at, variant_document

PANIC = {"behavior": {"panic": {"windowSeconds": 2, "stableWindowSeconds": 10}}}


class Story:
    """Ticks of one policy, each with a report or without."""

    def __init__(self, **spec: Any) -> None:
        self.policy: ScalingPolicy = a_policy(**{**PANIC, **spec})
        self.windows = Windows()

    def tick(self, second: float, sample: Sample | None, replicas: Sequence[Replica] = ()) -> Observation:
        self.windows, observation = fold(self.windows, sample, replicas, {}, self.policy, at(second))
        return observation

    def hear(self, second: float, *arrivals: float | None, **fields: Any) -> Observation:
        return self.tick(second, a_sample(at(second), arrivals, **fields))


def test_two_windows_in_requests_and_in_signal_units() -> None:
    story = Story(signal={"serviceSeconds": 4})
    story.hear(8, *[2.0] * 8)
    seen = story.hear(10, 6.0, 6.0, in_flight=3, queued=5, oldest_s=1.5, held_from_zero=0)
    assert [seen.stable_per_s, seen.panic_per_s] == pytest.approx([2.8, 6.0])
    assert [seen.demand, seen.panic_demand] == pytest.approx([11.2, 24.0])
    assert (seen.in_flight, seen.backlog, seen.oldest_s) == (3, 5, 1.5)
    assert (seen.trusted, seen.gaps) == (True, ())


def test_demand_for_a_request_rate_is_the_rate() -> None:
    seen = Story(signal={"type": "requestRate", "serviceSeconds": 4}).hear(1, 7.0)
    assert seen.demand == 7.0


def test_a_missing_second_is_not_zero() -> None:
    seen = Story().hear(4, 6.0, None, None, 6.0)
    assert seen.stable_per_s == 6.0
    assert (seen.trusted, seen.gaps) == (True, ("2 of the last 4 s are missing",))


def test_true_zero_from_a_living_source_is_zero() -> None:
    """A4: no traffic is a known load."""
    seen = Story().hear(3, 0.0, 0.0, 0.0)
    assert (seen.stable_per_s, seen.demand, seen.trusted) == (0.0, 0.0, True)


def test_before_the_first_report_nothing_is_known() -> None:
    seen = Story().tick(0, None)
    assert (seen.demand, seen.backlog, seen.trusted) == (None, None, False)
    assert seen.gaps == ("no router has reported load yet",)
    assert seen.service_s == 1.0


def test_a_report_without_a_whole_second_is_not_yet_a_load() -> None:
    seen = Story().hear(0.2)
    assert (seen.demand, seen.trusted, seen.gaps) == (None, False, ("no second of the last 10 s is known",))


def test_silence_holds_the_last_load_for_three_ticks_and_is_unknown_then() -> None:
    """A3: an outage of the metrics is never a zero."""
    story = Story()
    story.hear(10, *[5.0] * 10, in_flight=2, queued=1)
    for second in (11, 12, 13):
        seen = story.tick(second, None)
        assert (seen.demand, seen.backlog, seen.trusted) == (5.0, 1, True)
    seen = story.tick(14, None)
    assert (seen.demand, seen.panic_demand, seen.in_flight, seen.backlog) == (None, None, None, None)
    assert (seen.trusted, seen.gaps) == (False, ("no load report for 4 s",))
    back = story.hear(15, None, None, None, None, 7.0)
    assert back.trusted
    assert back.stable_per_s == pytest.approx((5 * 5.0 + 7.0) / 6)


def test_an_old_report_is_as_old_as_its_oldest_part() -> None:
    seen = Story().hear(10, 5.0, age_s=8.0)
    assert (seen.demand, seen.trusted, seen.gaps) == (None, False, ("no load report for 8 s",))


def test_a_report_of_some_routers_is_a_lower_bound() -> None:
    seen = Story().hear(10, 5.0, routers_missing=("http://b",))
    assert (seen.demand, seen.trusted) == (5.0, False)
    assert seen.gaps == ("no answer from http://b: the load is at least what the others saw",)


def test_seconds_that_only_some_routers_saw_are_no_load_to_scale_down_on() -> None:
    """Two routers with 5/s each; the second is silent for a while. What the first saw alone must not outlive that."""
    story = Story()
    story.hear(10, *[10.0] * 10)
    for second in range(11, 21):
        alone = story.hear(second, 5.0, routers_missing=("http://b",))
        assert not alone.trusted
    assert (alone.demand, alone.panic_demand) == (5.0, 5.0)
    for second in range(21, 25):
        back = story.hear(second, 10.0)
        assert (back.demand, back.trusted) == (10.0, False)
    assert back.gaps == (
        "6 of the last 10 s were not seen by all routers",
        "only 4 of 10 s are known: the load is at least that",
    )
    again = story.hear(25, 10.0)
    assert (again.demand, again.trusted, again.gaps) == (
        10.0,
        True,
        ("5 of the last 10 s were not seen by all routers",),
    )
    for second in range(26, 31):
        story.hear(second, 10.0)
    assert story.windows.stable_partly is None


def test_what_some_routers_saw_raises() -> None:
    story = Story()
    story.hear(10, *[10.0] * 10)
    for second in range(11, 16):
        alone = story.hear(second, 50.0, routers_missing=("http://b",))
    assert (alone.stable_per_s, alone.panic_per_s, alone.trusted) == (30.0, 50.0, False)
    back = story.hear(16, 10.0)
    assert (back.stable_per_s, back.trusted) == (30.0, True)


@pytest.mark.parametrize(
    ("known", "trusted"), [(1, False), (4, False), (5, True), (9, True)], ids=lambda value: str(value)
)
def test_a_load_is_trusted_when_half_of_its_seconds_are_known(known: int, trusted: bool) -> None:
    story = Story()
    story.hear(10, *[10.0] * 10)
    seen = story.hear(20, *[None] * (10 - known), *[0.0] * known)
    assert (seen.demand, seen.trusted) == (0.0, trusted)
    assert (f"only {known} of 10 s are known: the load is at least that" in seen.gaps) is not trusted


def test_in_the_first_seconds_half_of_those_that_have_passed_are_enough() -> None:
    story = Story()
    assert story.hear(0, 3.0).trusted
    assert story.hear(3, None, 3.0, None).trusted  # two of three
    assert not story.hear(6, None, None, None).trusted  # two of six
    story = Story()
    assert story.hear(0).gaps == ("no second of the last 10 s is known",)
    assert not story.hear(4, 0.0).trusted  # one of four, though nobody told of the others


@pytest.mark.parametrize("absurd", [-1.0, math.nan, math.inf])
def test_absurd_arrivals_count_as_missing_and_are_named(absurd: float) -> None:
    """A router that restarted must not make negative load."""
    seen = Story().hear(3, 4.0, absurd, 4.0)
    assert seen.stable_per_s == 4.0
    assert seen.gaps[0] == "1 s of arrivals were negative or not a number and count as missing"


def test_absurd_gauges_and_service_times_are_left_out() -> None:
    seen = Story().hear(1, 4.0, in_flight=-2, queued=-1, held_from_zero=-3, service_count=-5, service_sum_s=-9.0)
    assert (seen.in_flight, seen.backlog, seen.held_from_zero, seen.service_s) == (None, None, 0, 1.0)
    assert len(seen.gaps) == 3


def test_the_service_time_moves_from_the_prior_to_what_is_measured() -> None:
    story = Story(signal={"serviceSeconds": 2, "serviceWindowSeconds": 100})
    assert story.hear(0).service_s == 2.0
    first = story.hear(0, 1.0, service_count=10, service_sum_s=60.0)
    assert first.service_s == pytest.approx(4.0)
    weight = 20 * math.exp(-0.5)
    later = story.hear(50, 1.0, service_count=20, service_sum_s=120.0)
    assert later.service_s == pytest.approx((weight * 4.0 + 120.0) / (weight + 20))
    quiet = story.hear(5_000, 0.0)
    assert quiet.service_s == later.service_s
    assert story.hear(500_000, 1.0, service_count=1, service_sum_s=9.0).service_s == pytest.approx(9.0)


def test_a_changed_window_begins_anew() -> None:
    story = Story()
    story.hear(10, *[5.0] * 10)
    story.policy = a_policy(behavior={"panic": {"windowSeconds": 2, "stableWindowSeconds": 30}})
    assert story.tick(11, None).demand is None


def test_a_signal_that_is_not_read_is_an_unknown_demand() -> None:
    seen = Story(signal={"type": "tokenRate"}).hear(1, 4.0)
    assert (seen.demand, seen.trusted) == (None, False)
    assert seen.gaps == ("signal tokenRate is not read by this version, so demand is unknown",)


def test_start_times_come_from_the_policy_until_they_are_measured() -> None:
    policy = a_policy([variant_document("a"), variant_document("b")])
    measured = {"a": StartTime(p50_s=3, p90_s=4, samples=9)}
    _, seen = fold(Windows(), None, (), measured, policy, at(0))
    assert seen.start_times == {"a": measured["a"], "b": StartTime(p50_s=10, p90_s=12, samples=0)}


@pytest.mark.parametrize(
    ("replica", "age_s", "overdue", "failed"),
    [
        (a_replica("s", "starting"), 14.1, False, False),
        (a_replica("s", "starting"), 14.3, True, False),
        (a_replica("s", "requested"), 14.3, True, False),
        (a_replica("s", "starting"), 1800.5, False, True),
        (a_replica("s", "requested"), 1800.5, True, False),
        (a_replica("s", "ready"), 1800.5, False, False),
        (a_replica("s", "starting", variant="gone"), 1800.5, False, False),
        (a_replica("s", "starting", failed=True), 14.3, False, True),
    ],
)
def test_a_start_is_overdue_after_its_p99_and_failed_after_its_timeout(
    replica: Replica, age_s: float, overdue: bool, failed: bool
) -> None:
    """P50 10 s and P90 12 s: sigma 0.15 (the least; 0.142 measured), so P99 is 14.18 s."""
    (marked,) = Story().tick(age_s, None, [replica]).replicas
    assert (marked.overdue, marked.failed) == (overdue, failed)


def test_the_p99_of_a_start_is_a_lognormal_through_both_quantiles() -> None:
    assert StartTime(p50_s=90, p90_s=140).p99_s == pytest.approx(200.5, abs=0.5)
    assert StartTime(p50_s=10, p90_s=10).p99_s == pytest.approx(14.18, abs=0.01)
    assert StartTime(p50_s=0, p90_s=5).p99_s == 5


def test_equal_inputs_give_equal_observations() -> None:
    stories = [Story(), Story()]
    for second in range(20):
        seen = [story.hear(second, float(second % 3)) for story in stories]
        assert seen[0] == seen[1]
    assert stories[0].windows == stories[1].windows
