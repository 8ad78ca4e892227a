"""Tidegate: the command line and the composition root.

Each row of `COMMANDS` names a module that has two functions, `NAME_arguments(parser)` and `NAME(args) -> exit code`; it is imported only
when asked for, so `tidegate --help` stays quick and a router needs no forecasting. Expected refusals carry `exit_code` (2 = bad input)
and are printed as one line. What one package must not import from another (a law for the controller) is handed over here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

__version__ = "0.1.0"

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "loadtests.cli",
        "real router, controller and replica processes under load, beside the HPA law; ends in a verdict",
    ),
    "validate": ("autoscaler.cli", "all problems of a policy at once"),
    "controller": ("autoscaler.cli", "the controller: forecasts, decides, starts and stops replicas"),
    "why": ("autoscaler.cli", "why that many replicas: inputs, each step, what bound"),
    "router": ("router.cli", "the router alone, from a file of endpoints or fed by a controller"),
    "replay": ("loadtests.cli", "open-loop load from a trace against any OpenAI-compatible URL"),
    "backtest": ("loadtests.backtest_cli", "weeks of load through the real decision code, beside other laws"),
    "engine": ("loadtests.cli", "an emulated inference engine that takes its time to load"),
}

INJECTED: dict[str, Callable[[], Mapping[str, Any]]] = {
    "controller": lambda: import_module("loadtests.peer_laws").LAWS,
}
"""What a command gets besides its arguments, as `args.injected`: the laws that a controller may be asked to follow instead of its own."""


EXTRAS: dict[str, str] = {
    "numpy": "controller",
    "scipy": "controller",
    "sklearn": "controller",
    "prometheus_api_client": "controller",
    "pyarrow": "report",
    "plotly": "report",
    "kubernetes_asyncio": "kubernetes",
}
"""Packages that a plain `pip install tidegate` leaves out, and the extra that brings each."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other refusal does."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"{self.prog}: {message}; '{self.prog} --help' shows what is allowed\n")


def parser_for(name: str) -> argparse.ArgumentParser:
    """The argument parser of one command. Raises `KeyError` for an unknown one."""
    module, summary = COMMANDS[name]
    parser = Parser(prog=f"tidegate {name}", description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
    getattr(import_module(module), f"{name}_arguments")(parser)
    return parser


def overview() -> str:
    """What `tidegate --help` prints."""
    rows = "\n".join(f"  {name:<11} {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: tidegate [--help] [--version] COMMAND ...\n\n"
        "Forecasts load, starts GPU replicas ahead of it, and routes without cutting a stream.\n\n"
        f"commands:\n{rows}\n\n"
        "'tidegate COMMAND --help' shows each one's options with an example.\n"
        "Exit codes: 0 success, 1 failure, 2 bad input."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough; what Python flushes at its end must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def run(words: list[str]) -> int:
    """Find the command and run it; expected refusals become one line and their exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"tidegate {__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        print(f"tidegate: unknown command {name!r}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        args = parser_for(name).parse_args(words[1:])
        args.injected = INJECTED.get(name)
        return int(getattr(import_module(COMMANDS[name][0]), name)(args))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"tidegate {name}: needs {error.name}: pip install 'tidegate[{extra}]'", file=sys.stderr)
        return 2
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"tidegate {name}: {error}", file=sys.stderr)
        return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
