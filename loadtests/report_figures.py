"""The figures of the report: load and forecast, replicas by state, late requests, time to first token. One function a
figure.

Colours are those of Okabe and Ito where two things must be told apart by everyone; a law keeps its colour on the whole
page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loadtests.report import Recording, Tick, Track, name_of, thinned
from loadtests.scorecard import percentile

BIN_S = 2.0
LAW_COLOURS = {"tidegate": "#00796b", "hpa": "#d55e00"}
OTHER_COLOUR = "#7b5ea7"
BAND_COLOUR = "rgba(0,121,107,.16)"
STATES = (("ready", "#4c9f94"), ("standby", "#9c89c9"), ("starting", "#f0c060"), ("draining", "#b8c2cc"))
_INK = "#1b2733"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart with its heading and a sentence that says how to read it."""

    title: str
    says: str
    chart: Any


def figures(recording: Recording) -> tuple[Figure, ...]:
    """All figures, in the order in which they are read."""
    return (_load(recording), _replicas(recording), _late(recording), _first_tokens(recording))


def colour_of(law: str) -> str:
    """The colour of a law."""
    return LAW_COLOURS.get(law, OTHER_COLOUR)


def _load(recording: Recording) -> Figure:
    chart = go.Figure()
    for track in recording.tracks:
        made = [tick for tick in track.ticks if tick.forecast_need is not None and tick.forecast_p50 is not None]
        if not made:
            continue
        made = list(_few(made))
        at = [tick.t_s + (tick.horizon_s or 0.0) for tick in made]
        line = {"color": colour_of(track.law), "width": 1}
        common = {"x": at, "mode": "lines", "hovertemplate": "%{y:.1f} requests/s"}
        median, covered = [tick.forecast_p50 for tick in made], [tick.forecast_need for tick in made]
        chart.add_scatter(**common, y=median, name="forecast, median", line={**line, "dash": "dot"})
        chart.add_scatter(
            **common, y=covered, name="forecast, covered", line=line, fill="tonexty", fillcolor=BAND_COLOUR
        )
    points = thinned(recording.load)
    chart.add_scatter(
        x=[at for at, _ in points],
        y=[rate for _, rate in points],
        name="load that came",
        mode="lines",
        line={"color": _INK, "width": 1.8},
        hovertemplate="%{y:.1f} requests/s",
    )
    _dress(chart, recording, "requests per second", height=380)
    chart.update_yaxes(rangemode="tozero")
    return Figure(
        title="Load, and what was forecast for it",
        says="Each point of the band stands at the end of the time that its forecast looked ahead (one start time and a tick): "
        "from the median to the quantile that capacity must cover, of the largest load on the way there.",
        chart=chart,
    )


def _replicas(recording: Recording) -> Figure:
    tracks = recording.tracks
    names = [f"<b>{name_of(track.law)}</b>" for track in tracks]
    gap = 0.09 if len(tracks) > 1 else 0.0
    chart = make_subplots(
        rows=len(tracks), cols=1, shared_xaxes=True, shared_yaxes="all", vertical_spacing=gap, subplot_titles=names
    )
    need = thinned(recording.need)
    for row, track in enumerate(tracks, start=1):
        ticks = _few(track.ticks)
        at = [tick.t_s for tick in ticks]
        for state, colour in STATES:
            chart.add_scatter(
                x=at,
                y=[getattr(tick, state) for tick in ticks],
                name=state,
                legendgroup=state,
                showlegend=row == 1,
                stackgroup=str(row),
                line={"shape": "hv", "width": 0},
                fillcolor=colour,
                hovertemplate="%{y:.0f}",
                row=row,
                col=1,
            )
        chart.add_scatter(
            x=[moment for moment, _ in need],
            y=[replicas for _, replicas in need],
            name="need",
            legendgroup="need",
            showlegend=row == 1,
            mode="lines",
            line={"color": _INK, "width": 2},
            hovertemplate="%{y:.1f}",
            row=row,
            col=1,
        )
    for note, track in zip(chart.layout.annotations, tracks, strict=True):
        note.update(x=0, xanchor="left", font={"size": 15, "color": colour_of(track.law)})
    _dress(chart, recording, "replicas", height=250 * len(tracks) + 110)
    held = [tick.ready + tick.standby + tick.starting + tick.draining for track in tracks for tick in track.ticks]
    chart.update_yaxes(range=[0, max([1.0, *held, *(replicas for _, replicas in need)]) * 1.06], dtick=2)
    return Figure(
        title="Replicas by state, against need",
        says="Need is the load times the time a request takes, over what one replica holds at a time. Each coloured area is "
        "paid for; only ready replicas answer. Where the line is above the green, the queue grows.",
        chart=chart,
    )


def _late(recording: Recording) -> Figure:
    chart = go.Figure()
    most = 0.0
    for track in recording.tracks:
        for words, moments, dash in (("late", track.late_s, "solid"), ("refused or failed", track.refused_s, "dot")):
            points = _per_bin(moments, recording)
            most = max(most, *(count for _, count in points), 0.0)
            chart.add_scatter(
                x=[at for at, _ in points],
                y=[count for _, count in points],
                name=f"{name_of(track.law)}: {words}",
                mode="lines",
                line={"color": colour_of(track.law), "width": 2, "dash": dash, "shape": "hv"},
                hovertemplate="%{y:.0f}",
            )
    _dress(chart, recording, f"requests in {BIN_S:g} s", height=320)
    chart.update_yaxes(range=[0, max(5.0, most * 1.08)])
    return Figure(
        title="Late and refused requests",
        says="By the moment at which each should have been sent. Late = queued for longer than the SLO allows.",
        chart=chart,
    )


def _first_tokens(recording: Recording) -> Figure:
    chart = go.Figure()
    for track in recording.tracks:
        bins: dict[int, list[float]] = {}
        for at, waited in track.first_tokens:
            bins.setdefault(int(at // BIN_S), []).append(waited)
        for words, share, dash in (("95th percentile", 0.95, "solid"), ("median", 0.5, "dot")):
            shares = ((key * BIN_S, percentile(bins[key], share)) for key in sorted(bins))
            points = [(at, value) for at, value in shares if value is not None]
            points = thinned(points)
            chart.add_scatter(
                x=[at for at, _ in points],
                y=[value for _, value in points],
                name=f"{name_of(track.law)}: {words}",
                mode="lines",
                line={"color": colour_of(track.law), "width": 2 if share > 0.5 else 1.4, "dash": dash},
                hovertemplate="%{y:.2f} s",
            )
    _dress(chart, recording, "seconds", height=320)
    chart.update_yaxes(rangemode="tozero")
    return Figure(
        title="Time to first token",
        says=f"Of answered requests, from the moment at which each should have been sent, in bins of {BIN_S:g} s.",
        chart=chart,
    )


def _dress(chart: Any, recording: Recording, unit: str, *, height: int) -> None:
    """What all figures share: look, axes, and the span that is not scored."""
    start, end = recording.scored
    chart.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 56, "b": 50},
        hovermode="x unified",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right", "traceorder": "normal"},
        font={"family": "system-ui, sans-serif", "size": 13, "color": _INK},
    )
    last = max([end, *(at for at, _ in recording.load[-1:])])
    chart.update_xaxes(range=[0, last], ticksuffix=" s", showgrid=True, gridcolor="#eef1f4")
    bottom = {"row": len(recording.tracks), "col": 1} if chart._has_subplots() else {}
    chart.update_xaxes(title={"text": "seconds since the load began"}, **bottom)
    chart.update_yaxes(title={"text": unit}, gridcolor="#eef1f4", zerolinecolor="#c9d2da")
    if start > 0:
        words = {"text": "warm-up, not scored", "font": {"size": 11, "color": "#52616e"}, "showarrow": False}
        chart.add_vrect(x0=0, x1=start, fillcolor="#8894a0", opacity=0.12, line_width=0, layer="below")
        chart.add_annotation(**words, x=0, y=1, xref="x", yref="paper", xanchor="left", yanchor="top")


def _per_bin(moments: Sequence[float], recording: Recording) -> list[tuple[float, float]]:
    end = max([recording.scored[1], *(at for at, _ in recording.load[-1:])])
    counts = [0] * (int(end // BIN_S) + 1)
    for at in moments:
        if 0 <= at <= end:
            counts[int(at // BIN_S)] += 1
    return thinned([(index * BIN_S, float(count)) for index, count in enumerate(counts)])


def _few(ticks: Sequence[Tick], most: int = 1500) -> Sequence[Tick]:
    """Every n-th tick: the states of one moment belong together, so no state is thinned by itself."""
    return ticks[:: max(1, -(-len(ticks) // most))]


__all__ = ["BIN_S", "Figure", "Track", "colour_of", "figures"]
