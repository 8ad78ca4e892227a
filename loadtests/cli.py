"""Arguments of `tidegate demo`, `tidegate replay` and `tidegate engine`; the work is in the modules that they import when run."""

from __future__ import annotations

import argparse
from pathlib import Path


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate demo`."""
    parser.epilog = (
        "example:\n  tidegate demo --seed 2\n  tidegate demo --trace AzureLLMInferenceTrace_conv.csv --seconds 600"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        help="a real trace (Azure, BurstGPT, Mooncake, own CSV or Parquet); default: generated load",
    )
    parser.add_argument("--trace-format", help="say the form instead of letting it be recognised")
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="count broken rows instead of stopping at the first"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="how much of the load to play, in seconds of its own clock, which runs 15 times as fast: 600 take 40 s",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the generated load and of every random choice (default 1)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="where scorecard.json and report.html go (default demo-out)"
    )
    parser.add_argument("--json", action="store_true", help="print the scorecard as JSON instead of the tables")


def demo(args: argparse.Namespace) -> int:
    """Run the demo; 0 when it ended with a verdict."""
    from loadtests.demo import run_demo

    return run_demo(args)


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate replay`."""
    parser.epilog = "example:\n  tidegate replay --trace BurstGPT_1.csv --url http://127.0.0.1:8080 --speed 10 --limit 500 --out out"
    parser.add_argument(
        "--trace", type=Path, required=True, help="Azure, BurstGPT, Mooncake, own CSV or Parquet; gzip accepted"
    )
    parser.add_argument("--trace-format", help="say the form instead of letting it be recognised")
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="count broken rows instead of stopping at the first"
    )
    parser.add_argument(
        "--url", required=True, help="base URL of an OpenAI-compatible server, such as http://127.0.0.1:8080"
    )
    parser.add_argument("--model", help="model name to ask for; default: the trace's, else the only one the server has")
    parser.add_argument("--speed", type=float, default=1.0, help="play the trace this many times faster (default 1)")
    parser.add_argument("--limit", type=int, help="stop after this many requests")
    parser.add_argument(
        "--timeout-s", type=float, default=600.0, help="give a request up after this long (default 600)"
    )
    parser.add_argument(
        "--queue-s", type=float, default=5.0, help="late = waited longer than this in a queue (default 5)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of arrivals drawn from a trace of rates (default 1)")
    parser.add_argument(
        "--out", type=Path, default=Path("replay-out"), help="where requests and scorecard.json go (default replay-out)"
    )
    parser.add_argument("--json", action="store_true", help="print the scorecard as JSON")


def replay(args: argparse.Namespace) -> int:
    """Replay a trace; 0 when every request was accounted for."""
    from loadtests.replay_run import run_replay

    return run_replay(args)


def engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate engine`."""
    from loadtests.engine import add_arguments

    parser.epilog = "example:\n  tidegate engine --port 8000 --load-seconds 20 --slots 8"
    add_arguments(parser)


def engine(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    from loadtests.engine import run_engine

    return run_engine(args)
