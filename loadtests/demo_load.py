"""What the demo plays: generated days, or a trace; on the demo's clock, which runs `FACTOR` times as fast as the load's
own.

Knows nothing of processes. A generated load has cycles of `CYCLE_S` that have a day's shape; the cycles before it seed
Tidegate's history. A trace has its time and its token counts divided by the factor, so that a request holds its slot
for as much less; it is thinned to a rate that a small machine can emulate, and the slots of an emulated replica are
chosen so that the mean load is `MEAN_REPLICAS`. A warm-up is played and shown, and not scored: the first quarter of a
generated load; before a trace, which nobody's history leads up to, its own first `TRACE_WARM_UP_S` once more, so that
what is scored is how a law follows the load and not how it starts from nothing.
"""

from __future__ import annotations

import argparse
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtests.arrivals import DayShape, Lengths, from_rates, thin
from loadtests.errors import BadInput
from loadtests.replay import Planned, planned_requests
from loadtests.trace import RateTrace, Trace, read_trace

FACTOR = 15
"""How many times as fast the demo's clock runs: a start of 12 s stands for 3 minutes."""
START_S = 12.0
CYCLE_S = 48.0
CYCLES = 4
WARM_UP_SHARE = 0.25
SECONDS_MIN, SECONDS_MAX = 24.0, 1800.0
"""Running time that can be asked for, on the demo's clock: below two starts nothing can be told apart."""
TRACE_WARM_UP_S = 3 * START_S
"""One start to have a first replica, one to have enough of them, one to work off what waited meanwhile."""
DEFAULT_S = 200.0 - TRACE_WARM_UP_S
"""Longest default length of a trace, apart from its warm-up."""
SEEDED_CYCLES = 12
TROUGH_PER_S, PEAK_PER_S = 7.5, 35.0
PREFILL_PER_S, DECODE_PER_S = 2000.0, 8.0
"""Tokens per second of one request in an emulated engine. A real engine gives about 120 a second: the same on its
clock.
"""
LENGTHS = Lengths(
    input_median=150.0, input_sigma=0.6, input_max=1500, output_median=11.0, output_sigma=0.35, output_max=30
)
SLOTS = 8
SLOTS_MIN = 4
"""With fewer, chance alone makes requests wait."""
SLOWNESS_MAX = 20.0
MEAN_REPLICAS = 3.5
TRACE_MEAN_PER_S, TRACE_PEAK_PER_S = 18.0, 40.0
"""What two stacks on two shared cores can answer without the machine becoming the bottleneck; traces are thinned to
it.
"""
TRACE_OUTPUT_MAX = 120
"""Longest answer of a trace after the division, 15 s of decoding; longer ones are cut and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLoad:
    """A load on the demo's clock. `rate`: expected requests per second at a moment; `service_s`: mean time a request
    holds its slot, `prior_s` what the policy is told of it beforehand; `slots` of one replica; `history`: requests in
    each of the seconds before second 0, () = nothing is known before; `warm_up_s`: where scoring begins.
    """

    title: str
    planned: tuple[Planned, ...]
    end_s: float
    rate: Callable[[float], float]
    service_s: float
    prior_s: float
    warm_up_s: float
    slots: int = SLOTS
    slowness: float = 1.0
    history: tuple[float, ...] = ()
    season_s: float | None = None
    notes: tuple[str, ...] = ()
    bad_rows: int = 0

    def need(self, t_s: float) -> float:
        """Replicas that just carry the expected load of a moment."""
        return self.rate(t_s) * self.service_s / self.slots

    def most_needed(self) -> int:
        """Replicas for the highest expected load."""
        return math.ceil(max(self.need(float(second)) for second in range(math.ceil(self.end_s))))


def load_from(args: argparse.Namespace) -> DemoLoad:
    """The load that the flags ask for. Raises `BadInput` for a length that cannot be, `TraceError` for a trace that
    cannot be read.
    """
    running_s = None if args.seconds is None else args.seconds / FACTOR
    if running_s is not None and not SECONDS_MIN <= running_s <= SECONDS_MAX:
        low, high = SECONDS_MIN * FACTOR, SECONDS_MAX * FACTOR
        raise BadInput(f"--seconds {args.seconds:g}: must be {low:g} to {high:g} (it is played {FACTOR} times as fast)")
    if args.trace is None:
        return generated(args.seed, CYCLE_S * CYCLES if running_s is None else running_s)
    return traced(read_trace(args.trace, args.trace_format, args.skip_bad_rows), args.seed, running_s)


def generated(seed: int, running_s: float = CYCLE_S * CYCLES) -> DemoLoad:
    """Generated days."""
    day = DayShape(period_s=CYCLE_S, trough_per_s=TROUGH_PER_S, peak_per_s=PEAK_PER_S, seed=seed, lengths=LENGTHS)
    trace = day.requests(0.0, running_s)
    return DemoLoad(
        title=f"generated days, seed {seed}",
        planned=planned_requests(trace),
        end_s=running_s,
        rate=day.rate_per_s,
        service_s=_service_s(trace),
        prior_s=_service_s(day.requests(-CYCLE_S, 0.0)),
        warm_up_s=running_s * WARM_UP_SHARE,
        history=tuple(float(count) for count in day.history(SEEDED_CYCLES, 1.0)),
        season_s=CYCLE_S,
        notes=(
            f"Generated load: days of {CYCLE_S:g} s with a quiet night, a steep morning and an evening peak, "
            f"{TROUGH_PER_S:g} to {PEAK_PER_S:g} requests/s.",
            f"Tidegate's history is pre-seeded with the {SEEDED_CYCLES} days before, from the same generator "
            f"(seed {seed}); HPA keeps none.",
            f"Such a day is only {CYCLE_S / START_S:g} start times long: harder on a law that only reacts than a real day is.",
        ),
    )


def traced(source: Trace | RateTrace, seed: int, running_s: float | None = None) -> DemoLoad:
    """A recorded load. Raises `BadInput` when less than the shortest possible length of it is there."""
    if source.duration_s < SECONDS_MIN * FACTOR:
        low = SECONDS_MIN * FACTOR
        raise BadInput(f"--trace {source.source}: {source.duration_s:.1f} s long; at least {low:.0f} s are needed")
    end_s = min(DEFAULT_S if running_s is None else running_s, source.duration_s / FACTOR)
    part = source.slice(0.0, end_s * FACTOR)
    if isinstance(part, RateTrace):
        part = from_rates(part, seed=seed, lengths=replace(LENGTHS, output_median=LENGTHS.output_median * FACTOR))
    if not len(part):
        raise BadInput(f"--trace {source.source}: no request in its first {end_s * FACTOR:.0f} s")
    fast, cut = _divided(part.scale(FACTOR))
    came = len(fast) / end_s
    keep = min(1.0, TRACE_MEAN_PER_S / came, TRACE_PEAK_PER_S / max(_smooth(fast.arrival_s, end_s)))
    kept = thin(fast, keep, seed=seed) if keep < 1 else fast
    smooth = _smooth(kept.arrival_s, end_s)
    usual_s = _service_s(kept)
    busy = len(kept) / end_s * usual_s
    slowness = min(SLOWNESS_MAX, max(1.0, SLOTS_MIN * MEAN_REPLICAS / busy))
    warm_up_s = min(TRACE_WARM_UP_S, end_s)
    planned = planned_requests(kept)
    before = [request for request in planned if request.at_s < warm_up_s]

    def rate(t_s: float) -> float:
        at_s = t_s if t_s < warm_up_s else t_s - warm_up_s
        return smooth[min(len(smooth) - 1, max(0, int(at_s)))]

    name = Path(source.source).name
    thinned = f", thinned by seed {seed} to {keep:.1%} of its requests," if keep < 1 else ""
    notes = [
        f"Trace {name} ({source.form}){thinned} {end_s * FACTOR:.0f} s of it, played {FACTOR} times as fast.",
        f"Token counts are divided by {FACTOR} as well. Nothing is pre-seeded: the forecast learns as it goes.",
        f"Both stacks begin with nothing, so the trace's first {warm_up_s:.0f} s are played once before, as warm-up.",
        "The policy's prior of the service time is the mean of what is played.",
    ]
    if slowness > 1:
        notes.append(f"Its requests are short, so emulated replicas are {slowness:.1f} times slower than usual.")
    if cut:
        notes.append(f"{cut} of {len(fast)} answers were cut to {TRACE_OUTPUT_MAX} tokens.")
    return DemoLoad(
        title=f"trace {name}",
        planned=(*before, *(replace(request, at_s=request.at_s + warm_up_s) for request in planned)),
        end_s=warm_up_s + end_s,
        rate=rate,
        service_s=usual_s * slowness,
        prior_s=usual_s * slowness,
        warm_up_s=warm_up_s,
        slots=max(SLOTS_MIN, round(busy * slowness / MEAN_REPLICAS)),
        slowness=slowness,
        notes=tuple(notes),
        bad_rows=source.bad_rows,
    )


def _divided(trace: Trace) -> tuple[Trace, int]:
    """Token counts on the demo's clock, and how many answers had to be cut."""
    outputs = [max(1, round(tokens / FACTOR)) for tokens in trace.output_tokens]
    return (
        replace(
            trace,
            input_tokens=array("q", [max(1, round(tokens / FACTOR)) for tokens in trace.input_tokens]),
            output_tokens=array("q", [min(TRACE_OUTPUT_MAX, tokens) for tokens in outputs]),
        ),
        sum(tokens > TRACE_OUTPUT_MAX for tokens in outputs),
    )


def _service_s(trace: Trace) -> float:
    """Mean time that a request of the trace holds a slot of an emulated engine."""
    prefill_s = sum(trace.input_tokens) / PREFILL_PER_S
    decode_s = sum(max(0, tokens - 1) for tokens in trace.output_tokens) / DECODE_PER_S
    return (prefill_s + decode_s) / len(trace)


def _smooth(arrival_s: Sequence[float], end_s: float, half_s: int = 2) -> list[float]:
    """Arrivals per second, each the mean of 2 `half_s` + 1 seconds around it."""
    counts = [0] * max(1, math.ceil(end_s))
    for at_s in arrival_s:
        counts[min(len(counts) - 1, int(at_s))] += 1
    rows = []
    for second in range(len(counts)):
        near = counts[max(0, second - half_s) : second + half_s + 1]
        rows.append(sum(near) / len(near))
    return rows
