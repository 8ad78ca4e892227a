"""The sliding window against the obvious slow one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.observe.window import SlidingWindow


def test_a_short_story() -> None:
    window = SlidingWindow(3)
    assert (window.mean, window.maximum, window.gaps) == (None, None, 0)
    seen = []
    for value in (3.0, 1.0, 4.0, None, 1.0, None, None, None, 5.0):
        window = window.push(value)
        seen.append((window.mean, window.maximum, window.gaps))
    assert seen == [
        (3.0, 3.0, 0),
        (2.0, 3.0, 0),
        (8 / 3, 4.0, 0),
        (2.5, 4.0, 1),
        (2.5, 4.0, 1),
        (1.0, 1.0, 2),
        (1.0, 1.0, 2),
        (None, None, 3),
        (5.0, 5.0, 2),
    ]


def test_a_gap_is_not_a_zero() -> None:
    gaps = SlidingWindow(4).push(8.0).push(None).push(None)
    zeros = SlidingWindow(4).push(8.0).push(0.0).push(0.0)
    assert gaps.mean == 8.0
    assert zeros.mean == pytest.approx(8 / 3)


def test_an_older_window_stays_valid() -> None:
    before = SlidingWindow(2).push(1.0).push(2.0)
    after = before.push(9.0)
    assert (before.mean, after.mean) == (1.5, 5.5)


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="length 0 is not allowed"):
        SlidingWindow(0)


@settings(derandomize=True, deadline=None, database=None)
@given(
    length=st.integers(1, 9),
    values=st.lists(st.one_of(st.none(), st.integers(0, 50).map(float)), max_size=60),
)
def test_it_is_the_slow_window(length: int, values: list[float | None]) -> None:
    window = SlidingWindow(length)
    for count, value in enumerate(values, start=1):
        window = window.push(value)
        last = values[max(0, count - length) : count]
        known = [item for item in last if item is not None]
        assert window.mean == (pytest.approx(sum(known) / len(known)) if known else None)
        assert window.maximum == max(known, default=None)
        assert window.gaps == len(last) - len(known)
