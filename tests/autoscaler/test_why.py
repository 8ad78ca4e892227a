"""`tidegate why`: the last decision out of the history, as text and as JSON."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from autoscaler.controller.explain import explanation
from autoscaler.controller.history import SqliteHistory
from autoscaler.model import DecisionRecord
from tests.autoscaler.controller_fakes import Story
from tests.builders import EPOCH_S, a_policy
from tidegate import main


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A history in which four replicas were wanted, then a start failed."""
    story = Story(a_policy(warmPool={"standby": 1}))
    story.source.per_s = 25.0
    story.forecasts.maximum = 35.0
    await story.ticks(5)
    story.target.broken = True
    story.target.crash("chat-gpu-2")
    await story.ticks(3)
    history = SqliteHistory(tmp_path)
    for record in story.history.records:
        history.record(record)
    history.close()
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


async def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "chat", "--state-dir", str(folder)]) == 0
    out = lines_of(capsys)
    assert out[0].startswith("chat: 4 replicas and 1 standby, decided 2023-11-14 22:")
    text = "\n".join(out)
    for part in (
        "last confirmed",
        "the controller has not confirmed this for ",
        "load at the time of the decision (22:15:0",
        "replicas at the time of the decision (22:15:0",
        "arrivals                25 requests/s",
        "largest load within 13 s",
        "at quantile 0.95 35",
        "gpu: 1 to 10 replicas of 10 units, start time P50 10 s, P90 12 s (the policy's prior)",
        "predictive",
        "a need above 40 signal units wants more replicas",
        "a need of 30 or less wants fewer",
        "start gpu: refused variant gpu: no free device",
        "MetricsTrusted True",
    ):
        assert part in text, text


async def test_without_a_name_the_newest_and_at_a_moment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--state-dir", str(folder), "--at", str(EPOCH_S + 101), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["policy"], document["epoch_s"], document["decision"]["desired"]) == ("chat", EPOCH_S + 101, 4)
    assert [row["command"] for row in document["commands"]] == ["start gpu"] * 4 + ["start gpu (standby)"]
    assert main(["why", "--state-dir", str(folder), "--at", "2023-11-14T22:15:03Z"]) == 0
    assert "decided 2023-11-14 22:15:02 UTC" in lines_of(capsys)[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody"], "POLICY: 'nobody' has no decision in this history; known: chat"),
        (["--at", "5"], "no decision at or before 5"),
        (["--at", "noon"], "--at: 'noon' is not a time"),
        (["--at", "2026-01-01T00:00:00"], "is not a time"),
    ],
)
async def test_bad_input(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--state-dir", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--state-dir", str(tmp_path / "absent")]) == 2
    assert "no history there" in capsys.readouterr().err


async def test_a_damaged_row_is_told_beside_the_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(folder / "history.sqlite3") as db:
        db.execute("INSERT INTO decision VALUES (NULL, 'chat', 9e12, 1, '{')")
    db.close()
    assert main(["why", "--state-dir", str(folder), "--json"]) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["decision"]["desired"] == 4
    assert "damaged decisions passed over" in error


def recorded(**changes: Any) -> DecisionRecord:
    """A decision of three replicas of ten units each, one of them overdue."""
    target = {"variant": "gpu", "active": 3, "standby": 0, "dead": 1}
    variant = {
        "name": "gpu",
        "capacity": 10,
        "min": 1,
        "max": 9,
        "start_p50_s": 1,
        "start_p90_s": 2,
        "start_samples": 0,
    }
    inputs: dict[str, object] = {"law": "tidegate", "variants": [variant], **changes}
    return DecisionRecord(policy="p", epoch_s=0.0, decision={"desired": 3, "targets": [target]}, inputs=inputs)


def test_what_is_overdue_holds_nothing() -> None:
    text = explanation(recorded(), recorded())
    assert "a need above 20 signal units wants more replicas" in text
    assert "a need of 10 or less wants fewer" in text


def test_what_would_change_the_decision_of_another_law_is_not_known() -> None:
    assert "what would change it" not in explanation(recorded(law="hpa"), recorded(law="hpa"))


@pytest.mark.parametrize(
    ("asked_s", "past", "text"),
    [
        (3.0, False, None),
        (40.0, False, "the controller has not confirmed this for 40 s; it may not be running"),
        (40.0, True, "the controller had not confirmed this for 40 s by then; it may not have been running"),
        (None, False, None),
    ],
)
def test_a_controller_that_says_nothing_any_more(asked_s: float | None, past: bool, text: str | None) -> None:
    record = recorded(tick_s=1.0)
    shown = explanation(record, record, asked_s, past=past)
    assert ("confirmed this" in shown) == (text is not None)
    assert text is None or text in shown


@pytest.mark.parametrize(("count", "words"), [(1, "p: 1 replica, "), (0, "p: 0 replicas, "), (2, "p: 2 replicas, ")])
def test_one_is_singular(count: int, words: str) -> None:
    record = DecisionRecord(policy="p", epoch_s=0.0, decision={"desired": count}, inputs={})
    assert explanation(record, record).startswith(words)
