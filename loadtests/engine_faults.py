"""What an emulated engine can be told to do wrong: by flag at its start, or by `POST /fault` while it runs.

One row per fault, taken from what real engines do (vLLM, llama.cpp, Triton) and from what users of routers reported.
Everything is off by default. It knows nothing of HTTP: `changed` checks a JSON object and gives new settings, the
server obeys them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from loadtests.errors import BadInput

METRICS = ("vllm", "absent", "nan", "renamed")
"""What /metrics shows: the truth, nothing about load, NaN gauges, or gauges under names that nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """All faults and their settings. None, 0 and False mean off; counters count down as they are used up."""

    die_after_tokens: int | None = None
    """The process ends without a word once any one stream has had this many tokens."""
    cut_after_tokens: int | None = None
    """A stream's connection is closed in the middle of the event after this many tokens."""
    error_after_tokens: int | None = None
    """After this many tokens a stream gets an error event and then [DONE], as vLLM does when its engine process
    dies.
    """
    freeze: bool = False
    """Nothing is answered and no token comes any more, while /health, /metrics and /v1/models stay as they were."""
    fail_next: int = 0
    """This many of the next requests get `fail_status`."""
    fail_status: int = 500
    """400 to 599."""
    retry_after_s: float | None = None
    """With `fail_next`: say Retry-After."""
    drop_next: int = 0
    """This many of the next requests get their connection closed without one byte of an answer (the keep-alive
    race).
    """
    first_byte_delay_s: float = 0.0
    """Every answer starts this much later."""
    split_bytes: int = 0
    """Each event is written in pieces of this many bytes."""
    burst: bool = False
    """All events of a stream come in one write, at its end."""
    speed: float = 1.0
    """Tokens come this many times as fast."""
    run_on: bool = False
    """A request that is not streamed runs to its end although its client left, as llama.cpp does."""
    ignore_sigterm: bool = False
    """SIGTERM has no effect."""
    unhealthy: bool = False
    """/health says 503 while requests are served."""
    never_ready: bool = False
    """Loading never ends (only as a flag)."""
    crash_loading: bool = False
    """The process ends with exit code 1 half way through loading (only as a flag)."""
    metrics: str = "vllm"
    """One of `METRICS`."""


_LEAST: dict[str, float] = {
    "fail_status": 400,
    "speed": 0.001,
    "die_after_tokens": 1,
    "cut_after_tokens": 0,
    "error_after_tokens": 0,
}
_OPTIONAL = {"die_after_tokens", "cut_after_tokens", "error_after_tokens", "retry_after_s"}
_AT_START_ONLY = {"never_ready", "crash_loading"}
_DEFAULTS = Faults()


def add_fault_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag a fault, named after its field."""
    group = parser.add_argument_group("faults", "also at run time: POST /fault with a JSON object, names with _ for -")
    for row in fields(Faults):
        flag = f"--{row.name.replace('_', '-')}"
        default = getattr(_DEFAULTS, row.name)
        if isinstance(default, bool):
            group.add_argument(flag, action="store_true")
        elif row.name == "metrics":
            group.add_argument(flag, choices=METRICS, default=default)
        elif row.name.endswith("_s") or isinstance(default, float):
            group.add_argument(flag, type=float, metavar="X", default=default)
        else:
            group.add_argument(flag, type=int, metavar="N", default=default)


def faults_from(args: argparse.Namespace) -> Faults:
    """The faults that flags asked for. Raises `BadInput`."""
    values = {row.name: getattr(args, row.name) for row in fields(Faults)}
    return _with(_DEFAULTS, values)


def changed(faults: Faults, wanted: object) -> Faults:
    """`faults` with the settings of a JSON object put in. Raises `BadInput` naming the key, the value and what is
    allowed.
    """
    if not isinstance(wanted, Mapping):
        raise BadInput(f'faults must be a JSON object such as {{"freeze": true}}, got {type(wanted).__name__}')
    known = [row.name for row in fields(Faults)]
    for name in wanted:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise BadInput(f"unknown fault {name!r}; {hint}")
        if name in _AT_START_ONLY:
            raise BadInput(f"{name} can only be set by a flag when the engine starts")
    return _with(faults, wanted)


def _with(faults: Faults, wanted: Mapping[str, Any]) -> Faults:
    return replace(faults, **{name: _checked(name, value) for name, value in wanted.items()})


def _checked(name: str, value: Any) -> Any:
    default = getattr(_DEFAULTS, name)
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise BadInput(f"{name} = {value!r}: must be true or false")
    if name == "metrics":
        if value in METRICS:
            return value
        raise BadInput(f"metrics = {value!r}: must be one of {', '.join(METRICS)}")
    whole = not (name.endswith("_s") or isinstance(default, float))
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise BadInput(f"{name} = {value!r}: must be a {'whole ' if whole else ''}number")
    least = _LEAST.get(name, 0)
    if not value >= least or value == float("inf") or (name == "fail_status" and value > 599):
        raise BadInput(
            f"{name} = {value!r}: must be {'400 to 599' if name == 'fail_status' else f'at least {least:g}'}"
        )
    return value
