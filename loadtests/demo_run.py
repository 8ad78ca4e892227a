"""The demo's two stacks under one load: seed, start, play, watch, stop. The composition of the parts; it prints nothing
itself.

Both stacks get the same arrivals at the same moments, from one process. Second 0 of a load with a history is fixed
before anything starts (the seeded history must end there); a machine too slow to have a replica ready by then skips the
first seconds of the warm-up instead of shifting the phase. A load without a history begins at once, so that its first
requests wait for the first replica. Whatever happens, `run` ends every process it started before it returns or
raises; `Stop` does the same when a signal comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from loadtests.demo_load import START_S, DemoLoad
from loadtests.demo_policy import MODEL, QUEUE_S, STEP_S, TICK_S, policy_document
from loadtests.demo_screen import View
from loadtests.demo_stack import Stack, StackFailed
from loadtests.demo_watch import SPARK_S, Watch
from loadtests.replay import PlayOptions, play
from loadtests.scorecard import Slo

LAWS = ("tidegate", "hpa")
LEAD_S = 7.0
"""Before the first replica can be ready: two controllers import what they need and fit a first forecast."""
PATIENCE_S = 60.0
"""A first replica that is not ready this long after second 0 never will be."""
REQUEST_TIMEOUT_S = 45.0
"""Above the router's own bounds, so that nothing is lost by our impatience."""
END_S = 150.0
"""Engines end by themselves this long after the load, if nobody else ended them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run leaves. `problems`: processes that did not end as they should."""

    watches: tuple[Watch, ...]
    replicas: tuple[list[dict[str, Any]], ...]
    origin_epoch_s: float
    problems: tuple[str, ...]


class DemoRun:
    """One run. `folder`: for state and logs; `show` is called about once a second; `began` when both stacks are up."""

    def __init__(
        self, load: DemoLoad, folder: Path, show: Callable[[View], None], began: Callable[[list[Stack]], None]
    ) -> None:
        self.stacks: list[Stack] = []
        self._load = load
        self._folder = folder
        self._show = show
        self._began = began
        self._watches = tuple(Watch(law, load, Slo(queue_s=QUEUE_S)) for law in LAWS)
        self._counts = _per_second(load)
        self._start_at = self._origin_epoch_s = 0.0

    async def run(self) -> Finished:
        """Raises `StackFailed`."""
        self._begin_in(START_S + LEAD_S)
        bound_s = START_S + LEAD_S + self._load.end_s + END_S
        async with aiohttp.ClientSession() as client:
            for law in LAWS:
                folder = self._folder / law
                document = policy_document(law, self._load, folder, bound_s=bound_s)
                self.stacks.append(Stack(law, document, folder, client))
            try:
                self._seed()
                with _first_failure():
                    async with asyncio.TaskGroup() as starts:
                        for stack in self.stacks:
                            starts.create_task(stack.start())
                if not self._load.history:
                    self._begin_in(0.5)  # a history that began with silence would be learned from
                self._began(self.stacks)
                await self._until_ready()
                await self._play()
                replicas = [await stack.replicas() for stack in self.stacks]
            finally:
                problems = await self._stop()
        return Finished(
            watches=self._watches,
            replicas=tuple(replicas),
            origin_epoch_s=self._origin_epoch_s,
            problems=tuple(problems),
        )

    def _begin_in(self, seconds: float) -> None:
        """Fix second 0 at least that far from now, where a step of the forecast's grid begins."""
        epoch_s = datetime.now(UTC).timestamp()
        self._origin_epoch_s = math.ceil((epoch_s + seconds) / STEP_S) * STEP_S
        self._start_at = asyncio.get_running_loop().time() + self._origin_epoch_s - epoch_s

    def kill(self) -> None:
        """End every process at once."""
        for stack in self.stacks:
            stack.kill()

    def _seed(self) -> None:
        """Write the earlier days into Tidegate's history, as its controller would have."""
        if not self._load.history:
            return
        from autoscaler.controller.history import SqliteHistory

        size = int(STEP_S)
        counts = self._load.history[len(self._load.history) % size :]
        steps = [sum(counts[start : start + size]) / size for start in range(0, len(counts), size)]
        history = SqliteHistory(self.stacks[0].state)
        try:
            history.append_load(MODEL, STEP_S, self._origin_epoch_s - len(counts), steps)
        finally:
            history.close()

    async def _until_ready(self) -> None:
        """Until second 0 has come and, if the load goes on from a history, each stack has a replica."""
        loop = asyncio.get_running_loop()
        while True:
            await self._look("starting")
            ready = all(watch.ticks and watch.ticks[-1].ready for watch in self._watches)
            now = loop.time()
            if (ready or not self._load.history) and now + TICK_S >= self._start_at:
                return
            if now > self._start_at + PATIENCE_S:
                raise StackFailed(f"no replica was ready {PATIENCE_S:g} s after the load should have begun")
            await asyncio.sleep(min(TICK_S, max(0.05, self._start_at - now)))

    async def _play(self) -> None:
        skipped_s = max(0.0, asyncio.get_running_loop().time() - self._start_at)
        if self._load.history and skipped_s > self._load.warm_up_s:
            raise StackFailed(f"the first replicas were ready {skipped_s:.0f} s late, inside what is to be scored")
        planned = [request for request in self._load.planned if request.at_s >= skipped_s]
        options = [
            PlayOptions(model=MODEL, timeout_s=REQUEST_TIMEOUT_S, run=law, start_at=self._start_at) for law in LAWS
        ]
        with _first_failure():
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                async with asyncio.TaskGroup() as plays:
                    for stack, watch, option in zip(self.stacks, self._watches, options, strict=True):
                        plays.create_task(play(planned, stack.data_url, options=option, on_outcome=watch.took))
                watching.cancel()
        await self._look("ended")

    async def _watch(self) -> None:
        while True:
            await self._look(None)
            await asyncio.sleep(TICK_S)

    async def _look(self, phase: str | None) -> None:
        """Read both controllers and show what there is to see. Raises `StackFailed`."""
        for stack, watch in zip(self.stacks, self._watches, strict=True):
            stack.check()
            status = await stack.status()
            watch.told(await stack.timeline(watch.seq), status, self._origin_epoch_s)
        self._show(self._view(phase))

    def _view(self, phase: str | None) -> View:
        load = self._load
        t_s = asyncio.get_running_loop().time() - self._start_at
        if phase is None:
            phase = "warm-up" if t_s < load.warm_up_s else "scored" if t_s < load.end_s else "last answers"
        second = min(len(self._counts), max(0, int(t_s)))
        near = self._counts[max(0, second - 3) : second]
        return View(
            title=load.title,
            phase=phase,
            t_s=t_s,
            end_s=load.end_s,
            load_per_s=sum(near) / len(near) if near else 0.0,
            need=load.need(t_s) if 0 <= t_s < load.end_s else 0.0,
            load_before=tuple(self._counts[max(0, second - int(SPARK_S)) : second]),
            laws=tuple(watch.view(t_s) for watch in self._watches),
        )

    async def _stop(self) -> list[str]:
        problems = await asyncio.gather(*(stack.stop() for stack in self.stacks))
        return [problem for rows in problems for problem in rows]


@contextlib.contextmanager
def _first_failure() -> Iterator[None]:
    """A task group's failure as the plain `StackFailed` it contains; anything else stays a group."""
    try:
        yield
    except ExceptionGroup as group:
        found: BaseException | None = group.subgroup(StackFailed)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from None


def _per_second(load: DemoLoad) -> list[float]:
    """Requests that come in each second of the load."""
    counts = [0.0] * math.ceil(load.end_s)
    for request in load.planned:
        counts[min(len(counts) - 1, int(request.at_s))] += 1
    return counts
