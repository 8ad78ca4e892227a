"""One self-contained HTML page about a run of two laws under the same load: open it offline, mail it, keep it.

The values here (`Recording` and its parts) are all that the page needs; where they came from is not its business.
Figures are made in `report_figures`; this module puts them and the verdict into a page with one inline copy of plotly's
JavaScript (4.8 MB). Columns longer than `POINTS_MAX` are thinned by keeping each bin's largest value, so that peaks
stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

POINTS_MAX = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One tick of a controller. `t_s`: seconds since the load began; counts of replicas; None = unknown.

    `forecast_p50`, `forecast_need`: requests per second, of the largest load within `horizon_s` of this tick, at the
    median and at the quantile that the policy covers.
    """

    t_s: float
    desired: int | None
    ready: int
    starting: int
    standby: int
    draining: int
    queued: int | None
    in_flight: int | None
    forecast_p50: float | None = None
    forecast_need: float | None = None
    horizon_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One law's run. `late_s`, `refused_s`: intended moments of requests that waited too long, or were refused,
    failed or lost; `first_tokens`: (intended moment, time to first token). `score`: its entry in the scorecard.
    """

    law: str
    ticks: tuple[Tick, ...]
    late_s: tuple[float, ...]
    refused_s: tuple[float, ...]
    first_tokens: tuple[tuple[float, float], ...]
    score: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A whole run. `load`: (t_s, requests per second that came); `need`: (t_s, replicas that just carry it); both the
    same for all laws.

    `scored`: the span that the scores are about. `notes` are printed as they are.
    """

    title: str
    verdict: str
    notes: tuple[str, ...]
    scored: tuple[float, float]
    load: tuple[tuple[float, float], ...]
    need: tuple[tuple[float, float], ...]
    tracks: tuple[Track, ...]


def thinned(points: Sequence[tuple[float, float]], most: int = POINTS_MAX) -> list[tuple[float, float]]:
    """At most `most` points: of each run of neighbours the one with the largest value."""
    if len(points) <= most:
        return list(points)
    edges = [round(index * len(points) / most) for index in range(most + 1)]
    return [max(points[low:high], key=lambda point: point[1]) for low, high in pairwise(edges)]


def write_report(path: Path, recording: Recording) -> Path:
    """Write the page; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(recording), encoding="utf-8")
    return path


def page(recording: Recording) -> str:
    """The HTML document."""
    from plotly.offline import get_plotlyjs

    from loadtests.report_figures import figures

    charts = []
    for figure in figures(recording):
        chart = figure.chart.to_html(
            full_html=False, include_plotlyjs=False, config={"displayModeBar": False, "responsive": True}
        )
        head = f"<h2>{escape(figure.title)}</h2><p>{escape(figure.says)}</p>"
        charts.append(f"<section>{head}{chart}</section>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in recording.notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(recording.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><header><h1>{escape(recording.title)}</h1>"
        f'<p class="verdict">{escape(recording.verdict)}</p></header><main>'
        f'<section class="score">{verdict_table(recording)}<ul>{notes}</ul></section>{"".join(charts)}</main>'
        "</body></html>\n"
    )


ROWS: tuple[tuple[str, str, str], ...] = (
    ("requests", "requests", "{:,.0f}"),
    ("answered", "answered", "{:,.0f}"),
    ("refused", "refused", "{:,.0f}"),
    ("failed", "failed", "{:,.0f}"),
    ("lost", "lost", "{:,.0f}"),
    ("late_fraction", "late", "{:.2%}"),
    ("ttft_p50_s", "first token, median", "{:.2f} s"),
    ("ttft_p99_s", "first token, 99th percentile", "{:.2f} s"),
    ("gpu_hours", "GPU-hours", "{:.2f}"),
    ("replicas_max", "most replicas at once", "{:.0f}"),
    ("flaps_per_hour", "turns of the desired number, per hour", "{:.1f}"),
)
"""Rows of the verdict table: key in the scorecard, words, form. Used by the terminal's verdict as well."""


def name_of(law: str) -> str:
    """A law's name as people read it."""
    return {"tidegate": "Tidegate", "hpa": "HPA"}.get(law, law)


def shown(score: Mapping[str, Any], key: str, form: str) -> str:
    """One cell; an unknown value is a dash, never 0."""
    value = score.get(key)
    return "–" if value is None else form.format(value)


def verdict_table(recording: Recording) -> str:
    """The scores side by side."""
    head = "".join(f"<th>{escape(name_of(track.law))}</th>" for track in recording.tracks)
    rows = []
    for key, words, form in ROWS:
        cells = "".join(f"<td>{escape(shown(track.score, key, form))}</td>" for track in recording.tracks)
        rows.append(f"<tr><th>{escape(words)}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


_STYLE = """
:root { color-scheme: light; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: #1b2733; background: #f4f6f8; }
header { background: #10303a; color: #fff; padding: 1.6rem max(1.5rem, calc(50vw - 35rem)); }
h1 { margin: 0; font-size: 1.5rem; font-weight: 600; }
.verdict { margin: .4rem 0 0; font-size: 1.1rem; color: #bfe3e0; }
main { max-width: 70rem; margin: 0 auto; padding: 1rem 1.5rem 3rem; }
section { background: #fff; border: 1px solid #dde3e8; border-radius: 8px; margin: 1rem 0; padding: 1rem 1.4rem;
  overflow-x: auto; }
.score { display: flex; flex-wrap: wrap; gap: 1rem 3rem; align-items: flex-start; }
h2 { margin: 0; font-size: 1.1rem; font-weight: 600; }
section > p { margin: .2rem 0 .4rem; color: #52616e; font-size: .92rem; }
table { border-collapse: collapse; flex: none; }
th, td { padding: .25rem 1.6rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 2px solid #dde3e8; }
tbody th { text-align: left; font-weight: 400; color: #52616e; }
tbody tr + tr > * { border-top: 1px solid #eef1f4; }
ul { margin: .3rem 0 0; padding-left: 1.1rem; color: #52616e; font-size: .92rem; flex: 1 1 20rem; }
li { margin-bottom: .45rem; }
"""
