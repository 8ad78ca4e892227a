"""One load series on a regular grid, the input of every forecaster.

Knows nothing of where load comes from and reads no clock. A gap (a collector outage) is NaN and is never the same as
zero: members drop what touches a gap instead of learning that load vanished. Values are checked once, here, so that
members need not look again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"


class SeriesError(ValueError):
    """Values that no load series may hold; the message names the field, the value and what is allowed."""


class WrongShape(SeriesError):
    """Not a flat list of numbers."""


class NegativeLoad(SeriesError):
    """A load below zero."""


class NonFiniteLoad(SeriesError):
    """An infinite load, start or step."""


class NothingKnown(SeriesError):
    """Not a single step that is not a gap."""


class ShortHistory(SeriesError):
    """Too few steps for what is to be learned from them."""


def checked(values: Sequence[float] | Floats) -> Floats:
    """A new float64 array of shape (n,) that may be kept: every value is NaN (a gap) or finite and >= 0.

    Raises `WrongShape`, `NegativeLoad` or `NonFiniteLoad`, naming the first offending position.
    """
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise WrongShape(f"values: not a flat list of numbers ({error})") from error
    if array.ndim != 1:
        raise WrongShape(f"values: shape {array.shape}; one dimension is allowed")
    for bad, kind, what in (
        (np.isinf(array), NonFiniteLoad, "a finite number, or NaN for a gap"),
        (array < 0, NegativeLoad, "0 or more"),
    ):
        if bad.any():
            index = int(np.argmax(bad))
            raise kind(f"values[{index}]: {array[index]}; allowed is {what}")
    return array


@dataclass(frozen=True, slots=True, eq=False)
class LoadSeries:
    """`values[i]` is the load of the step [start_s + i * step_s, start_s + (i + 1) * step_s), NaN = gap; shape (n,),
    float64, read-only.

    `start_s` is on any one clock (usually epoch seconds), `step_s` > 0 in seconds, values in the series' own unit
    (usually requests per second). Raises a `SeriesError` for anything else.
    """

    start_s: float
    step_s: float
    values: Floats

    def __post_init__(self) -> None:
        if not math.isfinite(self.start_s):
            raise NonFiniteLoad(f"start_s: {self.start_s}; allowed is a finite number of seconds")
        if not (math.isfinite(self.step_s) and self.step_s > 0):
            raise NonFiniteLoad(f"step_s: {self.step_s}; allowed is a finite number of seconds above 0")
        array = checked(self.values)
        array.setflags(write=False)
        object.__setattr__(self, "values", array)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end_s(self) -> float:
        """End of the last step."""
        return self.start_s + len(self.values) * self.step_s

    @property
    def known(self) -> int:
        """Steps that are not gaps."""
        return int(np.count_nonzero(~np.isnan(self.values)))

    def append(self, values: Sequence[float] | Floats) -> LoadSeries:
        """A longer series: `values` are the steps right after the last one."""
        return LoadSeries(self.start_s, self.step_s, np.concatenate([self.values, checked(values)]))

    def head(self, steps: int) -> LoadSeries:
        """The first `steps` steps (all of them when there are fewer)."""
        return LoadSeries(self.start_s, self.step_s, self.values[: max(0, steps)])

    def tail(self, span_s: float) -> LoadSeries:
        """The last `span_s` seconds, rounded up to whole steps; all of the series when it is shorter."""
        keep = min(len(self.values), max(0, math.ceil(span_s / self.step_s - 1e-9)))
        first = len(self.values) - keep
        return LoadSeries(self.start_s + first * self.step_s, self.step_s, self.values[first:])
