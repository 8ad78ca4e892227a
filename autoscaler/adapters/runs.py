"""One replica's life as a process: what is known of it, as the adapter's own record, as a value, and as the history
keeps it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from autoscaler.adapters.processes import OwnProcess
from autoscaler.errors import BadInput
from autoscaler.model import Now, Replica, ReplicaState


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """`Run.row` as read back. `pid`: above 1, since a signal to group 0 or 1 would hit ourselves or all."""

    pid: Annotated[int, msgspec.Meta(gt=1)]
    start_ticks: int
    boot_id: str
    variant: str
    version: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    device: str | None
    log: str
    path: str
    standby: bool
    started_epoch_s: float
    ready_epoch_s: float | None
    draining_epoch_s: float | None

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """Raises `BadInput` naming the first field that is missing or cannot be."""
        try:
            return msgspec.convert(row, cls)
        except msgspec.ValidationError as error:
            raise BadInput(str(error)) from error


@dataclass(slots=True, kw_only=True)
class Run:
    """One replica's life. Moments are `Now`s, None = not yet. `standby` and `draining` (since when, None = it does not) are
    what was decided about it last. `exit_code` None = running, or not to be known.
    """

    id: str
    policy: str
    variant: str
    version: str
    process: OwnProcess
    port: int
    device: str | None
    log: Path
    path: str
    standby: bool
    started: Now
    ready: Now | None = None
    draining: Now | None = None
    gone: Now | None = None
    stopping: bool = False
    failed: bool = False
    exit_code: int | None = None
    why: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def replica(self) -> Replica:
        """The same as a value."""
        state = ReplicaState.READY if self.ready is not None else ReplicaState.STARTING
        if self.draining is not None:
            state = ReplicaState.DRAINING
        return Replica(
            id=self.id,
            variant=self.variant,
            version=self.version,
            state=ReplicaState.GONE if self.gone else ReplicaState.STOPPING if self.stopping else state,
            started_s=self.started.monotonic_s,
            ready_s=None if self.ready is None else self.ready.monotonic_s,
            draining_s=None if self.draining is None else self.draining.monotonic_s,
            standby=self.standby,
            failed=self.failed,
            url=f"http://127.0.0.1:{self.port}",
            why=self.why,
        )

    def row(self) -> dict[str, object]:
        """What the history keeps of it."""
        identity = self.process.identity
        return {
            "pid": identity.pid,
            "start_ticks": identity.start_ticks,
            "boot_id": identity.boot_id,
            "variant": self.variant,
            "version": self.version,
            "port": self.port,
            "device": self.device,
            "log": str(self.log),
            "path": self.path,
            "standby": self.standby,
            "started_epoch_s": self.started.epoch_s,
            "ready_epoch_s": None if self.ready is None else self.ready.epoch_s,
            "draining_epoch_s": None if self.draining is None else self.draining.epoch_s,
        }

    @classmethod
    def from_row(cls, name: str, policy: str, row: SavedRun, process: OwnProcess, now: Now) -> Self:
        """A replica that an earlier controller started. Its moments are put on this process's clocks."""
        return cls(
            id=name,
            policy=policy,
            variant=row.variant,
            version=row.version,
            process=process,
            port=row.port,
            device=row.device,
            log=Path(row.log),
            path=row.path,
            standby=row.standby,
            started=_at(row.started_epoch_s, now),
            ready=None if row.ready_epoch_s is None else _at(row.ready_epoch_s, now),
            draining=None if row.draining_epoch_s is None else _at(row.draining_epoch_s, now),
        )


def _at(epoch_s: float, now: Now) -> Now:
    """A remembered wall-clock moment on this process's own clocks."""
    return Now(monotonic_s=now.monotonic_s - (now.epoch_s - epoch_s), epoch_s=epoch_s)


def exit_text(code: int | None) -> str:
    """An exit code in words; None = it is not known."""
    if code is None:
        return "exited"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}  # most real-time signals have no name
        return f"killed by {known.get(-code, f'signal {-code}')}"
    return f"exited with code {code}"
