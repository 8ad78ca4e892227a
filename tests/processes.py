"""Real processes for tests: start one, wait for its ready line, stop it, and prove that nothing is left.

`Processes.start("engine", "--port", "0")` runs `python -m tidegate engine --port 0` in a session of its own, with both
outputs read by threads so that no pipe ever fills. `close()` (the fixture `processes` in `conftest.py` calls it) stops
whatever still runs and raises when a process of this test is left anywhere on the machine: all inherit a mark in their
environment, so grandchildren in other process groups are found as well. Everything is synchronous; an async test wraps
waiting calls in `asyncio.to_thread`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

MARK = "TIDEGATE_TEST_MARK"
_numbers = count(1)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago; for programs that cannot take port 0."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Running:
    """One started process. `stdout` and `stderr` grow line by line (without line ends) while it runs."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.argv = argv
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._news = threading.Condition()
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self._popen.stdout, self.stdout), (self._popen.stderr, self.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def __repr__(self) -> str:
        state = "running" if self.running else f"exit {self._popen.returncode}"
        tail = "\n  ".join([*self.stdout[-5:], *self.stderr[-25:]])
        return f"<{' '.join(self.argv)} pid {self.pid}: {state}>\n  {tail}"

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_ready(self, pattern: str, timeout_s: float = 30.0) -> re.Match[str]:
        """The first line of stdout in which `pattern` is found. Raises `AssertionError` when none comes."""
        found = self._wait_line(self.stdout, pattern, timeout_s)
        assert found is not None, f"no line with {pattern!r} within {timeout_s} s: {self!r}"
        return found

    def wait_log(self, pattern: str, timeout_s: float = 30.0) -> re.Match[str]:
        """The same for stderr."""
        found = self._wait_line(self.stderr, pattern, timeout_s)
        assert found is not None, f"no log line with {pattern!r} within {timeout_s} s: {self!r}"
        return found

    def _wait_line(self, lines: list[str], pattern: str, timeout_s: float) -> re.Match[str] | None:
        def match() -> re.Match[str] | None:
            return next((found for line in lines if (found := re.search(pattern, line))), None)

        def decided() -> bool:
            return match() is not None or not any(reader.is_alive() for reader in self._readers)

        with self._news:
            self._news.wait_for(decided, timeout_s)
            return match()

    def signal(self, number: int) -> None:
        """Send a signal to this process alone; no error when it has ended."""
        if self.running:
            self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to this process alone, and wait for it."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for the end and for all output; gives the exit code. Raises `AssertionError` past the bound."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s: {self!r}") from None
        for reader in self._readers:
            reader.join(2.0)  # a grandchild may hold the pipe open; what it says is not this process's
        return code

    def stop(self, timeout_s: float = 15.0) -> int:
        """SIGTERM, a bound, SIGKILL to the process group; gives the exit code."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.wait()


class Processes:
    """All processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{os.getpid()}-{next(_numbers)}"
        self.started: list[Running] = []

    def start(self, *argv: str) -> Running:
        """Run `tidegate ARGV...` as its own process with this interpreter."""
        return self.start_program(sys.executable, "-m", "tidegate", *argv)

    def start_program(self, *argv: str) -> Running:
        """Run any program. The first word is its path."""
        environment = {**os.environ, MARK: self.mark, "PYTHONUNBUFFERED": "1"}
        running = Running(list(argv), environment)
        self.started.append(running)
        return running

    def left(self) -> list[int]:
        """Pids of this test's processes that still run, found by the mark in their environment."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0") and b"Z" not in _state(folder):
                    found.append(int(folder.name))
        return found

    def close(self) -> None:
        """Stop all, newest first. Raises `AssertionError` naming what was left, after having killed it."""
        for running in reversed(self.started):
            if running.running:
                running.stop()
            running.wait()
        left = self.left()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes left behind by {[r.argv[2:] for r in self.started]}: {left}"


def _state(folder: Path) -> bytes:
    """The state letter of a process, b"Z" for a zombie."""
    return (folder / "stat").read_bytes().rpartition(b") ")[2][:1]
