"""`tidegate backtest`: what a policy would have done with weeks of load, beside other laws and the clairvoyant.

Reads traces and policies, plays every law asked for, prints the scores, and writes `scorecard.json`, one
`timeline.LAW.csv` a law and `report.html`. Gates make it a check for a CI: exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscaler.policy import ScalingPolicy
    from loadtests.backtest_load import Load
    from loadtests.backtest_world import Setting

DEFAULT_LAWS = "tidegate,hpa"
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EPILOG = """examples:
  tidegate backtest --trace prom.json --policy mine.yaml --gate "late<=0.5%,regret<=1.2"
  tidegate backtest --trace week1.csv --trace week2.csv --laws tidegate,hpa,knative --start-time-s 300 --sweep
  tidegate backtest --trace load.parquet --compare now.yaml proposed.yaml --out compare

The load is scaled so that the judged span needs 20 replicas of the first variant on average; with '--replicas-mean
policy' it is played as it is, against the policy's own capacity. GPU-hours count every replica from its start command
to its exit; regret is GPU-hours over those of the clairvoyant, which knows the load and must be ready for all of it.
In timeline.LAW.csv `demand` is in replicas and `late` in requests. Forecasts are kept in the user's cache folder.
"""


def backtest_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate backtest`."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "--trace",
        type=Path,
        action="append",
        required=True,
        help="a trace of any known form; several follow each other",
    )
    add("--trace-format", help="say the form instead of letting it be recognised")
    add("--skip-bad-rows", action="store_true", help="count broken rows instead of stopping at the first")
    add(
        "--policy",
        type=Path,
        help="a ScalingPolicy; default: one variant with room for any load, all else at its default",
    )
    add("--laws", default=None, help=f"laws to play, joined by commas, or 'all' (default {DEFAULT_LAWS})")
    add("--start-time-s", type=float, help="start time of every replica (default: the policy's p90Seconds)")
    add(
        "--replicas-mean", default="20", help="replicas that the judged span needs on average, or 'policy' (default 20)"
    )
    add("--judge-from-day", type=float, help="days before the judged span (default 2, or a third of a short trace)")
    add("--gate", help="comparisons that tidegate's run must meet, such as 'late<=0.5%%,regret<=1.2'")
    add("--compare", nargs=2, metavar=("A", "B"), help="two policies, or output folders of earlier runs; gates judge B")
    add("--sweep", action="store_true", help="each law over its own knob, and its best hand-tuned point")
    add("--slice", help="part of the trace, such as 2d:9d or 36h: (units s, m, h, d)")
    add(
        "--scale",
        type=float,
        default=1.0,
        help="play this many times the load that capacity was chosen for (default 1)",
    )
    add("--seed", type=int, default=1, help="seeds other than 1 leave out up to an hour of the beginning (default 1)")
    add("--out", type=Path, default=Path("backtest-out"), help="where the output goes (default backtest-out)")
    add("--cache", type=Path, help="where forecasts are kept (default: the user's cache folder)")
    add("--json", action="store_true", help="print the scorecard as JSON instead of the table")


def backtest(args: argparse.Namespace) -> int:
    """Play, print and write; 0, or 1 when a gate was missed. Raises what carries `exit_code` 2 for bad input."""
    from loadtests.backtest_score import BacktestError, missed_gates, parse_gates

    gates = parse_gates(args.gate) if args.gate is not None else ()
    setting = _setting(args)
    missing = [name for name in ("numpy", "plotly") if find_spec(name) is None]
    if missing:
        raise BacktestError(f"a backtest needs {' and '.join(missing)}: pip install 'tidegate[controller,report]'")
    from loadtests.backtest_session import Wanted, play
    from loadtests.scorecard import write_scorecard

    load = _load(args)
    wanted = Wanted(
        laws=_laws(args),
        policy=_policy(args.policy),
        compare=tuple(args.compare or ()),
        setting=setting,
        sweep=args.sweep,
        cache=args.cache,
        tell=_tell(sys.stderr.isatty()),
    )
    session = play(load, wanted)
    document = session.document(args.seed)
    write_scorecard(args.out, document)
    session.write(args.out, document)
    print(json.dumps(document, indent=2, allow_nan=False) if args.json else session.table(document))
    if not args.json:
        print(f"\nwritten to {args.out}: scorecard.json, timeline.LAW.csv, report.html")
    misses = missed_gates(gates, session.judged_entry(document))
    for line in misses:
        print(line, file=sys.stderr if args.json else sys.stdout)
    return 1 if misses else 0


def _tell(terminal: bool) -> Any:
    """Progress for a terminal, nothing in a pipe."""
    return (lambda words: print(words, file=sys.stderr, flush=True)) if terminal else (lambda words: None)


def _setting(args: argparse.Namespace) -> Setting:
    from loadtests.backtest_score import BacktestError
    from loadtests.backtest_world import Setting

    mean = None
    if args.replicas_mean != "policy":
        try:
            mean = float(args.replicas_mean)
        except ValueError:
            mean = math.nan
        if not (math.isfinite(mean) and 0 < mean <= 10000):
            raise BacktestError(
                f"--replicas-mean: {args.replicas_mean}; allowed is above 0 and up to 10000, or 'policy'"
            )
    for option, value, low in (
        ("--start-time-s", args.start_time_s, 0.0),
        ("--scale", args.scale, 0.0),
        ("--judge-from-day", args.judge_from_day, -1e-12),
    ):
        if value is not None and not (math.isfinite(value) and value > low):
            allowed = "0 or more" if low < 0 else "above 0"
            raise BacktestError(f"{option}: {value:g}; allowed is a finite number, {allowed}")
    return Setting(
        start_time_s=args.start_time_s,
        replicas_mean=mean,
        judge_from_day=args.judge_from_day,
        load_factor=args.scale,
    )


def _load(args: argparse.Namespace) -> Load:
    from loadtests.backtest_load import read_loads

    load = read_loads(args.trace, form=args.trace_format, skip_bad_rows=args.skip_bad_rows, seed=args.seed)
    return load.between(*parse_slice(args.slice)) if args.slice is not None else load


def parse_slice(text: str) -> tuple[float, float]:
    """(start, end) in seconds of `A:B`, either side empty for the end of the trace. Raises `BacktestError`."""
    from loadtests.backtest_score import BacktestError

    sides = text.split(":")
    try:
        if len(sides) != 2:
            raise ValueError
        start_s = _seconds(sides[0]) if sides[0].strip() else 0.0
        end_s = _seconds(sides[1]) if sides[1].strip() else math.inf
        if not 0 <= start_s < end_s:
            raise ValueError
    except ValueError as error:
        raise BacktestError(
            f"--slice: {text!r}; allowed: A:B with A before B, each a number of s, m, h or d, such as 2d:9d"
        ) from error
    return start_s, end_s


def _seconds(side: str) -> float:
    side = side.strip()
    unit = UNITS_S.get(side[-1])
    value = float(side[:-1]) * unit if unit else float(side)
    if not math.isfinite(value):
        raise ValueError
    return value


def _laws(args: argparse.Namespace) -> tuple[str, ...]:
    from loadtests.backtest_score import BacktestError
    from loadtests.backtest_sweep import law_names

    text = args.laws
    if text is None:
        text = "" if args.compare else DEFAULT_LAWS
    names = (
        law_names() if text == "all" else tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    )
    if not names and not args.compare:
        raise BacktestError(f"--laws: none named; allowed: {', '.join(law_names())}, or all")
    for name in names:
        if name not in law_names():
            raise BacktestError(f"--laws: {name!r} is not known; allowed: {', '.join(law_names())}, or all")
    return names


def _policy(path: Path | None) -> ScalingPolicy:
    from loadtests.backtest_session import read_policy
    from loadtests.backtest_world import default_policy

    return default_policy() if path is None else read_policy(path)
