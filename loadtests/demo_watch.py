"""What is seen of one law while the demo runs, and what is kept of it for the verdict and the report. No sockets, no
terminal.

`Watch` takes outcomes of requests, ticks of the controller's timeline and the final list of replicas; `view` is what
the screen shows of the present, `track` and `score` what is left at the end. Moments are seconds since the load began,
on the demo's clock; GPU-hours and flaps are counted on the load's own clock, `FACTOR` times as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.demo_load import FACTOR, DemoLoad
from loadtests.replay import Outcome
from loadtests.report import Tick, Track
from loadtests.scorecard import ReplicaLife, Slo, Window, fleet_score, is_late, percentile, run_score

RECENT_S = 5.0
SPARK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LawView:
    """One law at present. None = unknown. `ready_before`, `queued_before`: the last minute, one value a tick;
    `broken`: requests failed or lost.
    """

    law: str
    ready: int = 0
    starting: int = 0
    standby: int = 0
    draining: int = 0
    desired: int | None = None
    queued: int | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    late: float | None = None
    refused: int = 0
    broken: int = 0
    gpu_hours: float | None = None
    forecast_p50: float | None = None
    forecast_need: float | None = None
    horizon_s: float | None = None
    ready_before: tuple[float, ...] = ()
    queued_before: tuple[float, ...] = ()


class Watch:
    """One law's run as it happens."""

    def __init__(self, law: str, load: DemoLoad, slo: Slo) -> None:
        self.law = law
        self.ticks: list[Tick] = []
        self.outcomes: list[Outcome] = []
        self.seq = 0
        self._window = Window(start_s=load.warm_up_s, end_s=load.end_s)
        self._slo = slo
        self._recent: deque[Outcome] = deque(maxlen=1000)
        self._judged = self._late = self._refused = self._broken = 0
        self._replica_s = 0.0
        self._horizon_s: float | None = None

    def took(self, outcome: Outcome) -> None:
        """One request is over."""
        self.outcomes.append(outcome)
        self._recent.append(outcome)
        if self._scored(outcome):
            self._refused += outcome.outcome == "refused"
            self._broken += outcome.outcome in ("failed", "lost")
            self._judged += 1
            self._late += is_late(outcome, self._slo)

    def told(self, rows: Iterable[Mapping[str, Any]], status: Mapping[str, Any], origin_epoch_s: float) -> None:
        """New rows of the timeline; `status` says how far their forecasts look, which changes little."""
        self._horizon_s = (status.get("forecast") or {}).get("horizon_s", self._horizon_s)
        for row in rows:
            if row["seq"] <= self.seq:
                continue
            self.seq = row["seq"]
            self._add(
                Tick(
                    t_s=row["epoch_s"] - origin_epoch_s,
                    desired=row["desired"],
                    ready=row["ready"],
                    starting=row["starting"],
                    standby=row["standby"],
                    draining=row["draining"],
                    queued=row["queued"],
                    in_flight=row["in_flight"],
                    forecast_p50=row["forecast_p50"],
                    forecast_need=row["forecast_need"],
                    horizon_s=self._horizon_s,
                )
            )

    def view(self, t_s: float) -> LawView:
        """What is to be seen now."""
        near = [one.ttft_s for one in self._recent if one.ttft_s is not None and (one.done_s or 0.0) > t_s - RECENT_S]
        if not self.ticks:
            return LawView(law=self.law)
        tick = self.ticks[-1]
        shown = [row for row in self.ticks if row.t_s > t_s - SPARK_S]
        return LawView(
            law=self.law,
            ready=tick.ready,
            starting=tick.starting,
            standby=tick.standby,
            draining=tick.draining,
            desired=tick.desired,
            queued=tick.queued,
            ttft_p50_s=percentile(near, 0.5),
            ttft_p95_s=percentile(near, 0.95),
            late=self._late / self._judged if self._judged else None,
            refused=self._refused,
            broken=self._broken,
            gpu_hours=self._replica_s * FACTOR / 3600 if t_s > self._window.start_s else None,
            forecast_p50=tick.forecast_p50,
            forecast_need=tick.forecast_need,
            horizon_s=tick.horizon_s,
            ready_before=tuple(float(row.ready) for row in shown),
            queued_before=tuple(float(row.queued or 0) for row in shown),
        )

    def score(self, replicas: Sequence[Mapping[str, Any]], origin_epoch_s: float) -> dict[str, Any]:
        """This law's entry in the scorecard. `replicas` as the controller lists them."""
        lives = [
            ReplicaLife(
                started_s=(row["started_epoch_s"] - origin_epoch_s) * FACTOR,
                gone_s=None if row["gone_epoch_s"] is None else (row["gone_epoch_s"] - origin_epoch_s) * FACTOR,
                gpu_share=row["gpu_share"],
            )
            for row in replicas
        ]
        desired = [(tick.t_s * FACTOR, tick.desired) for tick in self.ticks if tick.desired is not None]
        window = Window(start_s=self._window.start_s * FACTOR, end_s=self._window.end_s * FACTOR)
        scored = [outcome for outcome in self.outcomes if self._scored(outcome)]
        return run_score(self.law, scored, self._slo, fleet_score(lives, desired, window))

    def track(self, score: Mapping[str, Any]) -> Track:
        """What the report draws."""
        good = [one for one in self.outcomes if one.outcome == "answered"]
        bad = [one for one in self.outcomes if one.outcome not in ("answered", "client_gone")]
        first = [(one.planned_s, one.ttft_s) for one in good if one.ttft_s is not None]
        return Track(
            law=self.law,
            ticks=tuple(self.ticks),
            late_s=tuple(sorted(one.planned_s for one in good if is_late(one, self._slo))),
            refused_s=tuple(sorted(one.planned_s for one in bad)),
            first_tokens=tuple(sorted(first)),
            score=score,
        )

    def _scored(self, outcome: Outcome) -> bool:
        return self._window.start_s <= outcome.planned_s < self._window.end_s

    def _add(self, tick: Tick) -> None:
        if self.ticks:
            alive = tick.ready + tick.starting + tick.standby + tick.draining
            since_s = max(self.ticks[-1].t_s, self._window.start_s)
            self._replica_s += alive * max(0.0, min(tick.t_s, self._window.end_s) - since_s)
        self.ticks.append(tick)
