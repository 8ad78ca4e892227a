"""Generated loads and policies for the tests of the backtest."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from autoscaler.policy import ScalingPolicy
from loadtests.backtest_load import Load
from loadtests.trace import RateTrace


def rates(values: list[float], *, step_s: float = 60.0, start_s: float = 0.0, source: str = "generated") -> RateTrace:
    """A trace of rates; NaN = the collector was down."""
    return RateTrace(
        step_s=step_s,
        t_s=array("d", [start_s + place * step_s for place in range(len(values))]),
        rate_per_s=array("d", values),
        valid=bytearray(0 if math.isnan(value) else 1 for value in values),
        source=source,
    )


def daily(hours: float, *, seed: int = 1, noise: float = 0.05, mean: float = 40.0, gaps: bool = False) -> Load:
    """A load with a cycle of six hours, a burst in each, and noise; `gaps`: some steps were not seen."""
    rng = np.random.default_rng(seed)
    steps = round(hours * 240)
    at_h = np.arange(steps) * 15 / 3600
    level = mean * (1.1 + np.sin(at_h / 6 * 2 * np.pi)) * np.exp(rng.normal(0.0, noise, steps))
    level[(at_h % 6 > 2.0) & (at_h % 6 < 2.15)] *= 2.5
    seen = np.ones(steps, dtype=np.bool_)
    if gaps:
        seen = rng.uniform(size=steps) > 0.03
        seen[steps // 2 : steps // 2 + 9] = False
    return Load(start_s=0.0, step_s=15.0, rate_per_s=level, seen=seen)


def policy(**spec: Any) -> ScalingPolicy:
    """One variant of 40 requests with room for 300 replicas, unless said otherwise."""
    variant = {
        "name": "gpu",
        "scaleTargetRef": {"name": "x"},
        "capacity": 40,
        "minReplicas": 1,
        "maxReplicas": 300,
        "startTime": {"p50Seconds": 90, "p90Seconds": 120},
    }
    document = {"metadata": {"name": "p"}, "spec": {"model": "m", "variants": [variant], **spec}}
    return ScalingPolicy.model_validate(document)
