"""What a run of the backtest amounts to: its entry in the scorecard, its timeline as CSV, and gates for a CI.

Definitions are those of `scorecard`; here work is a flow, so requests are work times what a replica carries, rounded to
whole ones, and "answered" holds those that still waited at the end. Only the judged span is scored.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.backtest_run import Run
from loadtests.backtest_world import World
from loadtests.scorecard import HOUR_S, Window, flaps

COLUMNS = ("t_s", "demand", "ready", "starting", "standby", "sleeping", "draining", "desired", "late")
"""Of `timeline.LAW.csv`: `demand` in replicas, `late` in requests of the step that turned late, the rest replicas."""


class BacktestError(Exception):
    """A backtest that was asked for in a way that makes no sense; the message names the option and what is allowed."""

    exit_code = 2


def score(run: Run) -> dict[str, Any]:
    """The run's entry of `runs` in `scorecard.json`; `ttft_*` are null, as a flow has no tokens."""
    world = run.world
    span = slice(world.judged, None)
    work = float(world.demand[span].sum()) * world.step_s
    late = float(run.late[span].sum()) / work
    requests = round(work * world.unit_per_s)
    refused = min(requests, round(float(run.evicted[span].sum()) * world.unit_per_s))
    gpu_hours = float(run.gpus[span].sum()) * world.step_s / HOUR_S
    least = world.clairvoyant_gpu_hours()
    mean, worst = flaps(_desired(run), judged_window(world))
    priced = all(variant.cost_per_hour is not None for variant in world.policy.spec.serving)
    return {
        "law": run.law,
        "requests": requests,
        "answered": requests - refused,
        "refused": refused,
        "failed": 0,
        "client_gone": 0,
        "lost": 0,
        "attainment": 1.0 - late,
        "late_fraction": late,
        "ttft_p50_s": None,
        "ttft_p99_s": None,
        "gpu_hours": gpu_hours,
        "clairvoyant_gpu_hours": least,
        "regret": gpu_hours / least if least else None,
        "flaps_per_hour": mean,
        "flaps_worst_hour": worst,
        "replicas_max": int((run.ready + run.starting + run.standby)[span].max()),
        "cost": float(run.price[span].sum()) * world.step_s / HOUR_S if priced else None,
    }


def judged_window(world: World) -> Window:
    """The scored span on the trace's clock."""
    start_s, step_s = world.load.start_s, world.step_s
    return Window(start_s=start_s + world.judged * step_s, end_s=start_s + len(world) * step_s)


def _desired(run: Run) -> list[tuple[float, int]]:
    """(moment, total) at each change."""
    return [(run.world.load.start_s, int(run.desired[0])), *((turn.t_s, turn.desired) for turn in run.turns)]


def write_timeline(folder: Path, run: Run) -> Path:
    """Write `timeline.LAW.csv`, one row a step of the whole trace, judged or not; returns its path."""
    world = run.world
    times = world.load.start_s + np.arange(len(world)) * world.step_s
    counts = np.stack([run.ready, run.starting, run.standby, run.desired], axis=1).astype(int).tolist()
    late = (run.late * world.unit_per_s).tolist()
    lines = [",".join(COLUMNS)]
    for at_s, demand, (ready, starting, standby, desired), missed in zip(
        times.tolist(), world.demand.tolist(), counts, late, strict=True
    ):
        lines.append(f"{at_s:.10g},{demand:.6g},{ready},{starting},{standby},0,0,{desired},{missed:.6g}")
    path = folder / f"timeline.{run.law}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


GATED = {
    "late": "late_fraction",
    "attainment": "attainment",
    "regret": "regret",
    "gpu_hours": "gpu_hours",
    "cost": "cost",
    "refused": "refused",
    "replicas_max": "replicas_max",
    "flaps_per_hour": "flaps_per_hour",
}
"""Names in a gate expression, and the fields of the scorecard that they mean."""
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_GATE = re.compile(r"\s*([a-z_]+)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One comparison, such as `late<=0.5%`. `bound` as a number; `text` as it was given."""

    name: str
    comparison: str
    bound: float
    text: str

    def missed(self, entry: Mapping[str, Any]) -> str:
        """Why the scorecard's entry misses it, in a line; empty when it does not. Raises `BacktestError` for a value
        that the run does not know.
        """
        value = entry[GATED[self.name]]
        if value is None:
            raise BacktestError(f"--gate {self.text}: {self.name} is not known (cost needs costPerHour in the policy)")
        if _COMPARISONS[self.comparison](value, self.bound):
            return ""
        shown = f"{value:.3%}" if "%" in self.text else f"{value:.6g}"
        return f"gate missed by {entry['law']}: {self.text}, but {self.name} is {shown}"


def parse_gates(expression: str) -> tuple[Gate, ...]:
    """The comparisons of `late<=0.5%,regret<=1.2`. Raises `BacktestError` naming the part that is none."""
    gates = []
    for part in expression.split(","):
        match = _GATE.fullmatch(part)
        if match is None or match[1] not in GATED:
            raise BacktestError(
                f"--gate: {part.strip()!r} is no comparison; allowed: NAME<=NUMBER with <=, >=, < or >, % after the "
                f"number if wished, names {', '.join(GATED)}, several joined by commas, such as 'late<=0.5%,regret<=1.2'"
            )
        bound = float(match[3]) / (100.0 if match[4] else 1.0)
        gates.append(Gate(name=match[1], comparison=match[2], bound=bound, text=part.strip()))
    return tuple(gates)


def missed_gates(gates: Sequence[Gate], entry: Mapping[str, Any]) -> list[str]:
    """A line for each gate that the entry misses."""
    return [line for gate in gates if (line := gate.missed(entry))]
