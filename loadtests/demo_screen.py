"""What the demo shows: a live table on a terminal, a line every ten seconds elsewhere, and the verdict at the end.

Pure functions from views to rich renderables and text; nothing here reads a clock or a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadtests.demo_load import FACTOR
from loadtests.demo_watch import LawView
from loadtests.report import ROWS, name_of, shown

BARS = "▁▂▃▄▅▆▇█"
SPARK_CELLS = 30
STYLES = {"tidegate": "cyan", "hpa": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The demo at one moment. `load_before`: requests per second over the last minute; `need`: replicas that carry
    the load.
    """

    title: str
    phase: str
    t_s: float
    end_s: float
    load_per_s: float
    need: float
    load_before: tuple[float, ...]
    laws: tuple[LawView, ...]


def sparkline(values: Sequence[float], highest: float | None = None, cells: int = SPARK_CELLS) -> str:
    """`values` in `cells` bars at most, each the largest of its neighbours; `highest` = the value of a full bar."""
    if not values:
        return ""
    size = -(-len(values) // cells)
    groups = [max(values[start : start + size]) for start in range(0, len(values), size)]
    top = max([highest or 0.0, *groups]) or 1.0
    return "".join(BARS[min(len(BARS) - 1, round(max(0.0, value) / top * (len(BARS) - 1)))] for value in groups)


def screen(view: View) -> RenderableType:
    """The live table."""
    head = Table.grid(padding=(0, 2))
    head.add_column(width=9, style="bold")
    head.add_column(width=24)
    head.add_column()
    head.add_row("load", f"{view.load_per_s:5.1f} requests/s", Text(sparkline(view.load_before), style="green"))
    head.add_row("forecast", _forecast(view), Text("at most, within one start", style="dim"))
    head.add_row("need", f"{view.need:5.1f} replicas", Text("to carry this load", style="dim"))

    table = Table(box=box.SIMPLE_HEAD, expand=False, padding=(0, 1), show_edge=False)
    table.add_column("", width=11)
    for law in view.laws:
        table.add_column(name_of(law.law), width=24, header_style=f"bold {STYLES.get(law.law, 'white')}", no_wrap=True)
    most = max([1.0, *(value for law in view.laws for value in law.ready_before)])
    deepest = max([1.0, *(value for law in view.laws for value in law.queued_before)])
    for words, cell in _rows(most, deepest):
        table.add_row(words, *(cell(law) for law in view.laws))
    clock = f"{min(view.end_s, max(0.0, view.t_s)):3.0f} of {view.end_s:.0f} s"
    return Panel(
        Group(head, Text(), table),
        title=f"[bold]tidegate demo[/bold]: {view.title}",
        subtitle=f"{clock} · {view.phase} · time x{FACTOR}",
        title_align="left",
        subtitle_align="right",
        width=76,
        box=box.ROUNDED,
    )


def _rows(most: float, deepest: float) -> tuple[tuple[str, Callable[[LawView], RenderableType]], ...]:
    """The rows of the table: words and how a law's cell is made."""

    def spark(value: object, values: Sequence[float], highest: float, law: str) -> Text:
        return Text.assemble(f"{value!s:>4}  ", (sparkline(values, highest, 17), STYLES.get(law, "white")))

    return (
        ("ready", lambda law: spark(law.ready, law.ready_before, most, law.law)),
        ("starting", lambda law: f"{law.starting:4d}"),
        ("standby", lambda law: f"{law.standby:4d}"),
        ("draining", lambda law: f"{law.draining:4d}"),
        ("queued", lambda law: spark(_or_dash(law.queued), law.queued_before, deepest, law.law)),
        ("first token", lambda law: _ttft(law)),
        ("late", lambda law: Text(_percent(law.late), style="bold red" if (law.late or 0) > 0.01 else "bold")),
        ("refused", lambda law: f"{law.refused:4d}"),
        ("failed, lost", lambda law: f"{law.broken:4d}"),
        ("GPU-hours", lambda law: "   –" if law.gpu_hours is None else f"{law.gpu_hours:7.2f}"),
    )


def _forecast(view: View) -> str:
    law = next((law for law in view.laws if law.forecast_need is not None and law.forecast_p50 is not None), None)
    return "    –" if law is None else f"{law.forecast_p50:5.1f} to {law.forecast_need:.1f} /s"


def _ttft(law: LawView) -> str:
    if law.ttft_p50_s is None or law.ttft_p95_s is None:
        return "   –"
    return f"{law.ttft_p50_s:6.2f} s  p95 {law.ttft_p95_s:.2f} s"


def _percent(value: float | None) -> str:
    return "   –" if value is None else f"{value:7.2%}"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def plain_line(view: View) -> str:
    """The same in one line."""
    parts = [f"{max(0.0, view.t_s):4.0f} s  {view.phase:<8} load {view.load_per_s:4.1f}/s need {view.need:.1f}"]
    for law in view.laws:
        text = f"{name_of(law.law)}: {law.ready} ready {law.starting} starting {law.draining} draining"
        if law.forecast_need is not None:
            text += f", forecast {law.forecast_need:.0f}/s"
        parts.append(f"{text}, queued {_or_dash(law.queued)}, late {_percent(law.late).strip()}")
    return " | ".join(parts)


def verdict_sentence(scores: Sequence[Mapping[str, Any]]) -> str:
    """Who did better, in a sentence; a loss is said as plainly as a win."""
    by_law = {str(score["law"]): score for score in scores}
    ours, theirs = by_law["tidegate"], by_law["hpa"]
    if ours["late_fraction"] is None or theirs["late_fraction"] is None:
        return "No verdict: the answers did not say how long they had waited."
    said = (
        f"Tidegate: {ours['late_fraction']:.2%} of requests late with {ours['gpu_hours']:.2f} GPU-hours; "
        f"HPA: {theirs['late_fraction']:.2%} with {theirs['gpu_hours']:.2f}."
    )
    ratio = ours["gpu_hours"] / theirs["gpu_hours"] if theirs["gpu_hours"] else float("inf")
    cost = f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'fewer'} GPU-hours"
    if ours["late_fraction"] < theirs["late_fraction"]:
        return f"{said} Tidegate was late less often, with {cost}."
    if ours["late_fraction"] > theirs["late_fraction"]:
        return f"{said} Tidegate was late MORE often, with {cost}."
    return f"{said} Both were late equally often; Tidegate used {cost}."


def verdict_table(scores: Sequence[Mapping[str, Any]]) -> Table:
    """The scores side by side."""
    table = Table(box=box.SIMPLE_HEAD, title="Verdict", title_justify="left", title_style="bold")
    table.add_column("")
    for score in scores:
        law = str(score["law"])
        table.add_column(name_of(law), justify="right", header_style=f"bold {STYLES.get(law, 'white')}")
    for key, words, form in ROWS:
        table.add_row(words, *(shown(score, key, form) for score in scores))
    return table
