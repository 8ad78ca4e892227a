"""What the next controller does with what an earlier one left: replicas, orphans of dead leaders, damaged rows."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoscaler.adapters.local import LocalReplicas
from autoscaler.adapters.processes import (
    FIRST_PORT,
    Identity,
    boot_id,
    group_members,
    is_running,
    start_ticks,
)
from autoscaler.model import ReplicaState
from tests.autoscaler.yard import Yard, clock


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    await yard.target.close()
    left = [pid for run in yard.target.lives() for pid in group_members(run.process.identity.pid)]
    yard.history.close()
    assert left == []


async def test_the_next_controller_takes_over_what_runs(yard: Yard) -> None:
    """A controller that was killed leaves its replicas; the next one finds them by pid, start moment and boot."""
    policy = yard.policy()
    kept, lost, starting = [await yard.start(policy) for _ in range(3)]
    await yard.ready(kept)
    await yard.ready(lost)
    await yard.target.mark(policy, kept.id, standby=True, draining=None)
    draining = clock()
    await yard.target.mark(policy, starting.id, standby=True, draining=draining)
    pid = yard.life(kept).process.identity.pid
    row = yard.life(starting).row()
    yard.history.save_replica("chat", "chat-v-77", {**row, "start_ticks": row["start_ticks"] + 1})  # the pid of another
    yard.history.save_replica("other", "other-v-1", yard.life(lost).row())
    yard.history.drop_replica(lost.id)

    second = LocalReplicas(yard.history, yard.folder / "logs", clock, stop_bound_s=5.0)
    second.on_change = yard.news.set
    await second.adopt([policy])
    adopted = {replica.id: replica for replica in await second.replicas(policy, clock())}
    assert set(adopted) == {kept.id, starting.id}
    assert (adopted[kept.id].state, adopted[kept.id].standby) == (ReplicaState.READY, True)
    left = adopted[starting.id]
    assert (left.state, left.standby) == (ReplicaState.DRAINING, True)
    assert left.draining_s == pytest.approx(draining.monotonic_s, abs=0.01)
    assert adopted[kept.id].url == kept.url
    assert abs(adopted[kept.id].started_s - kept.started_s) < 0.01
    assert second.pids()[kept.id] == pid
    await yard.until(lambda: all(run.gone for run in second.lives() if run.id == "other-v-1"))
    await yard.gone(lost)
    await second.close()
    await yard.gone(kept)
    assert not is_running(yard.life(kept).process.identity)


@pytest.fixture
def orphan() -> Iterator[dict[str, Any]]:
    """The row of a replica whose leader has exited and left a child in its group (`sh -c 'engine & wait'`)."""
    leader = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    while len(group_members(leader.pid)) < 2:
        os.sched_yield()
    identity = Identity(pid=leader.pid, start_ticks=start_ticks(leader.pid) or 0, boot_id=boot_id())
    leader.kill()
    leader.wait()
    yield {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id, **REST_OF_ROW}
    if group_members(leader.pid):
        os.killpg(leader.pid, signal.SIGKILL)


REST_OF_ROW = {
    "variant": "v",
    "version": "v1",
    "port": FIRST_PORT,
    "device": None,
    "log": "x.log",
    "path": "/ready",
    "standby": False,
    "started_epoch_s": 1_700_000_000.0,
    "ready_epoch_s": None,
    "draining_epoch_s": None,
}


async def test_what_a_dead_leader_left_in_its_group_is_ended(yard: Yard, orphan: dict[str, Any]) -> None:
    yard.history.save_replica("chat", "chat-v-9", orphan)
    await yard.target.adopt([yard.policy()])
    assert group_members(orphan["pid"]) == []
    assert yard.target.lives() == []
    assert yard.history.saved_replicas() == []


@pytest.mark.parametrize(
    "change",
    [{"boot_id": "another"}, {"start_ticks": 1 << 60}],
    ids=["another boot", "members that are older than the leader"],
)
async def test_a_group_that_is_not_provably_ours_is_left_alone(
    yard: Yard, orphan: dict[str, Any], change: dict[str, Any]
) -> None:
    yard.history.save_replica("chat", "chat-v-9", {**orphan, **change})
    await yard.target.adopt([yard.policy()])
    assert len(group_members(orphan["pid"])) == 1
    assert yard.history.saved_replicas() == []


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process that leads a group and is not ours."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


async def test_the_group_of_a_process_that_got_the_same_number_is_left_alone(yard: Yard, stranger: int) -> None:
    row = {"pid": stranger, "start_ticks": (start_ticks(stranger) or 0) - 1, "boot_id": boot_id(), **REST_OF_ROW}
    yard.history.save_replica("chat", "chat-v-9", row)
    await yard.target.adopt([yard.policy()])
    assert group_members(stranger) == [stranger]


@pytest.mark.parametrize("pid", [0, 1, -5, "seven"])
async def test_a_row_that_cannot_be_meant_is_passed_over(yard: Yard, pid: object) -> None:
    policy = yard.policy()
    replica = await yard.start(policy)
    await yard.ready(replica)
    row = yard.life(replica).row()
    yard.history.save_replica("chat", "bad", {**row, "pid": pid})
    yard.history.save_replica("chat", "worse", {})
    second = LocalReplicas(yard.history, yard.folder / "logs", clock, stop_bound_s=5.0)
    second.on_change = yard.news.set
    await second.adopt([policy])
    assert [run.id for run in second.lives()] == [replica.id]
    await second.close()
    await yard.gone(replica)
