"""Each law does what its original documents, told as a time story. Capacity is 10 throughout."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autoscaler.model import DeciderState
from loadtests.peer_laws.aibrix import aibrix
from loadtests.peer_laws.dynamo import dynamo, filtered
from loadtests.peer_laws.keda import keda
from loadtests.peer_laws.knative import knative
from loadtests.peer_laws.ray_serve import ray_serve
from loadtests.peer_laws.skyserve import skyserve
from loadtests.peer_laws.static_peak import static_peak
from tests.loadtests.law_stories import Story, policy


class TestKeda:
    def test_the_metric_is_that_of_the_last_poll(self) -> None:
        story = Story(keda())
        assert story.during(0, 25, 5, 16) == [2] * 6
        assert story.during(30, 55, 5, 40) == [5] * 6  # the poll of second 30
        assert [story.at(second, 80) for second in (56, 59, 60)] == [5, 5, 10]

    def test_hpa_goes_on_between_polls(self) -> None:
        """Doubling, or 4 more, per 15 s towards one polled value."""
        story = Story(keda())
        assert story.during(0, 45, 15, 300) == [5, 10, 20, 38]

    def test_to_zero_only_after_the_cooldown_and_whatever_is_there(self) -> None:
        """HPA's own window would still hold 5; the executor goes from any number to zero."""
        story = Story(keda(), policy(lowest=0))
        assert [story.at(0, 40), story.at(15, 40), story.at(30, 40)] == [1, 5, 5]  # the last load is that of 30
        assert story.during(60, 300, 30, 0) == [5] * 9
        assert story.at(330, 0) == 0

    def test_from_zero_one_replica_at_the_poll_then_hpa(self) -> None:
        story = Story(keda(), policy(lowest=0), DeciderState(last_desired=0))
        assert story.at(0, 0) == 0
        assert story.during(15, 60, 15, 40) == [0, 1, 5, 5]

    def test_an_idle_metric_without_scale_to_zero_is_hpas(self) -> None:
        story = Story(keda(), policy(lowest=2), DeciderState(last_desired=2))
        assert story.during(0, 900, 30, 0) == [2] * 31

    def test_the_fallback_counts_after_more_failures_than_its_threshold(self) -> None:
        fallback = {"failureThreshold": 3, "replicas": 6}
        story = Story(keda(), policy(fallback=fallback), DeciderState(last_desired=2))
        assert story.during(0, 120, 30, None) == [2, 2, 2, 6, 6]
        assert story.at(150, 16) == 6  # it recovered: down only after HPA's window
        assert story.during(180, 480, 30, 16)[-1] == 2

    def test_the_fallback_never_lowers_and_none_holds(self) -> None:
        higher = Story(keda(), policy(fallback={"replicas": 6}), DeciderState(last_desired=9))
        assert set(higher.during(0, 900, 30, None)) == {9}
        without = Story(keda(), policy(), DeciderState(last_desired=2))
        assert set(without.during(0, 900, 30, None)) == {2}


class TestKnative:
    def test_the_documented_sum(self) -> None:
        """100 concurrent requests, containerConcurrency 10, target 70%: 15."""
        assert Story(knative()).during(0, 60, 2, 100)[-1] == 15

    def test_a_burst_panics_holds_and_ends_after_a_calm_stable_window(self) -> None:
        story = Story(knative())
        assert set(story.during(0, 60, 2, 7)) == {1}
        assert story.during(62, 66, 2, 49, 1) == [3, 5, 7]  # means of 6 s: 21, 35, 49; those of 60 s: 8.4 to 11.2
        assert set(story.during(68, 126, 2, 7)) == {7}  # 66 + 60 s, never down in panic
        assert story.at(128, 7) == 3  # ready / 2 at most
        assert [story.at(130, 7), story.at(132, 7)] == [1, 1]

    def test_below_twice_what_is_ready_the_stable_window_decides(self) -> None:
        story = Story(knative())
        assert set(story.during(0, 60, 2, 28)) == {4}
        totals = story.during(62, 120, 2, 49)
        assert totals[:5] == [5, 5, 5, 5, 5]
        assert totals[-1] == 7

    def test_only_what_is_ready_is_known(self) -> None:
        """Loading replicas change neither the bounds nor panic: 10 of 40 ready may fall to 5."""
        story = Story(knative(), state=DeciderState(last_desired=40, memory=(("load@-50.0", 0.0),)))
        assert story.at(0, 0, ready_now=10) == 5

    def test_it_begins_in_panic_when_more_than_one_is_ready(self) -> None:
        story = Story(knative())
        assert set(story.during(0, 60, 2, 7, ready_now=6)) == {6}
        assert story.at(62, 7) == 3

    def test_from_zero_and_to_zero(self) -> None:
        story = Story(knative(), policy(lowest=0))
        assert [story.at(0, 0), story.at(2, 0, queued=1)] == [0, 1]
        assert story.during(4, 64, 2, 0) == [1] * 29 + [0] * 2  # gone with the last request of the stable window

    def test_unknown_moments_are_left_out_of_the_means(self) -> None:
        story = Story(knative())
        assert story.during(0, 30, 2, 28)[-1] == 4
        assert set(story.during(32, 200, 2, None)) == {4}


class TestAibrix:
    def test_the_documented_cascade_while_replicas_load(self) -> None:
        """aibrix#2670: 2 are ready and twice as much as they should is on them."""
        story = Story(aibrix(pending_guard=False), state=DeciderState(last_desired=2))
        assert story.during(0, 30, 10, 32, ready_now=2) == [4, 8, 16, 32]

    def test_the_guard_ends_the_cascade(self) -> None:
        story = Story(aibrix(), state=DeciderState(last_desired=2))
        assert story.during(0, 30, 10, 32, ready_now=2) == [4, 4, 4, 4]
        assert story.at(40, 60, ready_now=2) == 8  # ceil(60 / 8), not 4 x 60 / 16 = 15, bounded to 8
        assert story.at(50, 50, ready_now=2) == 8  # 50 / 8 = 7 would be fewer than are on their way

    @pytest.mark.parametrize(("load", "desired"), [(35, 4), (29, 4), (36, 5), (64, 8), (100, 8)])
    def test_ratio_outside_the_tolerance_at_most_doubling(self, load: int, desired: int) -> None:
        """4 replicas stand for 32."""
        assert Story(aibrix(), state=DeciderState(last_desired=4)).at(0, load) == desired

    def test_down_by_half_at_most_and_after_the_cooldown(self) -> None:
        story = Story(aibrix(), state=DeciderState(last_desired=16))
        assert set(story.during(0, 290, 10, 8)) == {16}
        assert story.at(300, 8) == 8
        assert story.at(310, 8) == 8  # halves of 16 are remembered for 300 s more
        assert story.during(320, 1300, 10, 8)[-1] == 1

    def test_it_syncs_every_ten_seconds(self) -> None:
        story = Story(aibrix(), state=DeciderState(last_desired=2))
        assert [story.at(second, 32) for second in (0, 5, 9)] == [4, 4, 4]
        assert [story.at(second, 64) for second in (9, 10)] == [4, 8]

    def test_without_reports_and_at_the_last_replica_it_stays(self) -> None:
        story = Story(aibrix(cooldown_s=0), policy(lowest=0), DeciderState(last_desired=3))
        assert story.during(0, 60, 10, None) == [3] * 7
        assert story.during(70, 130, 10, 500, ready_now=0) == [3] * 7
        assert story.during(140, 160, 10, 0) == [1, 1, 1]


class TestRayServe:
    def test_up_after_thirty_and_down_after_six_hundred_seconds_of_agreement(self) -> None:
        story = Story(ray_serve(), state=DeciderState(last_desired=2))
        assert story.during(0, 30, 10, 40) == [2, 2, 2, 5]
        assert set(story.during(40, 630, 10, 16)) == {5}  # the mean over 30 s is 32 at once: 4 would do
        assert story.at(640, 16) == 2

    def test_one_disagreement_begins_the_delay_again(self) -> None:
        story = Story(ray_serve(look_back_s=1), state=DeciderState(last_desired=2))
        assert story.during(0, 20, 10, 40) == [2, 2, 2]
        assert story.at(29, 16) == 2
        assert story.during(30, 60, 10, 40) == [2, 2, 2, 5]

    def test_the_newest_number_is_taken_not_the_mildest(self) -> None:
        story = Story(ray_serve(look_back_s=1), state=DeciderState(last_desired=2))
        assert [story.at(second, load) for second, load in ((0, 24), (10, 24), (20, 24), (30, 200))] == [2, 2, 2, 25]

    def test_starts_count_as_present(self) -> None:
        """5 wanted, 2 ready, 3 loading: nothing more is asked for however long they load."""
        story = Story(ray_serve(), state=DeciderState(last_desired=2))
        assert story.during(0, 30, 10, 40)[-1] == 5
        assert set(story.during(40, 600, 10, 40, ready_now=2)) == {5}

    def test_from_zero_one_at_once_and_to_zero_only_from_one(self) -> None:
        story = Story(ray_serve(), policy(lowest=0), DeciderState(last_desired=0))
        assert story.at(0, 40) == 1
        assert story.during(10, 40, 10, 40)[-1] == 5
        totals = story.during(100, 1300, 10, 0)
        assert (totals[59], totals[60], totals[119], totals[120]) == (5, 1, 1, 1)
        assert story.at(1310, 0) == 0

    def test_silence_counts_as_no_requests(self) -> None:
        """ray#43995 calls it over-aggressive downscaling."""
        story = Story(ray_serve(), state=DeciderState(last_desired=5))
        assert story.at(0, 40) == 5
        totals = story.during(10, 630, 10, None)
        assert (set(totals[:-1]), totals[-1]) == ({5}, 1)  # nothing of the look-back is known from 30 on
        assert story.decide(640, None).need is None


class TestSkyServe:
    """service 1 s and target 0.25: 2.5 queries a second each, between 2 and 10, as in its documentation."""

    def story(self, present: int | None) -> Story:
        return Story(skyserve(target=0.25), policy(lowest=2, highest=10), DeciderState(last_desired=present))

    def test_up_after_fifteen_decisions_in_a_row(self) -> None:
        story = self.story(2)
        assert story.during(0, 260, 20, 12) == [2] * 14
        assert story.at(280, 12) == 5  # ceil(12 / 2.5)
        assert story.during(300, 600, 20, 100)[-1] == 10  # maxReplicas

    def test_down_after_sixty(self) -> None:
        story = self.story(5)
        assert set(story.during(0, 1160, 20, 1)) == {5}
        assert story.at(1180, 1) == 2

    def test_a_dip_begins_the_count_again(self) -> None:
        story = self.story(2)
        story.during(0, 240, 20, 12)
        assert story.at(260, 5) == 2
        assert set(story.during(280, 540, 20, 12)) == {2}
        assert story.at(560, 12) == 5

    def test_queued_requests_are_not_in_the_rate(self) -> None:
        story = self.story(2)
        assert {story.at(second, 5, queued=500) for second in range(0, 900, 20)} == {2}

    def test_on_a_fifteen_second_tick_the_delay_stays_three_hundred_seconds(self) -> None:
        story = self.story(2)
        totals = story.during(0, 315, 15, 12)
        assert totals.index(5) * 15 in (285, 300)

    def test_from_zero_at_once_looking_every_five_seconds(self) -> None:
        story = Story(skyserve(), policy(lowest=0), DeciderState(last_desired=0))
        assert [story.at(second, load) for second, load in ((0, 0), (3, 16), (5, 16))] == [0, 0, 2]

    def test_silence_leaves_the_last_rate(self) -> None:
        story = self.story(2)
        story.at(0, 12)
        assert story.during(20, 280, 20, None)[-2:] == [2, 5]
        assert set(story.during(300, 4000, 20, None)) == {5}


class TestDynamo:
    def test_the_floor_jumps_every_hundred_and_eighty_seconds(self) -> None:
        """35 asks for 4; the load steps alone get there by one every 5 s."""
        story = Story(dynamo(), policy(lowest=0), DeciderState(last_desired=8))
        story.during(0, 175, 5, 70)
        assert story.at(180, 70) == 8
        totals = story.during(185, 355, 5, 20)
        assert (totals[0], totals[-1]) == (7, 7)  # down by one to the floor of 70, held there
        assert min(story.during(360, 1000, 5, 20)) == 3

    def test_the_forecast_raises_before_the_load_does(self) -> None:
        story = Story(dynamo(), policy(highest=100), DeciderState(last_desired=10))
        totals = [story.at(second, 50 + second / 20) for second in range(0, 1805, 5)]
        assert totals[-1] > math.ceil((50 + 1800 / 20) / 10)  # 14 would do now; the next 180 s need more

    def test_one_step_of_load_at_a_time(self) -> None:
        story = Story(dynamo(), state=DeciderState(last_desired=3))
        assert story.during(0, 20, 5, 60) == [4, 5, 6, 6, 6]
        assert story.during(25, 40, 5, 45) == [6] * 4  # 45 on 5 would be 9 each, over 80%
        assert story.during(45, 60, 5, 30) == [5, 4, 4, 4]  # 30 on 3 would be 10 each

    def test_frozen_while_a_start_is_pending(self) -> None:
        story = Story(dynamo(), state=DeciderState(last_desired=3))
        assert story.at(0, 60) == 4
        assert set(story.during(5, 300, 5, 60, ready_now=3)) == {4}
        assert story.at(305, 60, ready_now=4) == 6  # the floor that was set meanwhile

    def test_no_metrics_no_step(self) -> None:
        story = Story(dynamo(), state=DeciderState(last_desired=6))
        assert set(story.during(0, 900, 5, None)) == {6}

    def test_the_filter_agrees_with_the_matrices(self) -> None:
        rng = np.random.default_rng(3)
        values = np.maximum(0, np.cumsum(rng.normal(0, 5, 60)) + 80)
        transition, noise = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([1.0, 0.1])
        state, spread = np.array([values[0], 0.0]), np.eye(2) * 1000.0
        memory: dict[str, float] = {}
        assert filtered(memory, float(values[0])) == values[0]
        for value in values[1:]:
            state, spread = transition @ state, transition @ spread @ transition.T + noise
            gain = spread[:, 0] / (spread[0, 0] + 10.0)
            state = state + gain * (value - state[0])
            spread = spread - np.outer(gain, spread[0])
            assert filtered(memory, float(value)) == pytest.approx(max(0.0, state[0] + state[1]))


def test_static_peak_stands_whatever_comes() -> None:
    assert {Story(static_peak(12)).at(0, load) for load in (0, 500, None)} == {12}
    assert Story(static_peak()).at(0, 0) == 40
    assert Story(static_peak(99)).at(0, 0) == 40
