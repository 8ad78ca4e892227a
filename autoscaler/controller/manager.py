"""All loops of one controller: when each ticks, what happens when one fails, and how it ends.

Each policy ticks by its own period, and under our own law at once when something cannot wait (a router says so, a
replica became ready or died), but never twice within 0.2 s. A tick that fails is logged and backs off that policy alone: 1 s, doubled up
to 60 s. After each tick the history is committed, off the loop. At the end every replica is drained, with a short
bound, before it is stopped; a second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from autoscaler.controller.loop import ControlLoop
from autoscaler.controller.standing import outcome
from autoscaler.controller.tick import Tick
from autoscaler.model import Now
from autoscaler.settings import DEFAULT_LAW

TICKS_APART_S = 0.2
BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 60.0
DRAIN_BOUND_S = 5.0
DRAIN_LOOK_S = 0.2
PRUNE_EVERY_S = 3600.0

log = structlog.get_logger(part="manager")


class Store(Protocol):
    """The part of the history that the manager drives."""

    async def commit(self) -> None:
        """Write what was appended."""

    def prune(self, epoch_s: float) -> None:
        """Drop what is too old."""


class Tellers(Protocol):
    """What is told of ticks."""

    def tick(self, tick: Tick) -> None:
        """One that is done."""

    def failed(self, policy: str) -> None:
        """One that ended in an error."""


@dataclass(slots=True)
class _Turn:
    """One loop's timing."""

    loop: ControlLoop
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0


class Manager:
    """Runs loops until `stop`. `clock` is read once a tick."""

    def __init__(self, loops: Sequence[ControlLoop], store: Store, tellers: Tellers, clock: Callable[[], Now]) -> None:
        self._turns = [_Turn(loop) for loop in loops]
        self._store = store
        self._tellers = tellers
        self._clock = clock
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._pruned_s = float("-inf")

    def wake(self) -> None:
        """Tick soon: something cannot wait for the period. Loops under another law than ours keep to theirs: they are
        compared as they are, and an HPA syncs by its period alone.
        """
        for turn in self._turns:
            if turn.loop.law_name == DEFAULT_LAW:
                turn.wake.set()

    def stop(self) -> None:
        """End. A second call skips the drain."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        for turn in self._turns:
            turn.wake.set()

    @property
    def hurried(self) -> bool:
        """Whether the drain was cut short."""
        return self._hurry.is_set()

    async def run(self) -> None:
        """Tick until `stop`, then drain all replicas within the bound. The caller stops them afterwards."""
        now = self._clock()
        for turn in self._turns:  # all on the board before anything is published
            await turn.loop.begin(now)
        async with asyncio.TaskGroup() as group:
            for turn in self._turns:
                group.create_task(self._keep_ticking(turn))
        await self._drain()

    async def _keep_ticking(self, turn: _Turn) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_s = loop.time()
            turn.wake.clear()
            period_s = turn.loop.policy.tick_s
            if not await self._tick(turn):
                period_s = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** (turn.failures - 1))
            await self._commit()
            await self._until(turn, began_s + period_s, early=turn.failures == 0)
            await self._until(turn, began_s + TICKS_APART_S, early=False)

    async def _tick(self, turn: _Turn) -> bool:
        """One tick. A bug in it is logged with its trace and costs this policy a back-off, nobody else."""
        failure = await outcome(self._once(turn))
        if failure is None:
            turn.failures = 0
            return True
        turn.failures += 1
        self._tellers.failed(turn.loop.policy.key)
        log.error("tick failed", policy=turn.loop.policy.key, failures=turn.failures, exc_info=failure)
        return False

    async def _once(self, turn: _Turn) -> None:
        self._tellers.tick(await turn.loop.tick(self._clock()))

    async def _until(self, turn: _Turn, when_s: float, early: bool) -> None:
        """Sleep; with `early` a wake ends it, and stopping ends it always."""
        event = turn.wake if early else self._stopping
        try:
            async with asyncio.timeout_at(when_s):
                await event.wait()
        except TimeoutError:
            return

    async def _commit(self) -> None:
        now = self._clock()
        if now.monotonic_s - self._pruned_s >= PRUNE_EVERY_S:
            self._pruned_s = now.monotonic_s
            self._store.prune(now.epoch_s)
        try:
            await self._store.commit()
        except sqlite3.Error as error:
            log.error("history not written, kept for the next tick", error=str(error))

    async def _drain(self) -> None:
        """Take every replica off the routers and wait until what runs there has ended, within the bound."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + DRAIN_BOUND_S
        while not self._hurry.is_set():
            done = [await turn.loop.drain_all(self._clock()) for turn in self._turns]
            if all(done) or loop.time() >= ends_s:
                log.info("drained" if all(done) else "not drained in time", bound_s=DRAIN_BOUND_S)
                return
            try:
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await self._hurry.wait()
            except TimeoutError:
                continue
