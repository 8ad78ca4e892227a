"""The HPA law does what Kubernetes documents of HPA, on the policy's clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autoscaler.model import DeciderState, Decision, Now, Observation
from autoscaler.policy import ScalingPolicy
from loadtests.laws import hpa


def policy(window_s: float = 300, lowest: int = 1, highest: int = 40) -> ScalingPolicy:
    """Capacity 10, so the target is 8 requests a replica; HPA's own rates."""
    rates = [{"type": "Percent", "value": 100, "periodSeconds": 15}, {"type": "Pods", "value": 4, "periodSeconds": 15}]
    variant = {"name": "gpu", "process": {"command": ["engine", "{port}"]}, "capacity": 10}
    behavior = {"scaleUp": {"policies": rates}, "scaleDown": {"stabilizationWindowSeconds": window_s}}
    return ScalingPolicy.model_validate(
        {
            "metadata": {"name": "p"},
            "spec": {
                "model": "m",
                "variants": [{**variant, "minReplicas": lowest, "maxReplicas": highest}],
                "behavior": behavior,
            },
        }
    )


@dataclass
class Story:
    """One HPA over time: `at(second, in_flight, queued)` is one sync."""

    policy: ScalingPolicy = field(default_factory=policy)
    state: DeciderState = field(default_factory=DeciderState)

    def decide(self, second: float, in_flight: int | None, queued: int | None = 0) -> Decision:
        now = Now(monotonic_s=second, epoch_s=second)
        seen = Observation(
            at=now,
            stable_per_s=None,
            panic_per_s=None,
            service_s=1.0,
            demand=None,
            panic_demand=None,
            in_flight=in_flight,
            backlog=queued,
            oldest_s=None,
            held_from_zero=0,
            replicas=(),
            start_times={},
        )
        decision = hpa()(self.policy, self.state, seen, None, now)
        self.state = decision.next_state
        return decision

    def at(self, second: float, in_flight: int | None, queued: int | None = 0) -> int:
        return self.decide(second, in_flight, queued).desired


def test_desired_is_the_total_over_the_target_rounded_up() -> None:
    story = Story()
    assert story.at(0, 16, 9) == 4  # 25 / 8
    assert story.at(15, 36) == 5


@pytest.mark.parametrize(("total", "desired"), [(36, 5), (40, 5), (43, 5), (45, 6), (35, 5)])
def test_within_ten_percent_nothing_changes(total: int, desired: int) -> None:
    """5 replicas stand for 40. 35 asks for 5 again (rounded up); 45 is past the tolerance."""
    story = Story(state=DeciderState(last_desired=5))
    assert story.at(0, total) == desired


def test_up_at_once_but_at_most_doubled_or_four_more_in_fifteen_seconds() -> None:
    story = Story()
    assert [story.at(second, 300) for second in (0, 5, 10, 15, 20, 30, 45)] == [5, 5, 5, 10, 10, 20, 38]


def test_down_only_to_the_highest_recommendation_of_the_window() -> None:
    story = Story(state=DeciderState(last_desired=8))
    assert story.at(0, 64) == 8
    assert story.at(100, 30) == 8
    assert story.at(200, 8) == 8
    assert story.at(299, 8) == 8
    assert story.at(301, 8) == 4  # the 8 of second 0 is forgotten, the 4 of second 100 is not
    assert story.at(401, 8) == 1


def test_a_first_sync_with_little_load_does_not_scale_down_at_once() -> None:
    story = Story(state=DeciderState(last_desired=6))
    assert story.at(0, 1) == 6


@pytest.mark.parametrize(("in_flight", "queued"), [(None, 0), (3, None), (None, None)])
def test_an_unknown_metric_changes_nothing(in_flight: int | None, queued: int | None) -> None:
    story = Story(policy=policy(window_s=0), state=DeciderState(last_desired=7))
    decision = story.decide(0, in_flight, queued)
    assert (decision.desired, decision.need) == (7, None)


def test_no_load_at_all_is_zero_and_bounds_come_last() -> None:
    story = Story(policy=policy(window_s=0, lowest=2, highest=6))
    assert story.at(0, 0) == 2
    decision = story.decide(15, 1000)
    assert (decision.desired, decision.bound_by) == (6, "rate")  # doubling or 4 more: 6 of 125
    assert decision.targets[0].active == 6
    assert [step.name for step in decision.steps] == ["ratio", "stabilise", "rate", "bounds"]


def test_from_zero_it_can_start() -> None:
    story = Story(policy=policy(lowest=0))
    assert story.at(0, 0) == 0
    assert story.at(15, 0, 1) == 1
