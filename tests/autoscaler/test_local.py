"""Replicas as processes: real ones, started, seen ready, crashed, stopped; nothing is left of any of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from autoscaler.adapters.local import LocalReplicas
from autoscaler.adapters.logs import tidy
from autoscaler.adapters.processes import (
    FIRST_PORT,
    free_port,
    group_members,
    listens,
)
from autoscaler.adapters.runs import exit_text
from autoscaler.controller.history import SqliteHistory
from autoscaler.errors import ControllerError
from autoscaler.model import Now, ReplicaState, StartTime
from tests.autoscaler.yard import Yard, clock

PRIOR = StartTime(p50_s=60, p90_s=120)


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    await yard.target.close()
    left = [pid for run in yard.target.lives() for pid in group_members(run.process.identity.pid)]
    yard.history.close()
    assert left == []


@pytest.fixture
def told() -> Iterator[list[Any]]:
    """What is logged."""
    with structlog.testing.capture_logs() as rows:
        yield rows


async def test_a_replica_starts_becomes_ready_is_measured_and_stops(yard: Yard) -> None:
    policy = yard.policy()
    first = await yard.start(policy)
    assert (first.id, first.state, first.version) == ("chat-v-1", ReplicaState.STARTING, "v1")
    assert first.url is not None
    await yard.ready(first)
    (seen,) = await yard.there(policy)
    assert seen.state is ReplicaState.READY
    assert seen.ready_s is not None
    assert seen.ready_s > seen.started_s
    measured = yard.history.start_time("chat", "v", PRIOR)
    assert measured.samples == 1
    life = yard.life(first)
    assert life.log.read_text().startswith("loading ok")
    assert listens(life.port, life.process.identity.pid) is True
    await yard.target.stop(policy, first.id, clock())
    assert (await yard.there(policy))[0].state is ReplicaState.STOPPING
    await yard.target.stop(policy, first.id, clock())
    await yard.gone(first)
    assert await yard.there(policy) == ()
    assert (life.exit_code, life.failed, life.why) == (-signal.SIGTERM, False, "")
    assert yard.history.saved_replicas() == []


async def test_numbers_are_never_given_twice(yard: Yard) -> None:
    policy = yard.policy()
    first = await yard.start(policy)
    await yard.target.stop(policy, first.id, clock())
    await yard.gone(first)
    assert (await yard.start(policy)).id == "chat-v-2"


async def test_a_crash_is_noticed_with_its_reason_and_backs_off(yard: Yard, told: list[Any]) -> None:
    policy = yard.policy("crash")
    delays_s = []
    at = clock()
    for _ in range(8):
        replica = await yard.target.start(policy, "v", False, at)
        await yard.gone(replica)
        life = yard.life(replica)
        assert life.failed
        assert life.exit_code == 3
        assert ("warning", replica.id) in [(row["log_level"], row.get("replica")) for row in told]
        assert life.why.startswith("exited with code 3 after")
        assert life.why.endswith(": out of memory")
        ended_s = life.gone.monotonic_s
        problem = yard.target.problems(policy, life.gone)
        assert len(problem) == 1
        assert "out of memory" in problem[0]
        with pytest.raises(ControllerError, match="failed in a row, next start in"):
            await yard.target.start(policy, "v", False, life.gone)
        step_s = 0.0
        while yard.target.problems(policy, Now(monotonic_s=ended_s + step_s, epoch_s=0)):
            step_s += 0.5
        delays_s.append(step_s)
        at = Now(monotonic_s=ended_s + step_s, epoch_s=at.epoch_s)
    assert delays_s == [1, 2, 4, 8, 16, 32, 60, 60]
    assert await yard.there(policy) == ()


async def test_a_replica_that_served_long_enough_starts_the_back_off_afresh(yard: Yard) -> None:
    policy = yard.policy()
    for served_s, delay_s in ((1.0, 1.0), (1.0, 2.0), (61.0, 1.0)):
        replica = await yard.target.start(policy, "v", False, Now(monotonic_s=1e9, epoch_s=0))
        await yard.ready(replica)
        life = yard.life(replica)
        life.ready = Now(monotonic_s=life.ready.monotonic_s - served_s, epoch_s=0)
        os.kill(life.process.identity.pid, signal.SIGKILL)
        await yard.gone(replica)
        assert life.why.startswith("killed by SIGKILL")
        ended_s = life.gone.monotonic_s
        assert yard.target.problems(policy, Now(monotonic_s=ended_s + delay_s - 0.1, epoch_s=0))
        assert not yard.target.problems(policy, Now(monotonic_s=ended_s + delay_s, epoch_s=0))


async def test_sigterm_ignored_is_followed_by_sigkill(yard: Yard) -> None:
    yard.target = LocalReplicas(yard.history, yard.folder / "logs", clock, stop_bound_s=0.2)
    yard.target.on_change = yard.news.set
    policy = yard.policy("stubborn")
    replica = await yard.start(policy)
    await yard.ready(replica)
    await yard.target.stop(policy, replica.id, clock())
    await yard.gone(replica)
    assert yard.life(replica).exit_code == -signal.SIGKILL


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_children_of_a_replica_end_with_it(yard: Yard, end: str) -> None:
    policy = yard.policy("children")
    replica = await yard.start(policy)
    await yard.ready(replica)
    assert len(yard.group(replica)) == 2
    if end == "stop":
        await yard.target.stop(policy, replica.id, clock())
    else:
        os.kill(yard.life(replica).process.identity.pid, signal.SIGKILL)
    await yard.gone(replica)
    assert yard.group(replica) == []


async def test_a_device_is_held_by_one_replica_at_a_time(yard: Yard) -> None:
    policy = yard.policy(devices=["0", "1"], env={"DEVICE": "dev{device}"})
    first, second = await yard.start(policy), await yard.start(policy)
    assert [yard.life(r).device for r in (first, second)] == ["0", "1"]
    with pytest.raises(ControllerError, match=r"no free device \(0 by chat-v-1, 1 by chat-v-2\)"):
        await yard.start(policy)
    await yard.ready(second)
    assert yard.life(second).log.read_text() == "loading ok dev1\n"
    await yard.target.stop(policy, first.id, clock())
    with pytest.raises(ControllerError, match="no free device"):  # held until its process is gone
        await yard.start(policy)
    await yard.gone(first)
    third = await yard.start(policy)
    assert yard.life(third).device == "0"


async def test_ports_differ(yard: Yard) -> None:
    policy = yard.policy("never")
    ports = {yard.life(await yard.start(policy)).port for _ in range(3)}
    assert len(ports) == 3


class FullDisk:
    """A history whose writes fail as long as they are told to; `refuses` names the methods."""

    def __init__(self, history: SqliteHistory, *refuses: str) -> None:
        self._history = history
        self.refuses = set(refuses)

    def __getattr__(self, name: str) -> Any:
        if name in self.refuses:
            return self._refuse
        return getattr(self._history, name)

    def _refuse(self, *args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")


WRITES = ["save_replica", "add_start_time", "drop_replica"]


@pytest.mark.parametrize("refused", [*WRITES, "all of them"])
async def test_an_end_is_noticed_whatever_the_history_refuses(yard: Yard, refused: str) -> None:
    disk = FullDisk(yard.history, *(WRITES if refused == "all of them" else [refused]))
    yard.target = LocalReplicas(disk, yard.folder / "logs", clock, stop_bound_s=5.0)
    yard.target.on_change = yard.news.set
    policy = yard.policy()
    replica = await yard.start(policy)
    await yard.ready(replica)
    await yard.target.mark(policy, replica.id, standby=True, draining=None)
    os.kill(yard.life(replica).process.identity.pid, signal.SIGKILL)
    await yard.gone(replica)
    assert yard.life(replica).why.startswith("killed by SIGKILL")
    assert await yard.there(policy) == ()
    assert yard.target.problems(policy, yard.life(replica).gone)


async def test_without_a_number_nothing_is_started(yard: Yard) -> None:
    disk = FullDisk(yard.history, "next_replica_number")
    yard.target = LocalReplicas(disk, yard.folder / "logs", clock)
    with pytest.raises(ControllerError, match=r"variant v: the history gives no number \(database or disk is full\)"):
        await yard.start(yard.policy())
    assert yard.target.lives() == []


async def test_a_replica_that_cannot_be_watched_is_ended(yard: Yard) -> None:
    """The system refuses to tell of the exit: better stopped than ready for ever."""
    policy = yard.policy()
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
    replica = await yard.start(policy)
    process = yard.life(replica).process
    watched = process.exited

    async def refused() -> None:
        raise OSError("too many open files")

    process.exited = refused
    await yard.gone(replica)
    async with asyncio.timeout(30):
        await watched()
        while not told:  # noqa: ASYNC110 - the loop tells it a turn later
            await asyncio.sleep(0)
    assert (yard.life(replica).failed, process.exit_code) == (True, -signal.SIGKILL)
    assert told == ["OSError('too many open files')"]


def test_exit_codes_in_words() -> None:
    assert [exit_text(code) for code in (None, 3, -9, -40)] == [
        "exited",
        "exited with code 3",
        "killed by SIGKILL",
        "killed by signal 40",
    ]


async def test_a_replica_that_never_gets_ready_stays_starting_and_can_be_stopped(yard: Yard) -> None:
    policy = yard.policy("never")
    replica = await yard.start(policy)
    assert (await yard.there(policy))[0].state is ReplicaState.STARTING
    await yard.target.stop(policy, replica.id, clock())
    await yard.gone(replica)
    assert not yard.life(replica).failed


async def test_a_stranger_on_the_port_is_not_our_replica(yard: Yard) -> None:
    """Another process answers 200 on the port that was chosen: the replica must not become ready for it."""
    policy = yard.policy("never")
    replica = await yard.start(policy)
    life = yard.life(replica)
    stranger = await asyncio.create_subprocess_exec(
        sys.executable, str(yard.script), str(life.port), "ok", stdout=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(30):
        while not life.why:  # noqa: ASYNC110 - nothing tells of a probe that failed
            await asyncio.sleep(0.05)
    assert "not this replica's" in life.why
    assert life.ready is None
    stranger.kill()
    await stranger.wait()


async def test_a_program_that_is_missing_cannot_be_started(yard: Yard) -> None:
    policy = yard.policy(command=[str(yard.folder / "absent"), "{port}"])
    with pytest.raises(ControllerError, match="cannot start"):
        await yard.start(policy)
    assert await yard.there(policy) == ()
    assert yard.target.problems(policy, clock())


def test_a_port_somebody_listens_on_is_passed_over() -> None:
    with socket.socket() as listener:
        first = free_port(set(), FIRST_PORT + 3000)
        listener.bind(("127.0.0.1", first))
        listener.listen()
        second = free_port(set(), first)
        third = free_port({second}, first)
    assert len({first, second, third}) == 3


def test_logs_are_kept_within_bounds(tmp_path: Path) -> None:
    running, small = tmp_path / "r.log", tmp_path / "s.log"
    with running.open("ab") as open_log:
        open_log.write(b"x" * 100)
        open_log.flush()
        small.write_text("y")
        for number in range(4):
            (tmp_path / f"gone-{number}.log").write_text("z")
            os.utime(tmp_path / f"gone-{number}.log", (number, number))
        tidy(tmp_path, [running, small, tmp_path / "absent.log"], bytes_max=50, keep_gone=2)
        open_log.write(b"more")
    assert running.read_bytes() == b"more"
    assert {path.name for path in tmp_path.iterdir()} == {"r.log", "r.log.1", "s.log", "gone-3.log", "gone-2.log"}
    assert (tmp_path / "r.log.1").stat().st_size == 100
