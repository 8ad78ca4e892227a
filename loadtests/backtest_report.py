"""The page about a backtest: verdict, scores side by side, and the figures of `backtest_figures`; offline, one file.

The values here are all that the page needs; where they come from (a run just played, an earlier output) is not its
business. Plotly's JavaScript (4.8 MB) is in it once; what is drawn is thinned to `POINTS` points a law, so a page stays
below 8 MB however long the trace is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from loadtests.backtest_load import Flags, Floats
from loadtests.backtest_run import Turn

POINTS = 6000
"""Points of a line over all laws together; one law gets at most `POINTS_MAX`."""
POINTS_MAX = 2500


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Track:
    """One law's run: its entry in the scorecard, replicas by state and requests that turned late in each step, shape
    (n,), and what it decided, in its words.
    """

    label: str
    entry: Mapping[str, Any]
    ready: Floats
    starting: Floats
    standby: Floats
    desired: Floats
    late: Floats
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Band:
    """What was forecast, at the moments that it speaks of: requests per second of the trace, shape (m,), NaN while there
    was no forecast. `median` and `covered` are of the largest load within one start time before `t_s`.
    """

    t_s: Floats
    median: Floats
    covered: Floats
    quantile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place in the plot of lateness against cost; `joined` ones of a law are a curve over its knob, `words` say more."""

    label: str
    late_fraction: float
    regret: float
    words: str
    joined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """Everything about a backtest that is shown. Arrays have one entry a step of `step_s` from `start_s` on.

    `rate_per_s`: load in the trace's requests; `need`: replicas that just carry it; steps from `judged` on are scored;
    `ask`: the late fraction that the policy allows.
    """

    title: str
    verdict: str
    notes: tuple[str, ...]
    start_s: float
    step_s: float
    judged: int
    rate_per_s: Floats
    seen: Flags
    need: Floats
    tracks: tuple[Track, ...]
    spots: tuple[Spot, ...]
    ask: float
    band: Band | None = None


ROWS: tuple[tuple[str, str, str], ...] = (
    ("late_fraction", "late requests", "{:.3%}"),
    ("regret", "GPU-hours over the clairvoyant's", "{:.3f}"),
    ("gpu_hours", "GPU-hours", "{:,.1f}"),
    ("clairvoyant_gpu_hours", "the clairvoyant's GPU-hours", "{:,.1f}"),
    ("cost", "cost", "{:,.2f}"),
    ("requests", "requests", "{:,.0f}"),
    ("refused", "of them evicted from the queue", "{:,.0f}"),
    ("replicas_max", "most replicas at once", "{:.0f}"),
    ("flaps_per_hour", "turns of the desired number, per hour", "{:.2f}"),
    ("flaps_worst_hour", "turns in the worst hour", "{:.0f}"),
)
"""Rows of the score table: key in the scorecard, words, form. A row that no run knows is left out."""

NAMES = {
    "tidegate": "Tidegate",
    "hpa": "HPA",
    "keda": "KEDA",
    "knative": "Knative KPA",
    "aibrix": "AIBrix APA",
    "ray_serve": "Ray Serve",
    "skyserve": "SkyServe",
    "dynamo": "Dynamo planner",
    "static_peak": "static peak",
}


def name_of(label: str) -> str:
    """A law's name as people read it."""
    return NAMES.get(label, label)


def shown(entry: Mapping[str, Any], key: str, form: str) -> str:
    """One cell; an unknown value is a dash, never 0."""
    value = entry.get(key)
    return "–" if value is None else form.format(value)


def verdict(entries: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """The first two runs in a sentence."""
    parts = [
        f"{name_of(label)}: {shown(entry, 'late_fraction', '{:.2%}')} late at {shown(entry, 'regret', '{:.2f}')} times "
        "the least GPU-hours"
        for label, entry in zip(labels[:2], entries[:2], strict=True)
    ]
    return "; ".join(parts) + "."


def write_page(path: Path, page: Page) -> Path:
    """Write the HTML document; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html_of(page), encoding="utf-8")
    return path


def html_of(page: Page) -> str:
    """The HTML document."""
    from plotly.offline import get_plotlyjs

    from loadtests.backtest_figures import figures

    charts = []
    for figure in figures(page):
        chart = figure.chart.to_html(
            full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True}
        )
        charts.append(
            f"<section><h2>{escape(figure.title)}</h2><p>{escape(figure.says)}</p>"
            f'<div class="wide" style="height:{figure.chart.layout.height}px">{chart}</div></section>'
        )
    notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><header><h1>{escape(page.title)}</h1>"
        f'<p class="verdict">{escape(page.verdict)}</p></header><main>'
        f'<section class="score"><div class="wide">{score_table(page)}</div><ul>{notes}</ul></section>'
        f"{''.join(charts)}</main></body></html>\n"
    )


def score_table(page: Page) -> str:
    """The scores side by side, one column a law."""
    head = "".join(f"<th>{escape(name_of(track.label))}</th>" for track in page.tracks)
    rows = []
    for key, words, form in ROWS:
        if all(track.entry.get(key) is None for track in page.tracks):
            continue
        cells = "".join(f"<td>{escape(shown(track.entry, key, form))}</td>" for track in page.tracks)
        rows.append(f"<tr><th>{escape(words)}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


_STYLE = """
:root { color-scheme: light; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: #1b2733; background: #f4f6f8; }
header { background: #10303a; color: #fff; padding: 1.6rem max(1.5rem, calc(50vw - 38rem)); }
h1 { margin: 0; font-size: 1.5rem; font-weight: 600; overflow-wrap: anywhere; }
.verdict { margin: .4rem 0 0; font-size: 1.1rem; color: #bfe3e0; }
main { max-width: 76rem; margin: 0 auto; padding: 1rem 1.5rem 3rem; }
section { background: #fff; border: 1px solid #dde3e8; border-radius: 8px; margin: 1rem 0; padding: 1rem 1.4rem; }
.wide { overflow-x: auto; }
h2 { margin: 0; font-size: 1.1rem; font-weight: 600; }
section > p { margin: .2rem 0 .4rem; color: #52616e; font-size: .92rem; max-width: 60rem; }
table { border-collapse: collapse; }
th, td { padding: .25rem 1.4rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { border-bottom: 2px solid #dde3e8; }
tbody th { text-align: left; font-weight: 400; color: #52616e; }
tbody tr + tr > * { border-top: 1px solid #eef1f4; }
ul { margin: 1rem 0 0; padding-left: 1.1rem; color: #52616e; font-size: .92rem; }
li { margin-bottom: .3rem; }
"""
