"""The least GPU-time that any scaler with the same start time could have used, knowing the load: what regret is
measured against.

Pure arithmetic on one series of demand in replicas. The clairvoyant must have ceil(D(t)) replicas ready at all times
and pays for each from its start command to its stop. Levels are apart: the k-th replica is needed where ceil(D) >= k.
In a gap of g seconds it either stays on (g seconds) or stops and starts in time (L seconds of loading), so a gap
costs min(g, L). Sum over all levels and gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

ROUNDING = 1e-9
"""A demand that exceeds a whole number by less is that number: it comes from arithmetic, not from load."""


def clairvoyant_gpu_s(
    demand: Iterable[float], step_s: float, start_time_s: float, *, gpu_share: float = 1.0, clipped: bool = True
) -> float:
    """GPU-seconds for `demand` (replicas needed in each step of `step_s`; finite, >= 0) with a start time of
    `start_time_s`.

    `clipped`: count only what falls inside the span, as a scored window does, so that loading before its first moment
    is nobody's cost; False charges every first start in full. Raises `ValueError` for a demand, step, start time or
    share out of range.
    """
    for name, value, low in (
        ("step_s", step_s, 0.0),
        ("start_time_s", start_time_s, -ROUNDING),
        ("gpu_share", gpu_share, 0.0),
    ):
        if not (math.isfinite(value) and value > low):
            raise ValueError(f"{name}: {value}; allowed is a finite number above {max(low, 0):g}")
    total_s = 0.0
    on = 0
    off_since: list[float] = []
    for place, needed in enumerate(demand):
        if not (math.isfinite(needed) and needed >= 0):
            raise ValueError(f"demand[{place}]: {needed}; allowed is a finite number >= 0 (fill gaps first)")
        level = math.ceil(needed - ROUNDING)
        now_s = place * step_s
        while len(off_since) < level:
            off_since.append(0.0 if clipped else -math.inf)
        for unit in range(on, level):
            total_s += min(now_s - off_since[unit], start_time_s)
        for unit in range(level, on):
            off_since[unit] = now_s
        on = level
        total_s += on * step_s
    return total_s * gpu_share


def clairvoyant_gpu_hours(
    demand: Iterable[float], step_s: float, start_time_s: float, *, gpu_share: float = 1.0, clipped: bool = True
) -> float:
    """The same in GPU-hours."""
    return clairvoyant_gpu_s(demand, step_s, start_time_s, gpu_share=gpu_share, clipped=clipped) / 3600.0
