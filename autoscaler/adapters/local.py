"""Replicas are processes on this machine: the target that needs nothing but a command line.

It knows no router and no decision: it starts what it is asked to, says what runs, and stops it. A replica is a
process group; it is ready when its readiness path answers 200 on the port chosen for it and the process that listens
there is ours. Each device of a variant is held by one replica at a time, over all policies. A variant whose replicas
keep dying is started again after a back-off of 1 s, doubled up to 60 s; one that served for 60 s starts afresh.
Running replicas are remembered in the history with what was decided about them, so that a controller that was killed
finds them again (pid, start moment and boot must agree) as they were. A history that cannot be written costs no more
than that memory: the exit of every process is watched first, and whatever else fails, an end is noticed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import structlog

from autoscaler.adapters.backoff import BackOffs
from autoscaler.adapters.launch import devices_of, launch
from autoscaler.adapters.logs import tidy
from autoscaler.adapters.processes import (
    FIRST_PORT,
    Adopted,
    Identity,
    Started,
    end_orphans,
    free_port,
    is_running,
    last_line,
    listens,
    orphans,
)
from autoscaler.adapters.runs import Run, SavedRun, exit_text
from autoscaler.errors import BadInput, ControllerError
from autoscaler.model import Now, Replica
from autoscaler.policy import ScalingPolicy

PROBE_EVERY_S = 0.2
PROBE_BOUND_S = 2.0
STOP_BOUND_S = 10.0
PAST_MAX = 5_000
TIDY_EVERY_S = 60.0
PORT_SPREAD = 8_191
"""Two controllers on one machine begin at ports that are apart: an engine listens only once it has loaded, so a port
that looks free may be promised already. A prime, so that neighbouring pids land far from each other.
"""

log = structlog.get_logger(part="local")


class ReplicaStore(Protocol):
    """What the adapter keeps in the history."""

    def next_replica_number(self, policy: str, variant: str) -> int:
        """A number never given before."""

    def add_start_time(self, policy: str, variant: str, seconds: float) -> None:
        """One measured start."""

    def save_replica(self, policy: str, replica: str, row: Mapping[str, object]) -> None:
        """Remember one that runs."""

    def drop_replica(self, replica: str) -> None:
        """Forget one that is gone."""

    def saved_replicas(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(id, policy, row) of all remembered."""


class LocalReplicas:
    """`ports.ReplicaTarget` for processes. `logs`: folder of the replicas' log files; `clock` is read at starts,
    readiness and exits; `on_change` is called when a replica became ready or ended.
    """

    def __init__(
        self, store: ReplicaStore, logs: Path, clock: Callable[[], Now], *, stop_bound_s: float = STOP_BOUND_S
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._store = store
        self._logs = logs
        self._clock = clock
        self._stop_bound_s = stop_bound_s
        self._runs: dict[str, Run] = {}
        self._past: deque[Run] = deque(maxlen=PAST_MAX)
        self._backoffs = BackOffs()
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._next_port: int | None = None
        self._tidied_s = float("-inf")

    # ---- ports.ReplicaTarget

    async def replicas(self, policy: ScalingPolicy, now: Now) -> tuple[Replica, ...]:
        """All replicas of the policy that are not gone, in order of start."""
        if now.monotonic_s - self._tidied_s >= TIDY_EVERY_S:
            self._tidied_s = now.monotonic_s
            self._spawn(asyncio.to_thread(tidy, self._logs, [run.log for run in self._runs.values()]))
        return tuple(run.replica() for run in self._runs.values() if run.policy == policy.key)

    async def start(self, policy: ScalingPolicy, variant: str, standby: bool, now: Now) -> Replica:
        """Start one. Raises `ControllerError` during a back-off, without a free device, when the system refuses, or when
        the history has no number for it.
        """
        spec = next(v for v in policy.spec.variants if v.name == variant)
        assert spec.process is not None, "validated before the controller starts"
        waiting = self._backoffs.waiting(policy.key, variant, now.monotonic_s)
        if waiting is not None:
            raise ControllerError(waiting)
        device = self._free_device(variant, devices_of(spec.process))
        name = f"{policy.key.replace('/', '-')}-{variant}-{self._number(policy.key, variant)}"
        port = self._free_port()
        words = launch(policy, variant, name, port, device)
        self._logs.mkdir(parents=True, exist_ok=True)
        file = self._logs / f"{name}.log"
        try:
            process = Started(words.command, words.environment, file)
        except ControllerError as error:
            self._backoffs.failed(policy.key, variant, str(error), now.monotonic_s)
            raise
        run = Run(
            id=name,
            policy=policy.key,
            variant=variant,
            version=spec.version,
            process=process,
            port=port,
            device=device,
            log=file,
            path=spec.process.readiness.path,
            standby=standby,
            started=now,
        )
        self._take(run)
        log.info("replica started", replica=name, pid=process.identity.pid, port=port, device=device, standby=standby)
        return run.replica()

    async def mark(self, policy: ScalingPolicy, replica: str, *, standby: bool, draining: Now | None) -> None:
        """Set what was decided about one, and keep it with its row in the history when it is new."""
        run = self._runs.get(replica)
        if run is not None and (run.standby, run.draining) != (standby, draining):
            run.standby, run.draining = standby, draining
            self._save(run)

    async def stop(self, policy: ScalingPolicy, replica: str, now: Now) -> None:
        """SIGTERM to the group now, SIGKILL after the bound. Returns at once; a second call changes nothing."""
        run = self._runs.get(replica)
        if run is not None and not run.stopping:
            run.stopping = True
            self._spawn(self._end(run))

    async def close(self) -> None:
        """Stop everything and wait for it."""
        for run in self._runs.values():
            if not run.stopping:
                run.stopping = True
                self._spawn(self._end(run))
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)  # `_done` has told of those that failed
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ---- what the controller asks besides

    async def adopt(self, policies: Sequence[ScalingPolicy]) -> None:
        """Take over replicas that an earlier controller left running; those of no policy any more are stopped,
        and so is what a replica that ended meanwhile left in its group. A damaged row is logged and passed over.
        """
        now = self._clock()
        variants = {(policy.key, v.name): v for policy in policies for v in policy.spec.variants}
        for name, policy, document in self._store.saved_replicas():
            try:
                row = SavedRun.read(document)
            except BadInput as error:
                log.error("damaged replica passed over", replica=name, table="replica", error=str(error))
                continue
            identity = Identity(pid=row.pid, start_ticks=row.start_ticks, boot_id=row.boot_id)
            if not is_running(identity):
                await self._forget(name, identity)
                continue
            spec = variants.get((policy, row.variant))
            run = Run.from_row(name, policy, row, Adopted(identity), now)
            self._take(run)
            if spec is None or spec.process is None:
                run.stopping, run.why = True, "its policy is gone"
                self._spawn(self._end(run))
            log.info("replica adopted", replica=name, pid=identity.pid, kept=not run.stopping)

    async def _forget(self, replica: str, identity: Identity) -> None:
        """Its leader ended while nobody watched: end what it left in its group, which may hold the port and the device,
        then drop its row. A row whose group lives on is kept for the next start.
        """
        left = orphans(identity)
        if left:
            log.warning("ending what a replica left", replica=replica, pids=left)
            still = await end_orphans(identity)
            if still:
                log.error("processes of a replica live on", replica=replica, pids=still)
                return
        self._store.drop_replica(replica)

    def lives(self) -> list[Run]:
        """Every replica of this controller's life, gone ones too, in order of start."""
        return sorted([*self._past, *self._runs.values()], key=lambda run: run.started.monotonic_s)

    def pids(self) -> dict[str, int]:
        """Process of each replica that runs."""
        return {run.id: run.process.identity.pid for run in self._runs.values()}

    def problems(self, policy: ScalingPolicy, now: Now) -> tuple[str, ...]:
        """What keeps this policy's replicas from starting or staying up, in words; empty when nothing does."""
        texts = (self._backoffs.waiting(policy.key, variant.name, now.monotonic_s) for variant in policy.spec.variants)
        return tuple(text for text in texts if text is not None)

    def kill(self) -> None:
        """SIGKILL to every group, now; for a second signal."""
        for run in self._runs.values():
            run.process.signal_group(signal.SIGKILL)

    # ---- one replica's life

    def _take(self, run: Run) -> None:
        self._runs[run.id] = run
        self._spawn(self._live(run))
        self._save(run)

    async def _live(self, run: Run) -> None:
        """Watch for the end, beside all that can go wrong: a replica that is not watched would be ready for ever."""
        probing = self._spawn(self._until_ready(run))
        try:
            await run.process.exited()
        finally:
            probing.cancel()
            run.process.signal_group(signal.SIGKILL)  # nothing is left to hit, unless the watching itself failed
            self._ended(run)

    async def _until_ready(self, run: Run) -> None:
        if run.ready is not None:
            return  # adopted as such
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            if not await self._answers(run):
                continue
            if listens(run.port, run.process.identity.pid) is not False:
                break
            run.why = f"port {run.port} is answered by a process that is not this replica's"
        run.ready, run.why = self._clock(), ""
        seconds = run.ready.monotonic_s - run.started.monotonic_s
        if isinstance(run.process, Started):
            self._kept(run, lambda: self._store.add_start_time(run.policy, run.variant, seconds))
        self._save(run)
        log.info("replica ready", replica=run.id, start_s=round(seconds, 3))
        self.on_change()

    async def _answers(self, run: Run) -> bool:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_BOUND_S))
        try:
            url = f"http://127.0.0.1:{run.port}{run.path}"
            async with self._session.get(url, allow_redirects=False, headers={"connection": "close"}) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _ended(self, run: Run) -> None:
        now = self._clock()
        run.gone, run.exit_code = now, run.process.exit_code
        del self._runs[run.id]
        self._past.append(run)
        run.ended.set()
        if not run.stopping:
            run.failed = True
            age_s = now.monotonic_s - run.started.monotonic_s
            said = last_line(run.log)
            run.why = f"{exit_text(run.exit_code)} after {age_s:.1f} s" + (f": {said}" if said else "")
            if run.ready is not None:
                self._backoffs.served(run.policy, run.variant, now.monotonic_s - run.ready.monotonic_s)
            self._backoffs.failed(run.policy, run.variant, f"{run.id} {run.why}", now.monotonic_s)
        self._kept(run, lambda: self._store.drop_replica(run.id))
        tell = log.warning if run.failed else log.info
        tell("replica gone", replica=run.id, exit=run.exit_code, failed=run.failed, why=run.why)
        self.on_change()

    async def _end(self, run: Run) -> None:
        for number, bound_s in ((signal.SIGTERM, self._stop_bound_s), (signal.SIGKILL, STOP_BOUND_S)):
            run.process.signal_group(number)
            try:
                async with asyncio.timeout(bound_s):
                    await run.ended.wait()
                return
            except TimeoutError:
                log.warning("replica still running", replica=run.id, after=number.name, waited_s=bound_s)

    # ---- bookkeeping

    def _free_device(self, variant: str, devices: Sequence[str]) -> str | None:
        if not devices:
            return None
        held = {run.device: run.id for run in self._runs.values()}
        for device in devices:
            if device not in held:
                return device
        holders = ", ".join(f"{device} by {held[device]}" for device in devices)
        raise ControllerError(f"variant {variant}: no free device ({holders})")

    def _free_port(self) -> int:
        if self._next_port is None:
            self._next_port = FIRST_PORT + os.getpid() * 131 % PORT_SPREAD
        port = free_port({run.port for run in self._runs.values()}, self._next_port)
        self._next_port = port + 1
        return port

    def _number(self, policy: str, variant: str) -> int:
        try:
            return self._store.next_replica_number(policy, variant)
        except sqlite3.Error as error:
            raise ControllerError(f"variant {variant}: the history gives no number ({error})") from error

    def _save(self, run: Run) -> None:
        self._kept(run, lambda: self._store.save_replica(run.policy, run.id, run.row()))

    def _kept(self, run: Run, write: Callable[[], None]) -> None:
        """Write to the history. When it refuses, what is lost is told, and the replica's life goes on."""
        try:
            write()
        except sqlite3.Error as error:
            log.error("not kept in the history", replica=run.id, error=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            context = {"message": "a replica's task failed", "exception": task.exception(), "task": task}
            task.get_loop().call_exception_handler(context)
