"""Seconds become steps of a grid."""

from __future__ import annotations

import pytest

from autoscaler.controller.load_steps import LoadSteps

Story = list[tuple[float, list[float | None], list[tuple[float, list[float | None]]]]]

STORIES: dict[str, tuple[float, Story]] = {
    "a step is complete with its last second": (3, [(3.0, [1, 2, 3], [(0.0, [2.0])])]),
    "seconds wait for their step": (3, [(2.2, [1, 2], []), (3.1, [3], [(0.0, [2.0])])]),
    "steps of one second": (1, [(10.4, [4, 5], [(8.0, [4.0, 5.0])])]),
    "a late read moves nothing": (
        1,
        [(10.0, [1], [(9.0, [1.0])]), (12.9, [2, 3], [(10.0, [2.0, 3.0])]), (13.0, [4], [(12.0, [4.0])])],
    ),
    "half of the seconds are enough": (4, [(4.0, [None, None, 2, 4], [(0.0, [3.0])])]),
    "less is a gap": (4, [(4.0, [None, None, None, 4], [(0.0, [None])])]),
    "absurd seconds are gaps": (2, [(2.0, [-1, float("nan")], [(0.0, [None])])]),
    "the first step may be cut": (4, [(4.0, [8], [(0.0, [None])])]),
    "a silence that nobody reported moves on": (
        1,
        [(10.0, [1], [(9.0, [1.0])]), (100.0, [2], [(10.0, [None]), (99.0, [2.0])])],
    ),
    "nothing new": (1, [(10.0, [], [])]),
}


@pytest.mark.parametrize(("step_s", "story"), STORIES.values(), ids=STORIES)
def test_steps(step_s: float, story: Story) -> None:
    steps = LoadSteps(step_s)
    for epoch_s, arrivals, done in story:
        assert steps.add(arrivals, epoch_s) == done
