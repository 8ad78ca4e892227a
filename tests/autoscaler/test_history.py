"""The history: what is written comes back, survives a kill, and belongs to one controller at a time."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from autoscaler.controller.history import SqliteHistory
from autoscaler.errors import BadInput
from autoscaler.model import DecisionRecord, StartTime

HOUR = 3600.0
PRIOR = StartTime(p50_s=60, p90_s=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def same(left: list[float], right: list[float]) -> bool:
    return len(left) == len(right) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    ("step_s", "appends", "since_s", "first_s", "values"),
    [
        (15.0, [(0.0, [1, 2, 3])], 0.0, 0.0, [1, 2, 3]),
        (15.0, [(0.0, [1, 2, 3])], 15.0, 15.0, [2, 3]),
        (15.0, [(0.0, [1, 2, 3])], 16.0, 30.0, [3]),
        (15.0, [(0.0, [1]), (45.0, [4])], 0.0, 0.0, [1, math.nan, math.nan, 4]),
        (15.0, [(0.0, [1, None, 3])], 0.0, 0.0, [1, math.nan, 3]),
        (15.0, [(0.0, [1, 2]), (0.0, [None, 5])], 0.0, 0.0, [1, 5]),
        (1.0, [(HOUR - 2, [1, 2, 3, 4])], 0.0, HOUR - 2, [1, 2, 3, 4]),
        (7.0, [(7.0 * 514, [1, 2, 3])], 0.0, 7.0 * 514, [1, 2, 3]),
        (0.5, [(10.0, [1, 2])], 0.0, 10.0, [1, 2]),
        (15.0, [(0.0, [None, None])], 0.0, 0.0, []),
        (15.0, [], 5.0, 5.0, []),
        (15.0, [(0.0, [1])], 100.0, 100.0, []),
    ],
    ids=[
        "as it was",
        "from a moment on",
        "a step that began before the moment is left out",
        "a hole is a gap",
        "None is a gap",
        "a gap never erases a known value",
        "over the end of a block",
        "a step that does not divide an hour",
        "steps below a second",
        "nothing but gaps is nothing",
        "nothing at all",
        "nothing that new",
    ],
)
def test_load_comes_back(
    folder: Path,
    step_s: float,
    appends: list[tuple[float, list[float | None]]],
    since_s: float,
    first_s: float,
    values: list[float],
) -> None:
    history = SqliteHistory(folder)
    for at_s, new in appends:
        history.append_load("p", step_s, at_s, new)
    seen_unwritten = history.load("p", step_s, since_s)
    history.close()
    again = SqliteHistory(folder)
    seen_written = again.load("p", step_s, since_s)
    again.close()
    for found_first_s, found in (seen_unwritten, seen_written):
        assert found_first_s == first_s
        assert same(found, values)


def test_series_of_policies_and_grids_are_apart(folder: Path) -> None:
    history = SqliteHistory(folder)
    history.append_load("a", 15.0, 0.0, [1])
    history.append_load("b", 15.0, 0.0, [2])
    history.append_load("a", 60.0, 0.0, [3])
    assert history.load("a", 15.0, 0.0) == (0.0, [1.0])
    assert history.load("b", 15.0, 0.0) == (0.0, [2.0])
    assert history.load("a", 60.0, 0.0) == (0.0, [3.0])
    history.close()


def test_a_day_of_seconds_is_merged_into_what_is_there(folder: Path) -> None:
    history = SqliteHistory(folder)
    epoch = 1_700_000_000.0
    history.append_load("p", 1.0, epoch, [float(i % 100) for i in range(86_400)])
    history.flush()
    history.append_load("p", 1.0, epoch + 86_400, [7.0] * 50)
    first_s, values = history.load("p", 1.0, epoch)
    assert (first_s, len(values), values[99], values[-1]) == (epoch, 86_450, 99.0, 7.0)
    history.close()


@pytest.mark.parametrize(
    ("samples", "p50_s", "p90_s"),
    [
        ([], 60.0, 120.0),
        ([10.0, 10.0], (10 + 60) / 2, (10 + 120) / 2),
        ([10.0] * 20, 10.0, 10.0),
        ([1.0] * 50 + [30.0] * 50, 30.0, 30.0),
    ],
    ids=[
        "the prior alone",
        "two starts weigh as much as the prior",
        "twenty starts need no prior",
        "only the newest fifty count",
    ],
)
def test_start_time(folder: Path, samples: list[float], p50_s: float, p90_s: float) -> None:
    history = SqliteHistory(folder)
    for seconds in samples:
        history.add_start_time("p", "v", seconds)
    found = history.start_time("p", "v", PRIOR)
    history.close()
    again = SqliteHistory(folder)
    assert again.start_time("p", "v", PRIOR) == found
    assert again.start_time("p", "other", PRIOR) == PRIOR
    again.close()
    assert (found.p50_s, found.p90_s) == pytest.approx((p50_s, p90_s))
    assert found.samples == min(50, len(samples))


def decided(policy: str, epoch_s: float, desired: int, *, full: bool = True) -> DecisionRecord:
    return DecisionRecord(
        policy=policy,
        epoch_s=epoch_s,
        decision={"desired": desired},
        inputs={"demand": 3.5, "gaps": ["one"]} if full else None,
        commands=({"command": "start v"},) if full else (),
    )


def test_decisions_are_found_by_policy_and_moment(folder: Path) -> None:
    history = SqliteHistory(folder)
    for record in (decided("a", 10, 1), decided("b", 20, 2), decided("a", 30, 3), decided("a", 40, 3, full=False)):
        history.record(record)
    assert history.last_decision(None) == decided("a", 40, 3, full=False)
    assert history.last_decision("a", complete=True) == decided("a", 30, 3)
    assert history.last_decision("a", 29.9) == decided("a", 10, 1)
    assert history.last_decision("b", 20) == decided("b", 20, 2)
    assert history.last_decision("b", 19) is None
    assert history.last_decision("c") is None
    assert history.policies() == ["a", "b"]
    history.close()


def test_what_is_too_old_is_dropped(folder: Path) -> None:
    history = SqliteHistory(folder)
    now_s = 100 * 86_400.0
    for age_days in (8, 6):
        history.record(decided("a", now_s - age_days * 86_400, age_days))
    for age_days in (40, 30):
        history.append_load("a", 15.0, now_s - age_days * 86_400, [1.0])
    history.flush()
    history.prune(now_s)
    history.flush()
    assert history.last_decision("a", now_s - 7 * 86_400) is None
    assert history.last_decision("a") == decided("a", now_s - 6 * 86_400, 6)
    assert history.load("a", 15.0, 0.0)[0] == now_s - 30 * 86_400
    history.close()


def test_replicas_are_remembered_until_they_are_gone(folder: Path) -> None:
    history = SqliteHistory(folder)
    history.save_replica("p", "p-v-1", {"pid": 7})
    history.save_replica("p", "p-v-2", {"pid": 8})
    history.drop_replica("p-v-1")
    assert history.saved_replicas() == [("p-v-2", "p", {"pid": 8})]
    history.close()


def test_starts_that_do_not_count_any_more_are_dropped(folder: Path) -> None:
    history = SqliteHistory(folder)
    for number in range(120):
        history.add_start_time("p", "v", float(number))
        history.add_start_time("p", "w", 1.0 if number < 3 else 2.0)
    history.add_start_time("q", "v", 7.0)
    history.prune(0.0)
    history.flush()
    before = history.start_time("p", "v", PRIOR)
    rows = history._db.execute("SELECT policy, variant, count(*), min(seconds) FROM start_sample GROUP BY 1, 2")
    assert sorted(rows) == [("p", "v", 50, 70.0), ("p", "w", 50, 2.0), ("q", "v", 1, 7.0)]
    assert {len(samples) for samples in history._starts.values()} == {50, 1}
    history.close()
    again = SqliteHistory(folder)
    assert again.start_time("p", "v", PRIOR) == before
    again.close()


def test_a_replica_that_cannot_be_saved_now_is_saved_later(folder: Path) -> None:
    history = SqliteHistory(folder)
    other = sqlite3.connect(folder / "history.sqlite3", isolation_level=None)
    other.execute("ALTER TABLE replica RENAME TO elsewhere")
    with pytest.raises(sqlite3.OperationalError):
        history.save_replica("p", "p-v-1", {"pid": 7})
    other.execute("ALTER TABLE elsewhere RENAME TO replica")
    other.close()
    history.save_replica("p", "p-v-1", {"pid": 8})
    assert history.saved_replicas() == [("p-v-1", "p", {"pid": 8})]
    history.close()


def test_what_cannot_be_read_is_not_known(folder: Path) -> None:
    history = SqliteHistory(folder)
    other = sqlite3.connect(folder / "history.sqlite3", isolation_level=None)
    for table in ("series_block", "start_sample"):
        other.execute(f"ALTER TABLE {table} RENAME TO {table}_elsewhere")
    history.append_load("p", 15.0, 0.0, [1.0])
    assert history.load("p", 15.0, 0.0) == (0.0, [])
    assert history.start_time("p", "v", PRIOR) == PRIOR
    for table in ("series_block", "start_sample"):
        other.execute(f"ALTER TABLE {table}_elsewhere RENAME TO {table}")
    other.close()
    history.append_load("p", 15.0, 15.0, [2.0])
    assert history.load("p", 15.0, 0.0) == (15.0, [2.0])
    history.close()


def test_each_folder_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "b", "a"):
        history = SqliteHistory(tmp_path / folder)
        names.append(history.name)
        history.close()
    assert names[0] == names[2] != names[1]
    assert all(len(name) == 8 and int(name, 16) >= 0 for name in names)


def test_an_older_schema_is_brought_forward(folder: Path) -> None:
    history = SqliteHistory(folder)
    history.save_replica("p", "p-v-1", {"pid": 7})
    history.close()
    db = sqlite3.connect(folder / "history.sqlite3")
    db.execute("UPDATE meta SET value = '1' WHERE key = 'schema'")
    db.commit()
    db.close()
    SqliteHistory(folder, read_only=True).close()
    again = SqliteHistory(folder)
    assert again.saved_replicas() == [("p-v-1", "p", {"pid": 7, "draining_epoch_s": None})]
    assert again._db.execute("SELECT value FROM meta").fetchall() == [("2",)]
    again.close()


KILLED = """
import os, signal, sys
from autoscaler.controller.history import SqliteHistory
history = SqliteHistory(sys.argv[1])
history.append_load("p", 15.0, 0.0, [1.0, 2.0])
history.add_start_time("p", "v", 3.0)
history.flush()
history.append_load("p", 15.0, 30.0, [9.0])
print(history.next_replica_number("p", "v"), history.next_epoch(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_controller_loses_its_last_tick_only_and_no_number_is_given_twice(folder: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-9, "1 1\n"), killed.stderr
    history = SqliteHistory(folder)
    assert history.load("p", 15.0, 0.0) == (0.0, [1.0, 2.0])
    assert history.start_time("p", "v", PRIOR).samples == 1
    assert history.next_replica_number("p", "v") == 2
    assert history.next_replica_number("p", "w") == 1
    assert history.next_epoch() == 2
    history.close()


def test_a_second_controller_is_kept_out_and_may_come_after_the_first(folder: Path) -> None:
    first = SqliteHistory(folder)
    with pytest.raises(BadInput, match="held by another controller") as refused:
        SqliteHistory(folder)
    assert refused.value.exit_code == 2
    first.close()
    first.close()
    SqliteHistory(folder).close()


def test_a_reader_sees_a_running_controllers_history(folder: Path) -> None:
    writer = SqliteHistory(folder)
    writer.record(decided("a", 10, 1))
    writer.flush()
    reader = SqliteHistory(folder, read_only=True)
    assert reader.last_decision("a") == decided("a", 10, 1)
    reader.close()
    writer.close()


def newer(folder: Path) -> None:
    SqliteHistory(folder).close()
    with sqlite3.connect(folder / "history.sqlite3") as db:
        db.execute("UPDATE meta SET value = '99'")
    db.close()


def garbage(folder: Path) -> None:
    folder.mkdir()
    (folder / "history.sqlite3").write_bytes(b"no database " * 500)


def not_a_folder(folder: Path) -> None:
    folder.write_text("a file")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (newer, "schema version 99, this program knows 2"),
        (garbage, "cannot be used as a history"),
        (not_a_folder, "--state-dir"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_and_let_go(folder: Path, prepare: object, message: str) -> None:
    assert callable(prepare)
    prepare(folder)
    for _ in range(2):  # the lock must not stay behind
        with pytest.raises(BadInput, match=message):
            SqliteHistory(folder)


def test_a_reader_of_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="no history there"):
        SqliteHistory(folder, read_only=True)


async def test_a_commit_that_fails_keeps_everything_for_the_next(folder: Path) -> None:
    history = SqliteHistory(folder)
    other = sqlite3.connect(folder / "history.sqlite3", isolation_level=None)
    other.execute("ALTER TABLE decision RENAME TO elsewhere")
    history.append_load("p", 15.0, 0.0, [1.0])
    history.record(decided("a", 10, 1))
    with pytest.raises(sqlite3.OperationalError):
        await history.commit()
    other.execute("ALTER TABLE elsewhere RENAME TO decision")
    other.close()
    await history.commit()
    history.close()
    again = SqliteHistory(folder)
    assert again.load("p", 15.0, 0.0) == (0.0, [1.0])
    assert again.last_decision("a") == decided("a", 10, 1)
    again.close()
