"""One operating-system process and its group: start it, notice its exit at once, say who listens on a port, end all
of it.

It knows nothing of replicas or policies. A process started here leads its own session and group, reads from nothing and
writes to a file, never to a pipe (a full pipe stops an engine). Its exit is noticed through a pidfd where the kernel
has one, else by looking every 0.2 s. The group is killed, and waited for, before the leader is reaped, while its number
cannot have been given to anybody else: a device is free only once no child holds it any more. A process that an earlier
controller started is recognised by pid, start moment and boot, never by pid alone; what such a one left in its
group when it exited unseen is found by the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoscaler.errors import ControllerError

PROC = Path("/proc")
LOOK_EVERY_S = 0.2
GROUP_LOOK_S = 0.01
GROUP_BOUND_S = 5.0
"""How long killed children are waited for; one that hangs in the kernel is left to it."""
FIRST_PORT = 20_000
FALLBACK_LAST_PORT = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What names one process for as long as the machine is up: a pid alone is given again to others."""

    pid: int
    start_ticks: int
    boot_id: str


class OwnProcess(Protocol):
    """A process whose exit can be awaited."""

    identity: Identity
    exit_code: int | None

    async def exited(self) -> None:
        """Return when it has exited and its group was killed; then `exit_code` says how (None: it cannot be known)."""

    def signal_group(self, number: int) -> None:
        """Send a signal to every process of its group; one that is gone already is fine."""


class Started:
    """A child of this process. `exit_code` is negative for a signal, as in `subprocess`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Raises `ControllerError` when the system cannot start it."""
        try:
            with log.open("ab") as output:
                self._child = subprocess.Popen(
                    list(command),
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ControllerError(f"cannot start {command[0]!r}: {error}") from error
        pid = self._child.pid
        self.identity = Identity(pid=pid, start_ticks=start_ticks(pid) or 0, boot_id=boot_id())
        self.exit_code: int | None = None
        self._reaped = asyncio.Lock()

    async def exited(self) -> None:
        await _gone(self.identity.pid, self._running)
        async with self._reaped:
            if self.exit_code is None:
                self.signal_group(signal.SIGKILL)
                await _emptied(self.identity.pid)
                self.exit_code = self._child.wait()

    def _running(self) -> bool:
        if self.exit_code is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.identity.pid, flags) is None

    def signal_group(self, number: int) -> None:
        if self.exit_code is None:
            _signal_group(self.identity.pid, number)


class Adopted:
    """A process that an earlier controller started; its exit code goes to whoever reaps it."""

    exit_code: int | None = None

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._ended = False

    async def exited(self) -> None:
        await _gone(self.identity.pid, lambda: is_running(self.identity))
        self.signal_group(signal.SIGKILL)
        await _emptied(self.identity.pid)
        self._ended = True

    def signal_group(self, number: int) -> None:
        if not self._ended and (is_running(self.identity) or group_members(self.identity.pid)):
            _signal_group(self.identity.pid, number)


def is_running(identity: Identity) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    fields = _stat(identity.pid)
    return (
        fields is not None
        and fields.state not in "ZX"
        and fields.start_ticks == identity.start_ticks
        and boot_id() == identity.boot_id
    )


def start_ticks(pid: int) -> int | None:
    """When the process began, in kernel ticks since boot; None when it is gone or the system has no /proc."""
    fields = _stat(pid)
    return None if fields is None else fields.start_ticks


def boot_id() -> str:
    """Names this boot of the machine; empty where the system does not say."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def group_members(group: int) -> list[int]:
    """Pids of the living processes of a group, zombies left out; [] where the system has no /proc."""
    return [pid for pid, fields in _all_stats() if fields.group == group and fields.state not in "ZX"]


def orphans(identity: Identity) -> list[int]:
    """Living processes that a leader left in its group when it exited; [] while it runs, and where any doubt is left.

    They are its own when the machine has not been booted since, all of them are in the session that it began, none
    started before it, and its number was not given to another process: Linux gives a number to nobody while a group or
    session has it, so a living process of that number began after the group had ended.
    """
    leader = _stat(identity.pid)
    gone = leader is None or (leader.state in "ZX" and leader.start_ticks == identity.start_ticks)
    if not gone or not identity.boot_id or identity.boot_id != boot_id():
        return []
    members = {pid: fields for pid, fields in _all_stats() if fields.group == identity.pid and fields.state not in "ZX"}
    proven = all(f.session == identity.pid and f.start_ticks >= identity.start_ticks for f in members.values())
    return list(members) if proven else []


async def end_orphans(identity: Identity) -> list[int]:
    """Kill what `orphans` finds and wait for its end; gives those that live on, [] when all are gone."""
    if orphans(identity):
        _signal_group(identity.pid, signal.SIGKILL)
        await _emptied(identity.pid)
    return orphans(identity)


def listens(port: int, leader: int) -> bool | None:
    """Whether a process of `leader`'s session listens on the TCP port; None when it cannot be told.

    True: one of ours holds the listening socket. False: a process that is not ours does. None: no readable process
    holds it (another user's, a container's proxy) or the system has no /proc.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return None
    seen_other = False
    for pid, fields in _all_stats():
        ours = leader in (fields.session, fields.group, pid)
        if sockets.intersection(_open_files(pid)):
            if ours:
                return True
            seen_other = True
    return False if seen_other else None


def free_port(held: set[int], start: int) -> int:
    """The next port from `start` on that nobody listens on and that is not `held`; below the range that outgoing
    connections use, where a port found free now could be somebody's by the time an engine has loaded. Raises
    `ControllerError` when there is none.
    """
    last = _last_port()
    span = last - FIRST_PORT
    for step in range(span):
        port = FIRST_PORT + (start - FIRST_PORT + step) % span
        if port not in held and _is_free(port):
            return port
    raise ControllerError(f"no free port between {FIRST_PORT} and {last}")


def last_line(log: Path, limit: int = 300) -> str:
    """The last line of a log file that says something, shortened to `limit` characters; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:limit] for line in reversed(lines) if line.strip()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    state: str
    group: int
    session: int
    start_ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name in brackets may itself hold spaces and brackets, so count from the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(state=fields[0], group=int(fields[2]), session=int(fields[3]), start_ticks=int(fields[19]))


def _all_stats() -> Iterator[tuple[int, _Stat]]:
    try:
        names = os.listdir(PROC)
    except OSError:
        return
    for name in names:
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None:
                yield int(name), fields


def _open_files(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found: set[str] = set()
    try:
        for name in os.listdir(folder):
            try:
                found.add(os.readlink(f"{folder}/{name}"))
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return found  # gone, or another user's
    return found


def _listening(port: int) -> list[str]:
    """Inodes of the sockets that listen on a TCP port, from the kernel's table (state 0A, port in hex)."""
    inodes = []
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (PROC / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                inodes.append(fields[9])
    return inodes


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return not _listening(port)


def _last_port() -> int:
    try:
        low = int((PROC / "sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return FALLBACK_LAST_PORT
    return low if low >= FIRST_PORT + 1000 else FALLBACK_LAST_PORT


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # all of it has exited; macOS says "not permitted" for zombies


async def _gone(pid: int, running: Callable[[], bool]) -> None:
    """Return when the process has exited (it may be a zombie yet). `running` looks at it without reaping it."""
    descriptor = _pidfd(pid)
    if descriptor is None:
        while running():  # noqa: ASYNC110 - nothing tells us on a kernel without pidfd
            await asyncio.sleep(LOOK_EVERY_S)
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(descriptor, exited.set)
    try:
        if running():  # the number may have been given to another process before the descriptor was taken
            await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _emptied(group: int) -> None:
    """Return when no process of the group lives, zombies apart, or when the bound has passed."""
    try:
        async with asyncio.timeout(GROUP_BOUND_S):
            while group_members(group):  # noqa: ASYNC110 - nothing tells of other people's children
                await asyncio.sleep(GROUP_LOOK_S)
    except TimeoutError:
        return


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # gone already, or a kernel without it
