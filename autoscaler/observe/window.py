"""A sliding mean and maximum over the last N values, some of which may be missing.

Knows no domain words and no clock: a caller pushes one value per step, None for a step without a value.

How it works. Taking the oldest value out of a sum is easy but drifts; taking it out of a maximum is not possible at
all. So nothing is ever taken out. The window is two piles, old and new:

    push 3, 1, 4        new: 3 | 3 1 | 3 1 4            each entry of a pile holds the summary (count, sum, maximum) of
    itself and of everything below it the pile is full,   old: 4 | 4 1 | 4 1 3            turn `new` over: the top of
    `old` is now the oldest value and its so before the next  new: (empty)                    entry already summarises
    all that are younger than it push push 1              old: 4 | 4 1                    drop the top of `old` (that
    was the oldest, 3): O(1), no arithmetic new: 1 summary             = summary of top of old + summary of top of new

Each value is pushed once and turned over once, so a push costs O(1) on average. Piles are linked entries that are
never changed, so a window is a value: an older one stays valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Summary(NamedTuple):
    """Of several values: how many there were, how many had a value, their sum and their maximum (None of none)."""

    size: int = 0
    valid: int = 0
    total: float = 0.0
    maximum: float | None = None

    def with_value(self, value: float | None) -> Summary:
        """The summary of these values and one more; None counts as a step without a value."""
        size, valid, total, maximum = self
        if value is None:
            return Summary(size + 1, valid, total, maximum)
        higher = value if maximum is None or value > maximum else maximum
        return Summary(size + 1, valid + 1, total + value, higher)

    def joined(self, other: Summary) -> Summary:
        """The summary of both."""
        known = [maximum for maximum in (self.maximum, other.maximum) if maximum is not None]
        return Summary(
            self.size + other.size, self.valid + other.valid, self.total + other.total, max(known, default=None)
        )


@dataclass(slots=True, unsafe_hash=True)
class _Entry:
    """One value on a pile, with the summary of itself and all below. Never changed; not declared frozen because that
    doubles what making one costs, and one is made for every second of load.
    """

    value: float | None
    summary: Summary
    below: _Entry | None = field(repr=False, compare=False)


_EMPTY = Summary()


def _on(pile: _Entry | None, value: float | None) -> _Entry:
    return _Entry(value, (pile.summary if pile else _EMPTY).with_value(value), pile)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The last `length` steps. `push` returns the next window. Raises `ValueError` for a length below 1."""

    length: int
    _old: _Entry | None = None
    _new: _Entry | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length {self.length} is not allowed: must be at least 1")

    def push(self, value: float | None) -> SlidingWindow:
        """The window one step later; None is a step without a value."""
        return self.push_all((value,))

    def push_all(self, values: Sequence[float | None]) -> SlidingWindow:
        """The window `len(values)` steps later; the newest value comes last. What has left again is not even looked at."""
        if len(values) > self.length:
            return SlidingWindow(self.length).push_all(values[-self.length :])
        old, new = self._old, self._new
        held = (old.summary.size if old else 0) + (new.summary.size if new else 0)
        for value in values:
            if held < self.length:
                held += 1
            else:
                if old is None:
                    old, new = _turned(new), None
                old = old.below if old else None
            new = _on(new, value)
        return SlidingWindow(self.length, old, new)

    @property
    def summary(self) -> Summary:
        """Of all steps in the window."""
        old = self._old.summary if self._old else _EMPTY
        return old.joined(self._new.summary) if self._new else old

    @property
    def mean(self) -> float | None:
        """Mean of the steps that have a value; None when none has."""
        summary = self.summary
        return summary.total / summary.valid if summary.valid else None

    @property
    def maximum(self) -> float | None:
        """Largest value; None when no step has one."""
        return self.summary.maximum

    @property
    def gaps(self) -> int:
        """Steps without a value."""
        summary = self.summary
        return summary.size - summary.valid


def _turned(pile: _Entry | None) -> _Entry | None:
    """The same values in the opposite order."""
    result = None
    while pile is not None:
        result = _on(result, pile.value)
        pile = pile.below
    return result
