"""The figures of a backtest's page: load and forecast, replicas against need, lateness, cost, and lateness against cost.

One function a figure; a law keeps its colour on the whole page. Lines are thinned by bins of neighbouring steps: of load
the highest is kept, of replicas the step at which most were short, so that what matters survives; requests are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loadtests.backtest_load import Floats
from loadtests.backtest_report import POINTS, POINTS_MAX, Page, Track, name_of

COLOURS = ("#00796b", "#d55e00", "#7b5ea7", "#0072b2", "#b8860b", "#cc79a7", "#555f66", "#56a0d3", "#8c564b")
FIXED = {"tidegate": COLOURS[0], "hpa": COLOURS[1]}
STATES = (("ready", "#4c9f94"), ("standby", "#9c89c9"), ("starting", "#f0c060"))
BAND = "rgba(0,121,107,.18)"
INK = "#1b2733"
MUTED = "#52616e"
SPANS_S = (15.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0)
"""Late requests are summed over the shortest of these that keeps the bars below 700."""
ASIDE = {"orientation": "v", "x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top"}
"""A legend beside the chart, for more names than one line above it holds."""
EPOCH_LEAST_S = 1e8
"""Times above this are epoch seconds and are shown as dates; smaller ones count from the beginning of the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart with its heading and a sentence that says how to read it."""

    title: str
    says: str
    chart: Any


def figures(page: Page) -> tuple[Figure, ...]:
    """All figures, in the order in which they are read."""
    return (_load(page), _replicas(page), _late(page), _cost(page), _pareto(page))


def colours(page: Page) -> dict[str, str]:
    """A colour for each label."""
    labels = dict.fromkeys([*(track.label for track in page.tracks), *(spot.label for spot in page.spots)])
    free = [colour for colour in COLOURS if colour not in [FIXED.get(label) for label in labels]]
    found: dict[str, str] = {}
    for label in labels:
        found[label] = FIXED[label] if label in FIXED else free.pop(0) if free else MUTED
    return found


def _load(page: Page) -> Figure:
    chart = go.Figure()
    if page.band is not None:
        band, place = page.band, _peaks(np.nan_to_num(page.band.covered), POINTS_MAX)
        at = _moments(page, band.t_s[place])
        common = {"x": at, "mode": "lines", "hovertemplate": "%{y:.4g}/s"}
        line = {"color": COLOURS[0], "width": 1}
        chart.add_scatter(**common, y=_few(band.median[place]), name="forecast, median", line={**line, "dash": "dot"})
        chart.add_scatter(
            **common,
            y=_few(band.covered[place]),
            name=f"forecast, {band.quantile:g} quantile",
            line=line,
            fill="tonexty",
            fillcolor=BAND,
        )
    place = _peaks(page.rate_per_s, POINTS_MAX)
    chart.add_scatter(
        x=_moments(page, _times(page)[place]),
        y=_few(page.rate_per_s[place]),
        name="load that came",
        mode="lines",
        line={"color": INK, "width": 1.3},
        hovertemplate="%{y:.4g}/s",
    )
    for first, last in _gaps(page):
        x = _moments(page, np.array([page.start_s + first * page.step_s, page.start_s + last * page.step_s]))
        chart.add_vrect(x0=x[0], x1=x[1], fillcolor="#d55e00", opacity=0.12, line_width=0, layer="below")
    _dress(chart, page, "requests per second", height=400)
    says = (
        "The band was made one start time before the moment at which it is drawn: from the median to the quantile that "
        "capacity must cover, each of the largest load within one start time. Load above it came unforeseen. "
    )
    missing = "Shaded: the collector was down; the load is bridged, and no law saw it." if not page.seen.all() else ""
    return Figure(
        title="Load, and what was forecast for it" if page.band else "Load",
        says=(says if page.band else "No law here looks ahead. ") + missing,
        chart=chart,
    )


def _replicas(page: Page) -> Figure:
    tracks, colour = page.tracks, colours(page)
    height = 230 * len(tracks) + 110
    chart = make_subplots(
        rows=len(tracks),
        cols=1,
        shared_xaxes=True,
        shared_yaxes="all",
        vertical_spacing=36 / height if len(tracks) > 1 else 0.0,
        subplot_titles=[f"<b>{name_of(track.label)}</b>" for track in tracks],
    )
    most = 1.0
    for row, track in enumerate(tracks, start=1):
        place = _peaks(page.need - track.ready, _budget(page))
        at = _moments(page, _times(page)[place])
        for state, fill in STATES:
            held = getattr(track, state)[place]
            if state == "standby" and not held.any():
                continue
            chart.add_scatter(
                x=at,
                y=held.astype(np.int32),
                name=state,
                legendgroup=state,
                showlegend=row == 1,
                stackgroup=str(row),
                line={"shape": "hv", "width": 0},
                fillcolor=fill,
                hovertemplate="%{y:.0f}",
                row=row,
                col=1,
            )
        chart.add_scatter(
            x=at,
            y=_few(page.need[place]),
            name="need",
            legendgroup="need",
            showlegend=row == 1,
            mode="lines",
            line={"color": INK, "width": 1.2},
            hovertemplate="%{y:.1f}",
            row=row,
            col=1,
        )
        _decisions(chart, page, track, row)
        most = max(most, float((track.ready + track.starting + track.standby).max()))
    for note, track in zip(chart.layout.annotations, tracks, strict=True):
        note.update(x=0, xanchor="left", font={"size": 14, "color": colour[track.label]})
    _dress(chart, page, "replicas", height=height)
    chart.update_yaxes(range=[0, most * 1.05])
    return Figure(
        title="Replicas by state, against need",
        says="Each coloured area is paid for; only ready replicas answer. Where the line is above the green, requests "
        "wait. Point at a grey dot to read the law's reason for a change. Of each stretch the moment is drawn at which "
        "most replicas were short.",
        chart=chart,
    )


def _decisions(chart: Any, page: Page, track: Track, row: int) -> None:
    """Dots with the reason of each change of the total; of many the largest changes."""
    turns = track.turns
    limit = max(60, 800 // len(page.tracks))
    if len(turns) > limit:
        totals = np.array([track.desired[0], *(turn.desired for turn in turns)])
        largest = np.argsort(-np.abs(np.diff(totals)), kind="stable")[:limit]
        turns = tuple(turns[place] for place in np.sort(largest))
    if not turns:
        return
    chart.add_scatter(
        x=_moments(page, np.array([turn.t_s for turn in turns])),
        y=[turn.desired for turn in turns],
        text=[_wrapped(turn.reason) for turn in turns],
        name="decisions",
        legendgroup="decisions",
        showlegend=row == 1,
        mode="markers",
        marker={"size": 3.5, "color": MUTED, "opacity": 0.5},
        hovertemplate="desired %{y}: %{text}",
        row=row,
        col=1,
    )


def _late(page: Page) -> Figure:
    chart, colour = go.Figure(), colours(page)
    span_s = next((span for span in SPANS_S if len(page.need) * page.step_s <= 700 * span), SPANS_S[-1])
    edges = _edges(len(page.need), width=max(1, round(span_s / page.step_s)))
    for track in page.tracks:
        sums = np.add.reduceat(track.late, edges[:-1])
        chart.add_scatter(
            x=_moments(page, _times(page)[edges[:-1]]),
            y=_few(sums),
            name=f"{name_of(track.label)}: {float(track.entry['late_fraction']):.2%} late",
            mode="lines",
            line={"color": colour[track.label], "width": 1.5, "shape": "hv"},
            hovertemplate="%{y:,.0f}",
        )
    span_s = int(edges[1] - edges[0]) * page.step_s
    _dress(chart, page, f"requests in {_span(span_s)}", height=340)
    chart.update_yaxes(rangemode="tozero")
    if len(page.tracks) > 3:
        chart.update_layout(legend=ASIDE)
    return Figure(
        title="Late requests",
        says=f"Requests that waited longer than the SLO allows or were evicted, summed over {_span(span_s)} each.",
        chart=chart,
    )


def _cost(page: Page) -> Figure:
    chart, colour = go.Figure(), colours(page)
    least = np.ceil(page.need - 1e-9)
    place = np.unique(np.linspace(page.judged, len(page.need) - 1, min(600, len(page.need) - page.judged)).astype(int))
    for track in page.tracks:
        spare = (track.ready + track.starting + track.standby - least)[page.judged :]
        spent = np.cumsum(spare) * page.step_s / 3600.0
        chart.add_scatter(
            x=_moments(page, _times(page)[place]),
            y=_few(spent[place - page.judged]),
            name=name_of(track.label),
            mode="lines",
            line={"color": colour[track.label], "width": 1.8},
            hovertemplate="%{y:,.0f} h",
        )
    _dress(chart, page, "replica-hours beyond need", height=340)
    if len(page.tracks) > 3:
        chart.update_layout(legend=ASIDE)
    return Figure(
        title="What was spent beyond need",
        says="Replica-hours paid for, loading included, less those that the load just needed, added up over the judged "
        "span. A steep stretch is waste; where a line falls, replicas were short.",
        chart=chart,
    )


def _pareto(page: Page) -> Figure:
    chart, colour = go.Figure(), colours(page)
    labels = dict.fromkeys(spot.label for spot in page.spots)
    for label in labels:
        curve = sorted(
            (spot for spot in page.spots if spot.label == label and spot.joined), key=lambda spot: spot.regret
        )
        if curve:
            chart.add_scatter(
                x=[100 * spot.late_fraction for spot in curve],
                y=[spot.regret for spot in curve],
                text=[spot.words for spot in curve],
                name=f"{name_of(label)}, over its knob",
                mode="lines+markers",
                marker={"size": 5},
                line={"color": colour[label], "width": 1.3},
                hovertemplate="%{text}<br>%{x:.3f}% late, %{y:.3f}",
            )
        alone = [spot for spot in page.spots if spot.label == label and not spot.joined]
        chart.add_scatter(
            x=[100 * spot.late_fraction for spot in alone],
            y=[spot.regret for spot in alone],
            text=[spot.words for spot in alone],
            name=name_of(label),
            mode="markers",
            marker={"size": 12, "symbol": "diamond", "color": colour[label], "line": {"color": "#fff", "width": 1}},
            hovertemplate="%{text}<br>%{x:.3f}% late, %{y:.3f}",
        )
    alone = [spot for spot in page.spots if not spot.joined]
    # Curves run on to where everything is late; what is near the ask, and the runs themselves, is what is looked at.
    wide = [spot for spot in page.spots if spot.late_fraction <= 10 * page.ask]
    right = 100 * max([2 * page.ask, *(spot.late_fraction for spot in [*alone, *wide])])
    heights = [1.0, *(spot.regret for spot in [*alone, *wide])]
    chart.add_vline(x=100 * page.ask, line={"color": MUTED, "width": 1, "dash": "dash"})
    chart.add_annotation(
        x=100 * page.ask,
        y=1,
        yref="paper",
        text=f" asked: {page.ask:.2%}",
        showarrow=False,
        xanchor="left",
        yanchor="top",
    )
    _look(chart, "GPU-hours over the clairvoyant's", height=440)
    chart.update_layout(hovermode="closest", legend=ASIDE)
    chart.update_xaxes(title={"text": "late requests, %"}, range=[-0.03 * right, 1.05 * right], gridcolor="#eef1f4")
    spare = 0.06 * (max(heights) - min(heights)) + 0.01
    chart.update_yaxes(range=[min(heights) - spare, max(heights) + spare])
    return Figure(
        title="Lateness against cost",
        says="Down and to the left is better. Diamonds are the runs above; a curve is a law over its own knob. The dashed "
        "line is what the policy's attainment allows.",
        chart=chart,
    )


def _dress(chart: Any, page: Page, unit: str, *, height: int) -> None:
    """What all figures over time share: look, axis of time, and the span that is not judged."""
    _look(chart, unit, height=height)
    ends = _moments(page, np.array([page.start_s, page.start_s + len(page.need) * page.step_s]))
    dated = page.start_s >= EPOCH_LEAST_S
    chart.update_xaxes(range=[ends[0], ends[1]], gridcolor="#eef1f4", type="date" if dated else "linear")
    unit_name = "time, UTC" if dated else f"{_clock(page)[1]} on the trace's own clock"
    bottom = {"row": len(page.tracks), "col": 1} if chart._has_subplots() else {}
    chart.update_xaxes(title={"text": unit_name}, **bottom)
    if page.judged:
        until = _moments(page, np.array([page.start_s + page.judged * page.step_s]))[0]
        chart.add_vrect(x0=ends[0], x1=until, fillcolor="#8894a0", opacity=0.12, line_width=0, layer="below")
        words = {"text": "not judged", "font": {"size": 11, "color": MUTED}, "showarrow": False}
        chart.add_annotation(**words, x=ends[0], y=1, xref="x", yref="paper", xanchor="left", yanchor="top")


def _look(chart: Any, unit: str, *, height: int) -> None:
    chart.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 64, "r": 20, "t": 56, "b": 50},
        hovermode="x unified",
        hoverlabel={"namelength": -1, "font": {"size": 12}},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right", "traceorder": "normal"},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
    )
    chart.update_yaxes(title={"text": unit}, gridcolor="#eef1f4", zerolinecolor="#c9d2da")


def _clock(page: Page) -> tuple[float, str]:
    """(seconds per unit, the unit's name) of the axis of time."""
    if len(page.need) * page.step_s > 2 * 86400:
        return 86400.0, "days"
    return 3600.0, "hours"


def _moments(page: Page, times_s: Floats) -> Any:
    """Places on the axis of time: milliseconds for dates, else days or hours on the load's clock."""
    if page.start_s >= EPOCH_LEAST_S:
        return np.round(times_s * 1000.0)
    return _few(times_s / _clock(page)[0], digits=5)


def _times(page: Page) -> Floats:
    return np.asarray(page.start_s + np.arange(len(page.need)) * page.step_s, dtype=np.float64)


def _few(values: Floats, digits: int | None = None) -> Any:
    """The same values in half of the bytes; more than a screen can show."""
    if digits is not None:
        return np.round(values, digits)
    return values.astype(np.float32)


def _budget(page: Page) -> int:
    """Points that one law's line may have."""
    return min(POINTS_MAX, max(300, POINTS // len(page.tracks)))


def _edges(length: int, width: int) -> Any:
    """Bounds of bins of `width` steps, the last one perhaps narrower."""
    return np.append(np.arange(0, length, width), length)


def _peaks(values: Floats, bins: int) -> Any:
    """In each bin of neighbouring steps the place of the largest value, ascending."""
    edges = _edges(len(values), max(1, -(-len(values) // bins)))
    if len(edges) - 1 == len(values):
        return np.arange(len(values))
    return np.array([first + int(np.argmax(values[first:last])) for first, last in pairwise(edges)])


def _gaps(page: Page) -> list[tuple[int, int]]:
    """Runs of steps that were not seen; of very many the longest."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], page.seen, [True]]).astype(np.int8)))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return sorted(sorted(runs, key=lambda run: run[0] - run[1])[:60])


def _span(seconds: float) -> str:
    for unit, words in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:g} {words}"
    return f"{seconds:g} s"


def _wrapped(text: str, width: int = 70) -> str:
    """Long sentences in lines, as a hover box does not wrap."""
    lines: Sequence[str] = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines = [*lines, ""]
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()]
    return "<br>".join(lines)
