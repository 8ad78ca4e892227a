"""The score of a run: what became of every request, how late, and what the replicas cost. Pure functions over values.

Knows nothing of sockets and of laws. Definitions are those of the design (contracts, section 6): late = waited in a
queue longer than the SLO's `queue_s`, or time to first token above `ttft_s`, or refused, failed or lost; attainment =
1 - late / (requests - client_gone); GPU-hours from start command to exit, within the scored window; a flap is a turn
of the desired total from up to down or back. What a run cannot know is None (null in the file), never 0.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtests.replay import Outcome

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What counts as late: waiting longer than `queue_s`, or a first token later than `ttft_s` (None = not asked)."""

    queue_s: float = 5.0
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLife:
    """One replica from its start command to its exit (None = still there), on one clock; `gpu_share` of a whole GPU."""

    started_s: float
    gone_s: float | None = None
    gpu_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The scored span [start_s, end_s), on the same clock as the lives and the desired totals."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not self.end_s > self.start_s:
            raise ValueError(f"window: ends at {self.end_s}; allowed is later than its start {self.start_s}")

    @property
    def hours(self) -> float:
        """Its length in hours."""
        return (self.end_s - self.start_s) / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScore:
    """What the replicas of one run amount to. None = unknown; `cost` in the unit of the price per GPU-hour."""

    gpu_hours: float | None = None
    clairvoyant_gpu_hours: float | None = None
    flaps_per_hour: float | None = None
    flaps_worst_hour: int | None = None
    replicas_max: int | None = None
    cost: float | None = None


UNKNOWN_FLEET = FleetScore()
"""For a run that sees only its own requests, such as `tidegate replay`."""


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile, linear between order statistics; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def is_late(outcome: Outcome, slo: Slo) -> bool:
    """Whether one request was late. An answer that does not say how long it waited is late by its first token only."""
    if outcome.outcome != "answered":
        return outcome.outcome != "client_gone"
    if outcome.queue_s is not None and outcome.queue_s > slo.queue_s:
        return True
    return slo.ttft_s is not None and outcome.ttft_s is not None and outcome.ttft_s > slo.ttft_s


def late_fraction(outcomes: Sequence[Outcome], slo: Slo) -> float | None:
    """Late requests over all but those whose client left; None when there are none, or when an answer did not say how
    long it had waited.
    """
    judged = [one for one in outcomes if one.outcome != "client_gone"]
    if not judged or any(one.queue_s is None for one in judged if one.outcome == "answered"):
        return None
    return sum(is_late(one, slo) for one in judged) / len(judged)


def gpu_hours(lives: Iterable[ReplicaLife], window: Window) -> float:
    """GPU-hours inside the window: each life, clipped to it, times its share."""
    total_s = 0.0
    for life in lives:
        end_s = window.end_s if life.gone_s is None else min(life.gone_s, window.end_s)
        total_s += max(0.0, end_s - max(life.started_s, window.start_s)) * life.gpu_share
    return total_s / HOUR_S


def replicas_max(lives: Iterable[ReplicaLife], window: Window) -> int:
    """The most replicas alive at one moment of the window. One that goes as another starts does not count twice."""
    events: list[tuple[float, int]] = []
    for life in lives:
        start_s = max(life.started_s, window.start_s)
        end_s = window.end_s if life.gone_s is None else min(life.gone_s, window.end_s)
        if end_s > start_s:
            events += [(start_s, 1), (end_s, -1)]
    alive = most = 0
    for _, change in sorted(events):
        alive += change
        most = max(most, alive)
    return most


def flap_times(desired: Iterable[tuple[float, int]]) -> list[float]:
    """Moments at which the desired total turned from up to down or back; rows are (time_s, total) in order of time."""
    turns: list[float] = []
    last: int | None = None
    direction = 0
    for at_s, total in desired:
        if last is not None and total != last:
            heading = 1 if total > last else -1
            if direction and heading != direction:
                turns.append(at_s)
            direction = heading
        last = total
    return turns


def flaps(desired: Iterable[tuple[float, int]], window: Window) -> tuple[float, int]:
    """(mean flaps per hour, flaps of the worst 60 minutes) inside the window. A turn is judged with what came before
    the window.
    """
    turns = [at_s for at_s in flap_times(desired) if window.start_s <= at_s < window.end_s]
    worst = first = 0
    for last, at_s in enumerate(turns):
        while at_s - turns[first] >= HOUR_S:
            first += 1
        worst = max(worst, last - first + 1)
    return len(turns) / window.hours, worst


def fleet_score(
    lives: Sequence[ReplicaLife],
    desired: Sequence[tuple[float, int]],
    window: Window,
    *,
    clairvoyant_gpu_hours: float | None = None,
    price_per_gpu_hour: float | None = None,
) -> FleetScore:
    """Everything about the replicas of one run inside the window. Without a row of `desired` flaps are unknown, not
    0.
    """
    used = gpu_hours(lives, window)
    mean, worst = flaps(desired, window) if desired else (None, None)
    return FleetScore(
        gpu_hours=used,
        clairvoyant_gpu_hours=clairvoyant_gpu_hours,
        flaps_per_hour=mean,
        flaps_worst_hour=worst,
        replicas_max=replicas_max(lives, window),
        cost=None if price_per_gpu_hour is None else used * price_per_gpu_hour,
    )


def run_score(
    law: str | None, outcomes: Sequence[Outcome], slo: Slo, fleet: FleetScore = UNKNOWN_FLEET
) -> dict[str, Any]:
    """One entry of `runs` in `scorecard.json`. `law` None = nobody knows what scaled the server."""
    counts = Counter(one.outcome for one in outcomes)
    late = late_fraction(outcomes, slo)
    first_tokens = [one.ttft_s for one in outcomes if one.outcome == "answered" and one.ttft_s is not None]
    used, least = fleet.gpu_hours, fleet.clairvoyant_gpu_hours
    return {
        "law": law,
        "requests": len(outcomes),
        "answered": counts["answered"],
        "refused": counts["refused"],
        "failed": counts["failed"],
        "client_gone": counts["client_gone"],
        "lost": counts["lost"],
        "attainment": None if late is None else 1.0 - late,
        "late_fraction": late,
        "ttft_p50_s": percentile(first_tokens, 0.50),
        "ttft_p99_s": percentile(first_tokens, 0.99),
        "gpu_hours": used,
        "clairvoyant_gpu_hours": least,
        "regret": used / least if used is not None and least else None,
        "flaps_per_hour": fleet.flaps_per_hour,
        "flaps_worst_hour": fleet.flaps_worst_hour,
        "replicas_max": fleet.replicas_max,
        "cost": fleet.cost,
    }


def scorecard(trace: str, seed: int | None, runs: Sequence[Mapping[str, Any]], bad_rows: int = 0) -> dict[str, Any]:
    """The document of `scorecard.json`; `bad_rows` of the trace were skipped."""
    return {"trace": trace, "seed": seed, "bad_rows": bad_rows, "runs": [dict(run) for run in runs]}


def write_scorecard(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write `scorecard.json` into `folder`, making it if need be; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "scorecard.json"
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path
