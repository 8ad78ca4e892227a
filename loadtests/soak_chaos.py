"""Carries out the schedule: each slot of the pool has a task that does its faults one after the other.

Told how many requests have begun, it hands out what is due. A slot's fault may take its time (an engine needs a moment to
start, a drain waits for its streams); the others go on meanwhile. When all is played, `heal` puts everything right again.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import aiohttp

from loadtests.soak_controller import Controller, Row
from loadtests.soak_plan import LIMITS, SLOTS, Fault
from loadtests.soak_stack import Engine, Stack, StackFailed

DRAIN_S: Final = 60.0
"""Longer than the longest request may take (`total_s`)."""

POLL_S: Final = 0.05
FAULT_S: Final = 15.0
NO_FAULTS: Final[dict[str, Any]] = {
    "freeze": False,
    "drop_next": 0,
    "fail_next": 0,
    "cut_after_tokens": None,
    "error_after_tokens": None,
    "die_after_tokens": None,
    "speed": 1.0,
    "first_byte_delay_s": 0.0,
    "split_bytes": 0,
    "burst": False,
    "unhealthy": False,
    "metrics": "vllm",
}


class Chaos:
    """`stack` has the soak's clock; `problem`: where it files what must not happen; `history` holds (when, how many requests had
    begun, what) of all that was done.
    """

    def __init__(
        self, stack: Stack, controller: Controller, session: aiohttp.ClientSession, problem: Callable[[str], None]
    ) -> None:
        self.history: list[tuple[float, int, str]] = []
        self.slots: list[Engine] = []
        self._stack = stack
        self._controller = controller
        self._session = session
        self._problem = problem
        self._begun = 0
        self._names = 0
        self._due: deque[Fault] = deque()
        self._lines: list[asyncio.Queue[Fault]] = [asyncio.Queue() for _ in range(SLOTS + 1)]  # the last: controller's

    async def start(self) -> None:
        """The pool, all slots serving. Raises `StackFailed`."""
        self.slots = list(await asyncio.gather(*(self._new(slot) for slot in range(SLOTS))))
        for engine in self.slots:
            self._tell(engine)
        await self._controller.told()

    def follow(self, schedule: Iterable[Fault]) -> None:
        """What is to be done."""
        self._due.extend(schedule)

    def begun(self, count: int) -> None:
        """So many requests have begun."""
        self._begun = count
        while self._due and self._due[0].at <= count:
            fault = self._due.popleft()
            self._lines[fault.slot].put_nowait(fault)

    async def run(self) -> None:
        """Do what is due until cancelled."""
        async with asyncio.TaskGroup() as group:
            for slot in range(-1, SLOTS):
                group.create_task(self._keep(self._lines[slot]))

    async def quiet(self) -> None:
        """Wait until all that was due is done."""
        for line in self._lines:
            await line.join()

    async def heal(self) -> None:
        """Everything runs, nothing is wrong with it, the table has all."""
        await self.quiet()
        for slot, engine in enumerate(self.slots):
            engine.child.signal(signal.SIGCONT)
            if not engine.child.running:
                await self._replace(slot)
            else:
                await self._fault(engine, NO_FAULTS)
                self._tell(self.slots[slot])
        await self._controller.told()

    async def _keep(self, line: asyncio.Queue[Fault]) -> None:
        while True:
            fault = await line.get()
            self._note(str(fault))
            try:
                if fault.slot < 0:
                    await self._control(fault.what)
                else:
                    await self._act(fault, self.slots[fault.slot])
            finally:
                line.task_done()

    def _note(self, what: str) -> None:
        self.history.append((self._stack.now(), self._begun, what))

    async def _control(self, what: str) -> None:
        controller = self._controller
        match what:
            case "restart":
                controller.restart()
            case "stale":
                await controller.send_stale()
            case "other_body":
                await controller.send_other_body()
            case _:
                controller.idempotent = not controller.idempotent

    async def _act(self, fault: Fault, engine: Engine) -> None:
        controller, slot = self._controller, fault.slot
        match fault.what:
            case "fault":
                await self._fault(engine, fault.settings)
            case "kill":
                self._stack.kill_engine(engine)
                await engine.child.wait()
                if fault.settings["told"]:
                    self._tell(engine, intent="absent")
            case "restart":
                await self._restart(engine)
            case "replace":
                self._stack.kill_engine(engine)
                await self._replace(slot)
            case "stop":
                engine.child.signal(signal.SIGSTOP)
                engine.stopped.append((self._stack.now(), float("inf")))
            case "continue":
                engine.child.signal(signal.SIGCONT)
                if engine.stopped:
                    engine.stopped[-1] = (engine.stopped[-1][0], self._stack.now())
            case "table":
                row = controller.rows[engine.id]
                row.limit = fault.settings.get("limit", row.limit)
                row.intent = fault.settings.get("intent", row.intent)
            case "drain":
                await self._drain(engine, surge=fault.settings["surge"])
            case _:
                raise AssertionError(f"the schedule has an unknown fault: {fault}")

    async def _drain(self, old: Engine, *, surge: bool) -> None:
        """The right way to replace a replica: nothing may be lost by it."""
        controller = self._controller
        if surge:
            await self._join(old.slot)
        self._tell(old, intent="draining")
        await controller.told()
        try:
            async with asyncio.timeout(DRAIN_S):
                while not controller.drained(old.id):  # noqa: ASYNC110  # the routers' word comes with the next answer
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self._problem(f"{old.id} was not drained within {DRAIN_S:g} s")
        old.drained_s = self._stack.now()
        self._stack.kill_engine(
            old
        )  # not SIGTERM: an engine may be kind to what still runs, and then this proves nothing
        await old.child.wait()
        self._tell(old, intent="absent")
        if not surge:
            await self._join(old.slot)

    async def _join(self, slot: int) -> None:
        """A new engine for the slot, in the table."""
        self.slots[slot] = await self._new(slot)
        self._tell(self.slots[slot])

    async def _replace(self, slot: int) -> None:
        """Another engine on another port; the one before is gone from the table."""
        self._tell(self.slots[slot], intent="absent")
        await self._join(slot)

    async def _restart(self, engine: Engine) -> None:
        """The same endpoint on the same port; on another one when the kernel gave the port away meanwhile."""
        self._stack.kill_engine(engine)
        await engine.child.wait()
        port = int(engine.url.rpartition(":")[2])
        try:
            again = await self._stack.engine(engine.id, engine.slot, port)
        except StackFailed:
            self._note(f"port {port} is taken, slot {engine.slot} gets another")
            await self._replace(engine.slot)
            return
        self.slots[engine.slot] = again
        self._tell(again)

    async def _new(self, slot: int) -> Engine:
        self._names += 1
        return await self._stack.engine(f"soak-gpu-{self._names}", slot)

    def _tell(self, engine: Engine, intent: str = "active") -> None:
        rows = self._controller.rows
        if intent == "absent":
            rows.pop(engine.id, None)
        else:
            rows[engine.id] = Row(id=engine.id, url=engine.url, limit=LIMITS[engine.slot], intent=intent)

    async def _fault(self, engine: Engine, settings: dict[str, Any]) -> None:
        """POST /fault; one that has ended meanwhile needs none."""
        try:
            async with (
                asyncio.timeout(FAULT_S),
                self._session.post(f"{engine.url}/fault", json=settings) as answer,
            ):
                if answer.status != 200:
                    self._problem(f"POST /fault {settings} to {engine.id}: {answer.status} {await answer.text()}")
        except (aiohttp.ClientError, TimeoutError) as error:
            await asyncio.sleep(POLL_S)  # its end is seen a moment after its connections
            if engine.child.running:
                self._problem(f"POST /fault {settings} to {engine.id}: {error!r}")
