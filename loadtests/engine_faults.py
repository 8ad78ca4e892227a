"""What an emulated engine can be told to do wrong: by flag at its start, or by `POST /fault` while it runs.

One row per fault, taken from what real engines do (vLLM, llama.cpp, Triton) and from what users of routers reported.
Everything is off by default. It knows nothing of HTTP: `changed` checks a JSON object and gives new settings, the
server obeys them.

| what goes wrong                                                       | settings                                    |
|-----------------------------------------------------------------------|---------------------------------------------|
| loading: refused (vLLM), 503 (llama.cpp), never ready, crash          | `--loading`, never_ready, crash_loading     |
| killed between tokens                                                 | die_after_tokens                            |
| stream cut: inside an event, a character, between events; FIN or RST  | cut_after_tokens, cut_at, cut_how           |
| engine process dead (vLLM): error event and [DONE], 500, refused      | core_dead; one stream: error_after_tokens   |
| frozen: health as ever, requests hang                                 | freeze                                      |
| silent after the head, or after N tokens                              | stall_after_tokens                          |
| asleep (vLLM): requests hang, gauges 0, "abort" (also POST /sleep)    | asleep                                      |
| slow: tokens, first byte, reading of bodies                           | speed, first_byte_delay_s, read_bytes_per_s |
| queue full: 503 without Retry-After (vLLM, Triton), 429 with one      | queue_limit, queue_status, retry_after_s    |
| the next N fail                                                       | fail_next, fail_status, retry_after_s       |
| the next N get no byte of an answer                                   | drop_next                                   |
| keep-alive race: closed as a reused connection is used; when idle     | close_reused, idle_close_s                  |
| connections reset as soon as they are accepted                        | reset_accept                                |
| an answer that is no HTTP, or breaks its framing                      | garbage                                     |
| 1xx answers first                                                     | interim                                     |
| events split over writes, all in one write, two in the first write    | split_bytes, burst, join_first              |
| words of more than one byte a character                               | utf8                                        |
| SIGTERM: ignored, hangs, refuses, falls silent, resets                | sigterm, sigterm_s, ignore_sigterm          |
| runs on after its client left (llama.cpp, not streamed)               | run_on                                      |
| takes any model name (llama.cpp)                                      | any_model                                   |
| /health 503; the model unloaded (Triton: /v2/health/ready 400)        | unhealthy, unloaded                         |
| metrics absent, missing, renamed, NaN, stale, 500                     | metrics                                     |
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from loadtests.errors import BadInput

CHOICES: dict[str, tuple[str, ...]] = {
    "metrics": ("vllm", "absent", "missing", "nan", "renamed", "stale", "error"),
    "cut_at": ("event", "utf8", "between"),
    "cut_how": ("close", "reset"),
    "garbage": ("none", "text", "head", "lengths", "chunks"),
    "sigterm": ("finish", "hang", "refuse", "silence", "reset"),
}
"""What the settings with names allow, the first is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """All faults and their settings. None, 0 and False mean off; counters count down as they are used up."""

    die_after_tokens: int | None = None
    """The process ends without a word once any one stream has had this many tokens."""
    cut_after_tokens: int | None = None
    """A stream's connection is closed at the event after this many tokens; see `cut_at`."""
    cut_at: str = "event"
    """Where: in the middle of the event, inside a character of it, or before it."""
    cut_how: str = "close"
    """How: closed in order, or reset."""
    error_after_tokens: int | None = None
    """After this many tokens a stream gets an error event and then [DONE], as vLLM does when its engine process
    dies.
    """
    core_dead: bool = False
    """That death itself: all streams get that error event, what is not streamed 500, /health says 503 for 0.1 s, then
    the process ends with exit code 0.
    """
    freeze: bool = False
    """Nothing is answered and no token comes any more, while /health, /metrics and /v1/models stay as they were."""
    stall_after_tokens: int | None = None
    """An answer falls silent after this many tokens, one that is not streamed after its head; 0 = after the head."""
    asleep: bool = False
    """Requests hang although /health is 200, those in flight end with 200 and finish_reason "abort"; also POST /sleep
    and POST /wake_up.
    """
    fail_next: int = 0
    """This many of the next requests get `fail_status`."""
    fail_status: int = 500
    """400 to 599."""
    retry_after_s: float | None = None
    """With `fail_next` and `queue_limit`: say Retry-After."""
    queue_limit: int | None = None
    """Requests that may wait for a slot; the next one gets `queue_status`."""
    queue_status: int = 503
    """400 to 599."""
    drop_next: int = 0
    """This many of the next requests get their connection closed without one byte of an answer."""
    close_reused: int = 0
    """The same for this many of the next requests that come on a connection used before (the keep-alive race)."""
    idle_close_s: float = 0.0
    """Connections are closed when they were idle for this long after an answer; 0 = they are kept for 75 s."""
    reset_accept: int = 0
    """This many of the next connections are reset as soon as they are accepted."""
    garbage: str = "none"
    """Answers are no HTTP (text), a head cut off (head), two lengths (lengths) or bad chunks behind a first one."""
    interim: int = 0
    """This many 103 answers come before each answer."""
    first_byte_delay_s: float = 0.0
    """Every answer starts this much later."""
    read_bytes_per_s: float = 0.0
    """Request bodies are read this slowly; 0 = at once."""
    split_bytes: int = 0
    """Each event is written in pieces of this many bytes."""
    burst: bool = False
    """All events of a stream come in one write, at its end."""
    join_first: bool = False
    """The first token comes in one write with what stands before it, as llama.cpp sends it."""
    utf8: bool = False
    """The words of answers have characters of two to four bytes."""
    speed: float = 1.0
    """Tokens come this many times as fast."""
    run_on: bool = False
    """A request that is not streamed runs to its end although its client left, as llama.cpp does."""
    any_model: bool = False
    """Any model name is taken for the own one, as llama.cpp does."""
    sigterm: str = "finish"
    """SIGTERM: finish (streams end, then exit); hang (vLLM: the port closes, streams fall silent, never an exit); refuse
    (vLLM with a shutdown time: streams end, new requests get 500, /health 200); silence (llama.cpp: silent, and after
    `sigterm_s` the end without [DONE]); reset (Triton: streams end, new connections are reset).
    """
    sigterm_s: float = 30.0
    """Bound of what happens after SIGTERM."""
    ignore_sigterm: bool = False
    """SIGTERM has no effect."""
    unhealthy: bool = False
    """/health says 503 while requests are served."""
    unloaded: bool = False
    """The model is unloaded: /v2/health/ready and /v2/models/NAME/ready say 400, requests to /v2 too; also POST
    /v2/repository/models/NAME/unload and load.
    """
    never_ready: bool = False
    """Loading never ends (only as a flag)."""
    crash_loading: bool = False
    """The process ends with exit code 1 half way through loading (only as a flag)."""
    metrics: str = "vllm"
    """What /metrics shows: the truth, nothing about load, 404, NaN gauges, gauges under names that nobody knows, the
    figures of the moment when this was set, or 500.
    """


_LEAST: dict[str, float] = {
    "fail_status": 400,
    "queue_status": 400,
    "speed": 0.001,
    "die_after_tokens": 1,
}
_STATUSES = {"fail_status", "queue_status"}
_OPTIONAL = {
    "die_after_tokens",
    "cut_after_tokens",
    "error_after_tokens",
    "stall_after_tokens",
    "queue_limit",
    "retry_after_s",
}
_AT_START_ONLY = {"never_ready", "crash_loading"}
_DEFAULTS = Faults()


def _whole(name: str) -> bool:
    """Is this a count."""
    return not (name.endswith("_s") or isinstance(getattr(_DEFAULTS, name), float))


def add_fault_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag a fault, named after its field."""
    group = parser.add_argument_group("faults", "also at run time: POST /fault with a JSON object, names with _ for -")
    for row in fields(Faults):
        flag = f"--{row.name.replace('_', '-')}"
        default = getattr(_DEFAULTS, row.name)
        if isinstance(default, bool):
            group.add_argument(flag, action="store_true")
        elif row.name in CHOICES:
            group.add_argument(flag, choices=CHOICES[row.name], default=default)
        elif _whole(row.name):
            group.add_argument(flag, type=int, metavar="N", default=default)
        else:
            group.add_argument(flag, type=float, metavar="X", default=default)


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
    if name in CHOICES:
        if value in CHOICES[name]:
            return value
        raise BadInput(f"{name} = {value!r}: must be one of {', '.join(CHOICES[name])}")
    if isinstance(value, bool) or not isinstance(value, int if _whole(name) else (int, float)):
        raise BadInput(f"{name} = {value!r}: must be a {'whole ' if _whole(name) else ''}number")
    least, status = _LEAST.get(name, 0), name in _STATUSES
    if not value >= least or value == float("inf") or (status and value > 599):
        raise BadInput(f"{name} = {value!r}: must be {'400 to 599' if status else f'at least {least:g}'}")
    return value
