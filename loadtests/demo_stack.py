"""One law's stack in the demo: a router process, a controller process and, through it, replica processes. Starts them,
reads them, ends them.

Knows nothing of load and of what is shown. Each child is a process group of its own whose output goes to files in the
stack's folder; the ready lines are read from there. `stop` asks the controller first (it ends its replicas), then the
router, and kills what is left after a bound; `kill` does the last step alone and at once. Replicas are found again by
the stack's folder in their command line, so that even one whose controller died is ended, and nobody else's process
ever is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

READY_S = 40.0
"""A child that has not said so by then has failed; two slow shared cores take about 5 s."""
CONTROLLER_STOP_S = 20.0
ROUTER_STOP_S = 8.0
READ_S = 5.0
_READY = re.compile(r"ready: (.*)$", re.MULTILINE)


class StackFailed(Exception):
    """A process of a stack ended or never became ready; the message has the last lines it wrote."""

    exit_code = 1


class Child:
    """One process and its two files."""

    def __init__(self, name: str, words: list[str], folder: Path) -> None:
        self.name = name
        self._words = words
        self._out = folder / f"{name}.out"
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, in a group of its own so that Ctrl-C reaches the demo alone."""
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidegate", *self._words, stdout=out, stderr=log, start_new_session=True
            )

    async def ready(self) -> dict[str, str]:
        """Wait for its ready line; returns the addresses in it by name. Raises `StackFailed`."""
        try:
            async with asyncio.timeout(READY_S):
                while not (said := _READY.search(self._out.read_text())):
                    self.check()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise self._failed(f"was not ready within {READY_S:g} s") from None
        words = said[1].split()
        return dict(zip(words[::2], words[1::2], strict=False))

    def check(self) -> None:
        """Raises `StackFailed` when it has ended."""
        if self._process is None or self._process.returncode is not None:
            code = None if self._process is None else self._process.returncode
            raise self._failed(f"ended with exit code {code}")

    async def stop(self, bound_s: float) -> bool:
        """SIGTERM, wait, SIGKILL the group. True when it ended by itself and with 0."""
        if self._process is None:
            return True
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(bound_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        return self._process.returncode == 0

    def kill(self) -> None:
        """SIGKILL its group, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self, count: int = 12) -> str:
        """The end of what it wrote, both files."""
        lines = [line for file in (self._out, self._log) if file.exists() for line in file.read_text().splitlines()]
        return "\n".join(lines[-count:])

    def _failed(self, what: str) -> StackFailed:
        return StackFailed(f"the {self.name} {what}; it wrote last:\n{self.last_lines()}")


class Stack:
    """A router and a controller that follows `law`. `policy`: the document; `folder`: theirs alone; `client` reads
    their APIs.
    """

    def __init__(self, law: str, policy: dict[str, Any], folder: Path, client: aiohttp.ClientSession) -> None:
        self.law = law
        self.folder = folder
        self.data_url = self.admin_url = self.web_url = ""
        self._policy = policy
        self._client = client
        self._children: list[Child] = []

    @property
    def state(self) -> Path:
        """The controller's state folder."""
        return self.folder / "state"

    async def start(self) -> None:
        """Start both and wait until they are ready. Raises `StackFailed`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "policy.yaml"
        file.write_text(json.dumps(self._policy, indent=2))  # JSON is YAML
        router = await self._child("router", ["router", "--port", "0", "--admin-port", "0", "--name", self.law])
        self.data_url, self.admin_url = router["data"], router["admin"]
        words = ["controller", "--local", "-f", str(file), "--state-dir", str(self.state)]
        words += ["--router", self.admin_url, "--web-port", "0", "--law", self.law]
        self.web_url = (await self._child("controller", words))["web"]

    async def _child(self, name: str, words: list[str]) -> dict[str, str]:
        child = Child(name, words, self.folder)
        self._children.append(child)
        await child.start()
        return await child.ready()

    def check(self) -> None:
        """Raises `StackFailed` when a process has ended."""
        for child in self._children:
            child.check()

    async def status(self) -> dict[str, Any]:
        """The policy's row of the controller's status, {} before its first tick. Raises `StackFailed` for no answer."""
        rows = (await self._read("status"))["policies"]
        return dict(rows[0]) if rows else {}

    async def timeline(self, after: int) -> list[dict[str, Any]]:
        """Ticks after a sequence number."""
        return list(await self._read(f"timeline?after={after}"))

    async def replicas(self) -> list[dict[str, Any]]:
        """Every replica there ever was."""
        return list(await self._read("replicas"))

    async def _read(self, what: str) -> Any:
        try:
            async with asyncio.timeout(READ_S), self._client.get(f"{self.web_url}/api/v1/{what}") as answer:
                answer.raise_for_status()
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.check()
            raise StackFailed(f"the controller's {what} cannot be read: {error!r}") from error

    async def stop(self) -> list[str]:
        """End everything; returns what did not end as it should, in words."""
        problems = []
        bounds = {"controller": CONTROLLER_STOP_S, "router": ROUTER_STOP_S}
        for child in reversed(self._children):
            if not await child.stop(bounds[child.name]):
                said = child.last_lines(4)
                problems.append(f"{self.law}: the {child.name} did not end with exit code 0; it wrote last:\n{said}")
        left = self.left()
        if left:
            problems.append(f"{self.law}: {len(left)} replicas were left and had to be killed")
        self.kill()
        return problems

    def kill(self) -> None:
        """SIGKILL every process of the stack, now."""
        for child in self._children:
            child.kill()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """Pids of replicas that run: processes with this stack's folder in their command line."""
        mark = f"{self.folder}/generations-".encode()
        return [pid for pid, words in _command_lines() if mark in words]


def _command_lines() -> Iterator[tuple[int, bytes]]:
    """(pid, command line) of all processes; none where there is no /proc, and then engines end by `--exit-after-s`."""
    proc = Path("/proc")
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes()
