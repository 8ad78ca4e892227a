"""The report page is whole, works offline, and says unknown as unknown."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadtests.report import POINTS_MAX, Recording, Tick, Track, page, shown, thinned, verdict_table, write_report

SCORE = {
    "requests": 4000,
    "answered": 3990,
    "refused": 0,
    "late_fraction": 0.0125,
    "gpu_hours": 3.2,
    "ttft_p50_s": None,
}


def recording(seconds: int = 60) -> Recording:
    load = tuple((float(at), 20 + 10 * math.sin(at / 8)) for at in range(seconds))
    ticks = tuple(
        Tick(
            t_s=at,
            desired=4,
            ready=3,
            starting=1,
            standby=0,
            draining=0,
            queued=None,
            in_flight=None,
            forecast_p50=rate,
            forecast_need=rate + 4,
            horizon_s=12.0,
        )
        for at, rate in load
    )
    first = Track(law="tidegate", ticks=ticks, late_s=(50.0,), refused_s=(), first_tokens=((50.0, 1.2),), score=SCORE)
    second = Track(law="hpa", ticks=ticks[:9], late_s=(), refused_s=(51.5,), first_tokens=(), score={})
    return Recording(
        title="A <run>",
        verdict="Tidegate wins & loses",
        notes=("Time runs 15 times as fast.",),
        scored=(20.0, float(seconds)),
        load=load,
        need=tuple((at, rate / 8) for at, rate in load),
        tracks=(first, second),
    )


def test_the_page_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    path = write_report(tmp_path / "new" / "report.html", recording())
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 8_000_000
    assert text.count("plotly.js v") == 1
    assert 'src="http' not in text
    assert 'href="http' not in text.split("</script>")[-1]
    assert text.count("<section") == 5
    assert "A &lt;run&gt;" in text
    assert "Tidegate wins &amp; loses" in text
    assert "Time runs 15 times as fast." in text


def test_a_long_run_is_thinned() -> None:
    assert len(page(recording(20_000))) < len(page(recording(3_000))) + 200_000


def test_thinning_keeps_peaks_and_order() -> None:
    points = [(float(at), 100.0 if at == 7_777 else 1.0) for at in range(10_000)]
    few = thinned(points)
    assert len(few) == POINTS_MAX
    assert (7_777.0, 100.0) in few
    assert few == sorted(few)
    assert thinned(points[:10]) == points[:10]


@pytest.mark.parametrize(
    ("key", "form", "cell"),
    [("late_fraction", "{:.2%}", "1.25%"), ("ttft_p50_s", "{:.2f} s", "–"), ("lost", "{}", "–")],
)
def test_unknown_is_a_dash(key: str, form: str, cell: str) -> None:
    assert shown(SCORE, key, form) == cell


def test_the_table_has_a_column_for_each_law() -> None:
    table = verdict_table(recording())
    assert "<th>Tidegate</th><th>HPA</th>" in table
    assert "<td>4,000</td><td>–</td>" in table
