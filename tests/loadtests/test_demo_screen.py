"""What the demo shows and keeps, from recorded values."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from loadtests.demo_load import FACTOR, generated
from loadtests.demo_screen import View, plain_line, screen, sparkline, verdict_sentence, verdict_table
from loadtests.demo_watch import LawView, Watch
from loadtests.replay import Outcome
from loadtests.scorecard import Slo

OURS = LawView(
    law="tidegate",
    ready=6,
    starting=1,
    desired=7,
    queued=0,
    ttft_p50_s=0.11,
    ttft_p95_s=0.2,
    late=0.0012,
    gpu_hours=2.5,
    forecast_p50=31.0,
    forecast_need=38.5,
    horizon_s=13.0,
    ready_before=(2.0, 3.0, 5.0, 6.0),
    queued_before=(0.0, 0.0),
)
THEIRS = LawView(law="hpa", ready=5, starting=3, draining=1, late=0.08, refused=3, queued=14, queued_before=(0.0, 14.0))
VIEW = View(
    title="generated days, seed 1",
    phase="scored",
    t_s=63.4,
    end_s=192.0,
    load_per_s=31.3,
    need=5.5,
    load_before=(8.0, 9.0, 20.0, 31.0),
    laws=(OURS, THEIRS),
)


def text_of(renderable: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # a StringIO, given above


def test_the_table_shows_both_laws_within_eighty_columns() -> None:
    text = text_of(screen(VIEW), width=80)
    for words in (
        "Tidegate",
        "HPA",
        "31.3 requests/s",
        "31.0 to 38.5",
        "5.5 replicas",
        "0.12%",
        "8.00%",
        "63 of 192 s",
    ):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_before_anything_is_known_there_are_dashes_and_no_zeros() -> None:
    view = replace(VIEW, t_s=-8.0, laws=(LawView(law="tidegate"), LawView(law="hpa")), load_before=())
    text = text_of(screen(view))
    assert "–" in text
    assert "  0 of 192 s" in text
    assert "late –" in plain_line(view)


def test_a_line_for_pipes() -> None:
    line = plain_line(VIEW)
    assert "Tidegate: 6 ready 1 starting" in line
    assert "forecast 38/s" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("values", "highest", "cells", "bars"),
    [
        ((), None, 5, ""),
        ((0.0, 0.0), None, 5, "▁▁"),
        ((0.0, 7.0), 7.0, 5, "▁█"),
        ((1.0, 2.0, 4.0, 4.0), 8.0, 2, "▃▅"),
        ((3.0,), None, 5, "█"),
    ],
)
def test_sparklines(values: tuple[float, ...], highest: float | None, cells: int, bars: str) -> None:
    assert sparkline(values, highest, cells) == bars


def score(law: str, late: float | None, hours: float = 2.0) -> dict[str, Any]:
    return {"law": law, "late_fraction": late, "gpu_hours": hours, "requests": 10}


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        (score("tidegate", 0.001, 2.2), score("hpa", 0.08), "Tidegate was late less often, with 10% more GPU-hours."),
        (score("tidegate", 0.2, 1.8), score("hpa", 0.08), "Tidegate was late MORE often, with 10% fewer GPU-hours."),
        (score("tidegate", 0.0), score("hpa", 0.0), "equally often"),
        (score("tidegate", None), score("hpa", 0.0), "No verdict"),
    ],
)
def test_the_verdict_says_losses_as_plainly_as_wins(ours: dict[str, Any], theirs: dict[str, Any], says: str) -> None:
    assert says in verdict_sentence([ours, theirs])
    assert "Verdict" in text_of(verdict_table([ours, theirs]))


def outcome(planned_s: float, verdict: str = "answered", queue_s: float | None = 0.0) -> Outcome:
    return Outcome(
        request_id="r",
        planned_s=planned_s,
        sent_s=planned_s,
        first_byte_s=planned_s + 0.2 if verdict == "answered" else None,
        done_s=planned_s + 1.5,
        status=200,
        queue_s=queue_s,
        tokens=3,
        outcome=verdict,
    )


def row(seq: int, epoch_s: float, ready: int, desired: int) -> dict[str, Any]:
    counts = {"ready": ready, "starting": 1, "standby": 0, "draining": 0, "queued": 2, "in_flight": 9}
    return {"seq": seq, "epoch_s": epoch_s, "desired": desired, "forecast_p50": 10.0, "forecast_need": 15.5, **counts}


def test_a_watch_counts_only_what_is_scored_and_reads_each_tick_once() -> None:
    load = generated(1)
    watch = Watch("tidegate", load, Slo(queue_s=1.0))
    assert watch.view(0.0) == LawView(law="tidegate")
    for one in (outcome(10.0, queue_s=9.0), outcome(60.0), outcome(61.0, queue_s=1.5), outcome(62.0, "refused", None)):
        watch.took(one)
    origin = 1_000_000.0
    forecast = {"forecast": {"horizon_s": 13.0}}
    rows = [row(1, origin + 59.0, 3, 4), row(2, origin + 60.0, 4, 4)]
    watch.told(rows, forecast, origin)
    watch.told(rows[1:], forecast, origin)
    view = watch.view(64.0)
    assert [tick.t_s for tick in watch.ticks] == [59.0, 60.0]
    assert (view.ready, view.forecast_need, view.horizon_s, view.queued) == (4, 15.5, 13.0, 2)
    assert view.late == pytest.approx(2 / 3)
    assert view.ttft_p50_s == pytest.approx(0.2)

    lives: list[dict[str, Any]] = [
        {"started_epoch_s": origin - 20, "gone_epoch_s": None, "gpu_share": 1.0},
        {"started_epoch_s": origin + 96, "gone_epoch_s": origin + 120, "gpu_share": 0.5},
    ]
    final = watch.score(lives, origin)
    assert (final["requests"], final["answered"], final["refused"], final["lost"]) == (3, 2, 1, 0)
    assert final["gpu_hours"] == pytest.approx((144 + 12) * FACTOR / 3600)
    assert final["late_fraction"] == pytest.approx(2 / 3)

    track = watch.track(final)
    assert (track.late_s, track.refused_s) == ((10.0, 61.0), (62.0,))
    assert len(track.first_tokens) == 3
