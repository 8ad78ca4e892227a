"""Each law over its own knob: the curve of late requests against GPU-hours, and the best point that a hand could pick.

`tidegate`'s knob is the policy's `prediction.quantile`; the peers' are in `peer_laws.TUNABLE`. A hand-tuned point is
chosen with hindsight, for one trace and one start time: the cheapest value whose late fraction meets the ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.controller.forecasts import QUANTILES
from autoscaler.decide.decider import decide
from autoscaler.model import Observation
from autoscaler.ports import Law
from loadtests.backtest_run import ForecastAt, no_forecast, run_law, story
from loadtests.backtest_score import BacktestError, score
from loadtests.backtest_world import World
from loadtests.peer_laws import LAWS, TUNABLE

OURS = "tidegate"
QUANTILE_GRID = tuple(sorted({*QUANTILES, 0.7, 0.97, 0.98, 0.985}))
COARSE = 8
"""A tuning begins with every eighth value of the grid and halves the distance around the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a law's knob, and what came of it."""

    law: str
    knob: str
    value: float
    late_fraction: float
    gpu_hours: float
    regret: float

    def row(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "law": self.law,
            "knob": self.knob,
            "value": self.value,
            "late_fraction": self.late_fraction,
            "gpu_hours": self.gpu_hours,
            "regret": self.regret,
        }


def law_names() -> tuple[str, ...]:
    """All laws that a backtest knows."""
    return (OURS, *LAWS)


def law_of(name: str, world: World) -> Law:
    """A law by its name, with its documented settings; static-peak stands at what the judged span's peak needs. Raises
    `BacktestError` for an unknown one.
    """
    if name == OURS:
        return decide
    if name not in LAWS:
        raise BacktestError(f"--laws: {name!r} is not known; allowed: {', '.join(law_names())}")
    return TUNABLE[name].make(world.peak) if name == "static_peak" else LAWS[name]


class Bench:
    """A world in which many laws are tried: what the load looks like to all of them is worked out once."""

    def __init__(self, world: World, forecast_at: ForecastAt = no_forecast) -> None:
        self.world = world
        self._forecast_at = forecast_at
        self.seen: tuple[Observation, ...] = story(world)

    def grid(self, law: str) -> tuple[float, ...]:
        """Values of a law's knob, ascending; static-peak's around the peak of the load."""
        if law == OURS:
            return QUANTILE_GRID
        if law == "static_peak":
            return tuple(sorted({float(round(self.world.peak * share / 100)) for share in range(40, 105, 5)}))
        return TUNABLE[law].grid

    def point(self, law: str, value: float) -> Point:
        """Play one value of a law's knob."""
        world, knob = self.world, "quantile"
        made: Law = decide
        if law == OURS:
            world = with_quantile(world, value)
        else:
            made, knob = TUNABLE[law].make(value), TUNABLE[law].knob
        forecast_at = self._forecast_at if law == OURS else no_forecast
        entry = score(run_law(world, made, law, forecast_at=forecast_at, seen=self.seen))
        return Point(
            law=law,
            knob=knob,
            value=value,
            late_fraction=entry["late_fraction"],
            gpu_hours=entry["gpu_hours"],
            regret=entry["regret"] or 0.0,
        )

    def sweep(self, law: str, values: Sequence[float] | None = None) -> list[Point]:
        """Every value of the grid, or about sixteen of them when it is finer."""
        grid = values if values is not None else self.grid(law)
        stride = max(1, round(len(grid) / 16))
        return [self.point(law, value) for value in grid[::stride]]

    def tuned(self, law: str, ask: float) -> tuple[Point | None, list[Point]]:
        """(the cheapest point with a late fraction of at most `ask`, None when there is none; all points tried)."""
        return tuned(lambda value: self.point(law, value), self.grid(law), ask)


def tuned(play: Callable[[float], Point], grid: Sequence[float], ask: float) -> tuple[Point | None, list[Point]]:
    """The cheapest point of a grid within the ask, by trying every `COARSE`-th value and then closer and closer around
    the best; at the end all neighbours within three steps of it were tried, as neighbours differ by chance.
    """
    tried: dict[int, Point] = {}

    def visit(places: Sequence[int]) -> int | None:
        for place in places:
            if 0 <= place < len(grid) and place not in tried:
                tried[place] = play(grid[place])
        return min(
            (place for place in tried if tried[place].late_fraction <= ask),
            key=lambda place: (tried[place].gpu_hours, place),
            default=None,
        )

    stride = min(COARSE, max(1, len(grid) // 4))
    best = visit(range(0, len(grid), stride))
    if best is None:
        best = visit(range(len(grid)))
    while best is not None and stride > 1:
        stride //= 2
        best = visit((best - stride, best + stride))
    while best is not None and (further := visit(range(best - 3, best + 4))) != best:
        best = further
    points = [tried[place] for place in sorted(tried)]
    return (None if best is None else tried[best]), points


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those points than which no other is at once at most as late and at most as dear, by rising lateness."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.late_fraction, point.gpu_hours)):
        if not front or point.gpu_hours < front[-1].gpu_hours:
            front.append(point)
    return front


def with_quantile(world: World, quantile: float) -> World:
    """The same world under a policy that covers another quantile of the forecast."""
    spec = world.policy.spec
    prediction = spec.prediction.model_copy(update={"quantile": quantile})
    return replace(
        world, policy=world.policy.model_copy(update={"spec": spec.model_copy(update={"prediction": prediction})})
    )
