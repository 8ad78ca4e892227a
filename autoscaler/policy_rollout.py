"""Hot upgrade between two versions of a policy's variants; pure values."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, field_validator

from autoscaler.policy_values import CountFromOne, NotNegative, Part, Percent, Positive, SecondsOrZero, Surge, Text


class Analysis(Part):
    """What the new version may be worse by."""

    max_error_rate_increase: NotNegative = 0.01
    """Difference of error rates, 0.01 = one percentage point."""
    max_ttft_ratio: Positive = Field(default=1.3, alias="maxTTFTRatio")
    """Median time to the first token, new over old."""
    max_inter_token_ratio: Positive = 1.3
    """Median time between tokens, new over old."""


class Rollout(Part):
    """Variants of version `to` take over from those of version `from`."""

    from_: Text = Field(alias="from")
    """Version that serves now."""
    to: Text
    """Version that takes over; it is not started by scaling while the rollout has not begun."""
    steps: tuple[Percent, ...] = (5, 25, 50, 100)
    """Percent of traffic, ascending, the last 100."""
    step_seconds: SecondsOrZero = 120
    """Shortest time at a step."""
    min_requests: CountFromOne = 200
    """Fewest requests that a comparison is made from."""
    analysis: Analysis = Analysis()
    """When to roll back."""
    mirror_percent: Percent = 0
    """Percent of requests copied to the new version before it takes traffic."""
    surge: Surge = "auto"
    """Replicas above desired during the upgrade; 0 = replace one at a time."""
    window: Literal["now", "trough"] = "trough"
    """When to begin: at once, or at the forecast's lowest point."""

    @field_validator("steps")
    @classmethod
    def _ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or value[-1] != 100 or any(low >= high for low, high in pairwise(value)):
            raise ValueError("must ascend and end with 100")
        return value
