"""The soak's processes: two routers and the engines, each a process group of its own, ended by pid whatever happens.

Output of the routers and of all engines goes to files in the run's folder, which the report quotes. An engine's log of
generations has one file for each process, so that it is known which process began what and when that process ended. An
engine whose soak is gone ends by itself after `EXIT_AFTER_S`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

READY_S: Final = 60.0
"""Two slow shared cores on which ten processes start at once take about 8 s."""

EXIT_AFTER_S: Final = 3600
_URL = re.compile(r"ready: (?:data )?(http://\S+)(?: admin (http://\S+))?")


class StackFailed(Exception):
    """A process did not start or ended by itself; the message has the last lines that it wrote."""

    exit_code = 1


class Child:
    """One process. `urls`: what its ready line says."""

    def __init__(self, name: str, folder: Path, words: list[str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.urls: tuple[str, ...] = ()
        self._words = words
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait for its ready line. Raises `StackFailed`."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidegate",
                *self._words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                while not (found := _URL.search((line := await self._process.stdout.readline()).decode())):
                    if not line:
                        raise StackFailed(f"{self.name} ended before it was ready; it wrote last:\n{self.last_lines()}")
        except TimeoutError:
            raise StackFailed(f"{self.name} was not ready within {READY_S:g} s") from None
        self.urls = tuple(url for url in found.groups() if url)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Has it been started and not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return None if self._process is None else self._process.returncode

    def signal(self, number: int) -> None:
        """Send a signal to it; nothing when it has ended."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            await self._process.wait()

    async def stop(self, bound_s: float) -> bool:
        """SIGTERM, a bound, SIGKILL. True when it ended in order."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(bound_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
        return self.code == 0

    def kill(self) -> None:
        """SIGKILL to its process group."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self, count: int = 20) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-count:])


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine process in one slot. Times on the soak's clock: `ended_s`, None while it runs, is when it was killed or
    seen to have ended; `stopped`: spans in which SIGSTOP held it; `drained_s`: when both routers had said drained.
    """

    child: Child
    id: str
    slot: int
    generations: Path
    ended_s: float | None = None
    drained_s: float | None = None
    stopped: list[tuple[float, float]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.child.urls[0]


class Stack:
    """All processes of one run. `now`: the soak's clock."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self.folder = folder
        self.routers: list[Child] = []
        self.engines: list[Engine] = []
        self.now = now
        self._children: list[Child] = []
        self._ends: list[asyncio.Task[None]] = []

    async def router(self, name: str) -> Child:
        """Start a router on free ports."""
        words = ["router", "--port", "0", "--admin-port", "0", "--name", name, "--shutdown-grace-secs", "0.1"]
        child = Child(name, self.folder, words)
        self._children.append(child)
        await child.start()
        self.routers.append(child)
        return child

    async def engine(self, id_: str, slot: int, port: int = 0) -> Engine:
        """Start an engine; a port that is taken meanwhile is answered by `StackFailed`."""
        number = len(self._children)
        name = f"{id_}.{number}"
        log = self.folder / f"{name}.generations"
        words = ["engine", "--port", str(port), "--slots", "16", "--log", str(log), "--log-starts"]
        words += ["--decode-tokens-per-s", "150", "--prefill-tokens-per-s", "20000"]
        words += ["--seed", str(slot), "--exit-after-s", str(EXIT_AFTER_S)]
        child = Child(name, self.folder, words)
        self._children.append(child)
        await child.start()
        engine = Engine(child=child, id=id_, slot=slot, generations=log)
        self.engines.append(engine)
        self._ends.append(asyncio.create_task(self._note_end(engine)))
        return engine

    async def _note_end(self, engine: Engine) -> None:
        await engine.child.wait()
        if engine.ended_s is None:  # by itself
            engine.ended_s = self.now()

    def kill_engine(self, engine: Engine) -> None:
        """kill -9."""
        if engine.ended_s is None:
            engine.ended_s = self.now()
        engine.child.kill()

    def check(self) -> None:
        """Raises `StackFailed` when a router has ended by itself."""
        for router in self.routers:
            if not router.running:
                raise StackFailed(f"{router.name} ended with exit code {router.code}:\n{router.last_lines()}")

    async def stop(self) -> list[str]:
        """End all in order; gives what did not end as it should. A router must end with 0 by itself."""
        problems = []
        for router in self.routers:
            if router.running and not await router.stop(15.0):
                problems.append(f"{router.name} did not end in order after SIGTERM (exit code {router.code})")
        self.kill()
        await self.gone()
        return problems

    async def gone(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*(child.wait() for child in self._children), *self._ends)

    def kill(self) -> None:
        """SIGKILL to every process that runs, now."""
        for child in self._children:
            child.kill()
