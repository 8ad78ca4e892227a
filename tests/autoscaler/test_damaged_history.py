"""Rows of the history that cannot be read: passed over where that is safe, refused by name where it is not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import structlog.testing

from autoscaler.controller.history import SqliteHistory
from autoscaler.errors import BadInput
from autoscaler.model import DecisionRecord


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def decided() -> DecisionRecord:
    return DecisionRecord(policy="p", epoch_s=10.0, decision={"desired": 3}, inputs={"demand": 1})


def changed(folder: Path, statement: str, *values: object) -> None:
    """The store of a controller that ran once, damaged."""
    history = SqliteHistory(folder)
    history.next_epoch()
    history.record(decided())
    history.save_replica("p", "p-v-1", {"pid": 7})
    history.close()
    with sqlite3.connect(folder / "history.sqlite3") as db:
        db.execute(statement, values)
    db.close()


DAMAGED = [b"{", b"\xff", b"{}", b"[]", b"7", b'{"decision": {}, "inputs": null, "commands": []}']


@pytest.mark.parametrize("body", DAMAGED)
def test_a_damaged_decision_is_passed_over(folder: Path, body: bytes) -> None:
    changed(folder, "INSERT INTO decision VALUES (NULL, 'p', 9e12, 1, ?)", body)
    history = SqliteHistory(folder)
    with structlog.testing.capture_logs() as told:
        assert history.last_decision("p") == decided()
    assert [(row["event"], row["rows"]) for row in told] == [("damaged decisions passed over", 1)]
    history.close()


@pytest.mark.parametrize("body", DAMAGED[:2] + DAMAGED[3:5])
def test_a_damaged_replica_is_passed_over(folder: Path, body: bytes) -> None:
    changed(folder, "INSERT INTO replica VALUES ('p-v-0', 'p', ?)", body)
    history = SqliteHistory(folder)
    with structlog.testing.capture_logs() as told:
        assert history.saved_replicas() == [("p-v-1", "p", {"pid": 7})]
    assert [(row["event"], row["replica"]) for row in told] == [("damaged replica passed over", "p-v-0")]
    history.close()


def test_a_damaged_hour_of_load_is_a_gap(folder: Path) -> None:
    changed(folder, "INSERT INTO series_block VALUES ('p', 15.0, 0, x'0102')")
    history = SqliteHistory(folder)
    assert history.load("p", 15.0, 0.0) == (0.0, [])
    history.append_load("p", 15.0, 15.0, [4.0])
    assert history.load("p", 15.0, 0.0) == (15.0, [4.0])
    history.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE meta SET value = 'x'", r"history\.sqlite3: table meta: schema is 'x'"),
        ("INSERT OR REPLACE INTO counter VALUES ('epoch', 'abc')", r"history\.sqlite3: table counter: epoch is 'abc'"),
    ],
)
def test_a_number_that_cannot_be_read_is_refused_and_the_folder_let_go(
    folder: Path, statement: str, message: str
) -> None:
    changed(folder, statement)
    for _ in range(2):  # the lock must not stay behind
        with pytest.raises(BadInput, match=message):
            SqliteHistory(folder)
