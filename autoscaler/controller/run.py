"""The local controller as a process: wires adapters, loops, history and the API, runs until a signal, leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from autoscaler.adapters.launch import check_launches
from autoscaler.adapters.local import LocalReplicas
from autoscaler.adapters.router_link import Author, HttpLoadSource, HttpRouterLink
from autoscaler.controller.forecasts import Forecasts
from autoscaler.controller.history import SqliteHistory
from autoscaler.controller.loop import Board, ControlLoop, World
from autoscaler.controller.manager import Manager
from autoscaler.controller.standing import kept_running
from autoscaler.controller.stderr_log import log_to_stderr
from autoscaler.controller.web.app import Desk, serve
from autoscaler.model import Now, StartTime
from autoscaler.policy import ScalingPolicy
from autoscaler.ports import Law
from autoscaler.settings import ControllerSettings


def read_clock() -> Now:
    """The only place where this process reads its clocks."""
    return Now(monotonic_s=asyncio.get_running_loop().time(), epoch_s=datetime.now(UTC).timestamp())


def run(settings: ControllerSettings, policies: Sequence[ScalingPolicy], law: Law) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; 0 then. Raises `BadInput` when it cannot start as asked."""
    check_launches(policies)
    asyncio.run(_serve(settings, policies, law))
    return 0


async def _serve(settings: ControllerSettings, policies: Sequence[ScalingPolicy], law: Law) -> None:
    async with AsyncExitStack() as stack:
        history = SqliteHistory(settings.state_dir)
        stack.callback(history.close)

        def start_time(policy: ScalingPolicy, variant: str) -> StartTime:
            return history.start_time(policy.key, variant, policy.variant(variant).prior)

        author = Author(source=f"local/tidegate-{history.name}", epoch=history.next_epoch())
        link = HttpRouterLink(settings.routers, author, start_time, settings.router_token)
        stack.push_async_callback(link.close)
        source = HttpLoadSource(settings.routers, settings.router_token)
        stack.push_async_callback(source.close)
        target = LocalReplicas(history, settings.state_dir / "logs", read_clock, stop_bound_s=settings.stop_bound_s)
        desk = Desk(policies, target, read_clock)
        runner, port = await serve(desk.application(), settings.web_host, settings.web_port)
        stack.push_async_callback(runner.cleanup)
        log_to_stderr()  # only now: what is refused before is one line of the command line's, not a log
        forecasts = Forecasts(history)
        stack.push_async_callback(forecasts.close)
        stack.push_async_callback(target.close)
        world = World(source=source, target=target, board=Board(link), history=history, forecasts=forecasts)
        loops = [ControlLoop(policy, world, law, settings.law) for policy in policies]
        manager = Manager(loops, history, desk, read_clock)
        target.on_change = manager.wake
        _end_on_signals(manager, target)
        await target.adopt(policies)
        print(f"tidegate controller ready: web http://{settings.web_host}:{port}", flush=True)
        await _run(manager, source, target)
        await world.board.withdraw(read_clock())


async def _run(manager: Manager, source: HttpLoadSource, target: LocalReplicas) -> None:
    """Tick until told to stop; then drain, and stop all replicas."""
    watch = kept_running("standing requests to the routers", lambda: source.watch(manager.wake))
    watching = asyncio.get_running_loop().create_task(watch)
    try:
        await manager.run()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if manager.hurried:
            target.kill()
        await target.close()


def _end_on_signals(manager: Manager, target: LocalReplicas) -> None:
    def end() -> None:
        manager.stop()
        if manager.hurried:
            target.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # started under nohup: it is meant to outlive its terminal
        loop.add_signal_handler(number, end)
