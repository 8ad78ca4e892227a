"""An emulated inference engine over real HTTP: it takes its time to load, batches continuously, streams as vLLM does,
and breaks on demand.

This module is the process: flags, port, loading, signals, end. The parts: `engine_batch` (the model of batching),
`engine_driver` (the model on a real clock), `engine_answers` and `engine_dialects` (bytes), `engine_http` and
`engine_pages` (paths), `engine_door` (connections), `engine_faults` (what can go wrong). It imports nothing heavy,
because sixteen of these start in the demo. Loading in the manner of vLLM (`refuse`) holds the port without listening, so
that a taken port is known at once and a client is refused until the weights are there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from loadtests.engine_batch import Batch, Rates
from loadtests.engine_faults import add_fault_arguments, faults_from
from loadtests.errors import BadInput

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

    from loadtests.engine_door import Door
    from loadtests.engine_driver import EngineDriver
    from loadtests.engine_http import EngineHandlers
    from loadtests.engine_pages import Served

FINISH_S = 5.0
"""After SIGTERM, what runs may take this long to finish."""
FOREVER_S = 86_400.0
"""One that hangs after SIGTERM is killed, or ends after a day."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tidegate engine`."""
    parser.add_argument("--port", type=int, required=True, help="0 = any free one, named in the first line printed")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="tide-1", help="the model name that requests ask for (default tide-1)")
    parser.add_argument(
        "--load-seconds", type=float, default=0.0, metavar="S", help="time the weights take (default 0)"
    )
    parser.add_argument(
        "--loading",
        choices=("refuse", "503"),
        default="refuse",
        help="refuse connections as vLLM, or 503 as llama.cpp",
    )
    parser.add_argument("--slots", type=int, default=8, metavar="N", help="requests run at once (default 8)")
    parser.add_argument(
        "--prefill-tokens-per-s", type=float, default=2000.0, metavar="R", help="one request's (default 2000)"
    )
    parser.add_argument(
        "--decode-tokens-per-s", type=float, default=50.0, metavar="R", help="one request's (default 50)"
    )
    parser.add_argument(
        "--slowdown", type=float, default=0.0, metavar="X", help="1 = half as fast when full (default 0)"
    )
    parser.add_argument(
        "--context-tokens", type=int, default=131072, metavar="N", help="longest prompt, longest answer"
    )
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="tokens the KV cache holds (default 4096 a slot)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append one JSON line for each generation that ended")
    parser.add_argument(
        "--log-starts", action="store_true", help="with --log: one line also for each generation that is taken in"
    )
    parser.add_argument("--exit-after-s", type=float, metavar="S", help="end after this long whatever happens")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which words the answers have (default 0)")
    add_fault_arguments(parser)


def run_engine(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 after an orderly end. Raises `BadInput` for a bad flag or a port that is
    taken.
    """
    _check(args)
    with contextlib.ExitStack() as stack:
        log: TextIO | None = None
        if args.log is not None:
            try:
                log = stack.enter_context(args.log.open("a", buffering=1))
            except OSError as error:
                raise BadInput(f"--log {args.log}: {error.strerror}") from error
        listener = stack.enter_context(_bind(args.host, args.port))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(args, listener, log))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _check(args: argparse.Namespace) -> None:
    """Raises `BadInput` naming all bad flags at once."""
    problems = []
    for name, least in (("slots", 1), ("context_tokens", 1), ("load_seconds", 0), ("slowdown", 0), ("port", 0)):
        if not getattr(args, name) >= least:
            problems.append(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {least}")
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "exit_after_s", "kv_tokens"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            problems.append(f"--{name.replace('_', '-')} {value}: must be above 0")
    if args.port > 65535:
        problems.append(f"--port {args.port}: must be at most 65535")
    if problems:
        raise BadInput("; ".join(problems))


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: the kernel refuses connections to it."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


async def _serve(args: argparse.Namespace, listener: socket.socket, log: TextIO | None) -> int:
    from aiohttp import web

    from loadtests.engine_door import Door
    from loadtests.engine_driver import EngineDriver
    from loadtests.engine_http import EngineHandlers

    loop = asyncio.get_running_loop()
    offset = datetime.now(UTC).timestamp() - loop.time()
    if args.exit_after_s is not None:
        loop.call_later(args.exit_after_s, os._exit, 0)
    driver = EngineDriver(Batch(_rates(args)), faults_from(args), log, lambda moment: moment + offset)
    driver.log_starts = args.log_starts
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: None if driver.faults.ignore_sigterm else stop.set())
    door = Door(driver)
    handlers = EngineHandlers(driver, _served(args), door)
    app = handlers.application()
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=FINISH_S)
    await runner.setup()
    try:
        url = f"http://{args.host}:{listener.getsockname()[1]}"
        handlers.loading = args.loading == "503"
        if handlers.loading:
            await _listen(runner, door, listener)
        print(f"tidegate engine loading: {url}", flush=True)
        if await _loaded(args, stop):
            handlers.loading = False
            if args.loading == "refuse":
                await _listen(runner, door, listener)
            print(f"tidegate engine ready: {url}", flush=True)
            await stop.wait()
            await _told_to_stop(driver, door, handlers)
    finally:
        door.close()
        await runner.cleanup()
    return 0


async def _listen(runner: AppRunner, door: Door, listener: socket.socket) -> None:
    assert runner.server is not None, "listens before it is set up"
    await door.open(runner.server, listener)


async def _told_to_stop(driver: EngineDriver, door: Door, handlers: EngineHandlers) -> None:
    """What real engines do between SIGTERM and their end; see `Faults.sigterm`. Streams end after it, or with it."""
    faults = driver.faults
    match faults.sigterm:
        case "hang" | "silence":
            door.close()
            driver.obey(replace(faults, freeze=True))
            await asyncio.sleep(FOREVER_S if faults.sigterm == "hang" else faults.sigterm_s)
            os._exit(0)  # nothing more is written: a client sees the end of the connection, or a reset
        case "refuse" | "reset":
            handlers.refusing = faults.sigterm == "refuse"
            door.resetting = faults.sigterm == "reset"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(faults.sigterm_s):
                    await driver.emptied.wait()


def _rates(args: argparse.Namespace) -> Rates:
    return Rates(
        slots=args.slots,
        prefill_tokens_per_s=args.prefill_tokens_per_s,
        decode_tokens_per_s=args.decode_tokens_per_s,
        slowdown=args.slowdown,
    )


def _served(args: argparse.Namespace) -> Served:
    from loadtests.engine_pages import Served

    kv_tokens = args.kv_tokens or 4096 * args.slots
    return Served(model=args.model, context_tokens=args.context_tokens, kv_tokens=kv_tokens, seed=args.seed)


async def _loaded(args: argparse.Namespace, stop: asyncio.Event) -> bool:
    """Wait for the weights. False when the engine was told to stop before; a crash asked for ends the process."""
    wait_s = args.load_seconds / 2 if args.crash_loading else args.load_seconds
    try:
        async with asyncio.timeout(None if args.never_ready else wait_s):
            await stop.wait()
    except TimeoutError:
        if args.crash_loading:
            print("tidegate engine: crashed while loading, as --crash-loading asked", file=sys.stderr, flush=True)
            os._exit(1)
        return True
    return False
