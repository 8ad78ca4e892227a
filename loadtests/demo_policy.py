"""The two policies of the demo: the same model, replicas, bounds and routing; Tidegate's windows and forecast in one,
HPA's in the other.

All times are on the demo's clock, so HPA's 15 s sync is 1 s (the controller's tick) and its 300 s window is 20 s; what
a policy's author would leave at its default is divided by the factor here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtests.demo_load import CYCLE_S, DECODE_PER_S, FACTOR, PREFILL_PER_S, SEEDED_CYCLES, START_S, DemoLoad

MODEL = "tide-1"
TICK_S = 1.0
QUEUE_S = 1.0
"""The SLO: waiting longer is late. 15 s on the load's own clock."""
QUEUE_TIMEOUT_S = 15.0
HPA_WINDOW_S = 20.0
STABILIZATION_S = 4.0
STEP_S = 3.0
"""Grid of the forecast: a cycle has 16 steps. On a grid of 1 s most of what is forecast would be the chance of
single arrivals.
"""
QUANTILE = 0.95
QUANTILE_NO_SEASON = 0.75
"""Without earlier days a forecast is little more than a spread around the present level; a minute of it teaches no
tail.
"""
MIN_HISTORY_S = 45.0


def policy_document(law: str, load: DemoLoad, folder: Path, *, bound_s: float) -> dict[str, Any]:
    """The ScalingPolicy of one law. `folder` gets the engines' logs; no engine outlives `bound_s`."""
    most = max(3, load.most_needed() + 3)
    variant = {
        "name": "emulated",
        "process": {"command": engine_command(load, folder, bound_s)},
        "capacity": load.slots,
        "startTime": {"p50Seconds": START_S + 0.7, "p90Seconds": START_S + 1.2},
        "minReplicas": 1,
        "maxReplicas": most,
        "engine": "vllm",
    }
    spec: dict[str, Any] = {
        "model": MODEL,
        "pollingIntervalSeconds": TICK_S,
        "slo": {"queueSeconds": QUEUE_S},
        "signal": {
            "type": "concurrency",
            "serviceSeconds": round(load.prior_s, 3),
            "serviceWindowSeconds": 600 / FACTOR,
        },
        "variants": [variant],
        "drain": {"timeoutSeconds": 600 / FACTOR},
        "routing": {
            "queue": {"timeoutSeconds": QUEUE_TIMEOUT_S, "maxRequests": 2000},
            "timeouts": {"connectSeconds": 2, "firstByteSeconds": 20, "betweenBytesSeconds": 10, "totalSeconds": 60},
        },
        **(_hpa() if law == "hpa" else _tidegate(load)),
    }
    return {"apiVersion": "tidegate.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": MODEL}, "spec": spec}


def engine_command(load: DemoLoad, folder: Path, bound_s: float) -> list[str]:
    """The command of one emulated replica."""
    flags: dict[str, object] = {
        "--port": "{port}",
        "--model": MODEL,
        "--load-seconds": START_S,
        "--slots": load.slots,
        "--prefill-tokens-per-s": round(PREFILL_PER_S / load.slowness, 3),
        "--decode-tokens-per-s": round(DECODE_PER_S / load.slowness, 4),
        "--log": folder / "generations-{port}.jsonl",
        "--exit-after-s": bound_s,
    }
    return ["{python}", "-m", "tidegate", "engine", *(str(word) for pair in flags.items() for word in pair)]


def _tidegate(load: DemoLoad) -> dict[str, Any]:
    return {
        "prediction": {
            "enabled": True,
            "seasonsSeconds": [] if load.season_s is None else [load.season_s],
            "historyWindowSeconds": 2 * SEEDED_CYCLES * CYCLE_S,
            "minHistorySeconds": CYCLE_S if load.history else MIN_HISTORY_S,
            "stepSeconds": STEP_S,
            "quantile": QUANTILE if load.history else QUANTILE_NO_SEASON,
        },
        "warmPool": {"standby": 1 if load.history else 0},
        "behavior": {
            "scaleUp": {"policies": [{"type": "Pods", "value": 8, "periodSeconds": 1}]},
            "scaleDown": {"stabilizationWindowSeconds": STABILIZATION_S, "tolerance": 0.05},
            "panic": {"thresholdPercent": 200, "windowSeconds": 1, "stableWindowSeconds": 4},
        },
    }


def _hpa() -> dict[str, Any]:
    """HPA's own rates and window: 100% or 4 replicas in 15 s, 300 s before it shrinks."""
    rates = [{"type": "Percent", "value": 100, "periodSeconds": 1}, {"type": "Pods", "value": 4, "periodSeconds": 1}]
    return {
        "prediction": {"enabled": False},
        "behavior": {
            "scaleUp": {"policies": rates},
            "scaleDown": {"stabilizationWindowSeconds": HPA_WINDOW_S},
        },
    }
