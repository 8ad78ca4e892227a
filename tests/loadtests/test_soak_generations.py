"""The checks over the engines' logs: each rule is broken once and must be noticed, and what only looks like it must not."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.soak_client import Record
from loadtests.soak_generations import EngineLog, Findings, check
from loadtests.soak_plan import Asked, Leave

ASKED = Asked(number=7, kind="chat", stream=False, tokens=4, words=3)


def began(attempt: str, at_s: float, client: str | None = "c") -> dict[str, Any]:
    return {"request_id": attempt, "client_request_id": client, "begun_s": at_s}


def ended(attempt: str, at_s: float, *, aborted: bool = False, tokens: int = 4) -> dict[str, Any]:
    return {"request_id": attempt, "client_request_id": "c", "end_s": at_s, "aborted": aborted, "tokens": tokens}


def log(name: str, *rows: dict[str, Any], **more: Any) -> EngineLog:
    return EngineLog(name=name, slot=0, limit=2, rows=list(rows), **more)


def record(outcome: str = "answered", generation: str | None = "b-1", asked: Asked = ASKED, **more: Any) -> Record:
    made = Record(asked=asked, router=0, client_id="c", begun_s=0.0, outcome=outcome, generation=generation, **more)
    made.ended_s = more.get("ended_s", 2.0)
    return made


def found(logs: list[EngineLog], records: list[Record] | None = None) -> list[str]:
    return [what for what, _ in check(logs, records or [], ["b"]).problems]


def test_a_request_that_ran_once_and_was_answered_from_it() -> None:
    findings = check([log("e", began("b-1", 1), ended("b-1", 2))], [record()], ["b"])
    assert findings == Findings(generations=1, finished=1)


def test_a_counter_that_looks_like_an_attempt_is_another_request() -> None:
    logs = [log("e", began("b-a2", 1, "x"), ended("b-a2", 2), began("b-a3", 3, "y"), ended("b-a3", 4))]
    assert found(logs) == []


def test_a_second_attempt_after_the_first_was_over() -> None:
    aborted = log("e", began("b-1", 1), ended("b-1", 1.3, aborted=True, tokens=0))
    killed = log("e", began("b-1", 1), ended_s=1.1)
    second = log("f", began("b-1-a2", 1.2), ended("b-1-a2", 2))
    for first in (aborted, killed):
        findings = check([first, second], [record(generation="b-1-a2")], ["b"])
        assert (findings.problems, findings.again) == ([], 1)


def test_a_second_attempt_while_the_first_still_runs() -> None:
    second = log("f", began("b-1-a2", 1.2), ended("b-1-a2", 2))
    for first in (
        log("e", began("b-1", 1), ended("b-1", 1.9, aborted=True)),
        log("e", began("b-1", 1), ended_s=1.5),
        log("e", began("b-1", 1)),
        log("e", began("b-1", 1), ended("b-1", 1.5)),
    ):
        assert any("ran twice at once" in what for what in found([first, second]))


def test_a_stopped_process_runs_nothing_but_what_it_finishes_later_counts() -> None:
    second = log("f", began("b-1-a2", 4), ended("b-1-a2", 5))
    aborted = log("e", began("b-1", 1), ended("b-1", 6.1, aborted=True), stopped=[(1.5, 6.0)])
    finished = log("e", began("b-1", 1), ended("b-1", 6.1), stopped=[(1.5, 6.0)])
    assert found([aborted, second]) == []
    assert len(found([finished, second])) == 2


def test_two_that_were_finished_one_after_the_other() -> None:
    second = log("f", began("b-1-a2", 3), ended("b-1-a2", 4))
    assert "more than once" in found([log("e", began("b-1", 1), ended("b-1", 2)), second])[0]
    # The process was killed as it was about to answer: nobody can know, and a policy of idempotent requests allows it.
    assert found([log("e", began("b-1", 1), ended("b-1", 2), ended_s=2.01), second]) == []


@pytest.mark.parametrize(
    ("logs", "what"),
    [
        ([log("e", began("x-1", 1))], "an id that no router gave"),
        ([log("e", began("b-1", 1), began("b-1", 2))], "in twice"),
        ([log("e", began("b-1", 1), ended("b-1", 2)), log("f", began("b-1", 3), ended("b-1", 4))], "was sent to e and"),
        ([log("e", began("b-1", 1), ended("b-1", 2)), log("f", began("b-1-a2", 3, "d"), ended_s=4)], "several clients"),
        ([log("e", began("b-1", 1, "c")), log("f", began("b-2", 1, "c"))], "ran under several ids"),
        ([log("e", *(began(f"b-{number}", 1, None) for number in range(3)))], "2 are allowed"),
        ([log("e", began("b-1", 3, None), drained_s=2)], "after both routers had said drained"),
        ([log("e", began("b-1", 1, None), drained_s=2)], "after both routers had said drained"),
    ],
)
def test_each_rule_is_noticed_when_it_is_broken(logs: list[EngineLog], what: str) -> None:
    assert any(what in said for said in found(logs, [record("left", None)]))


def test_the_limit_counts_what_runs_at_once() -> None:
    rows = [began("b-1", 1, None), began("b-2", 1, None), ended("b-1", 1.3, aborted=True), began("b-3", 1.2, None)]
    assert found([log("e", *rows)]) == []  # the first had been left, its engine noticed a little later


def test_answers_are_held_against_the_generation_they_name() -> None:
    logs = [log("e", began("b-1", 1), ended("b-1", 2), began("b-2", 1, "d"), ended("b-2", 2))]
    assert "no engine ran" in found(logs, [record(generation="b-9")])[0]
    assert "another's" in found(logs, [record(generation="b-2")])[0]
    half = [log("e", began("b-1", 1), ended("b-1", 2, aborted=True, tokens=3))]
    assert "not generated so" in found(half, [record()])[0]
    unnamed = record(answer_id="b-1")
    unnamed.client_id = None
    again = record(answer_id="b-1", asked=Asked(number=8, kind="chat", stream=False, tokens=4, words=3))
    again.client_id = None
    plain = [log("e", began("b-1", 1, None), ended("b-1", 2))]
    assert found(plain, [unnamed]) == []
    assert "requests 7 and 8 got the id b-1" in found(plain, [unnamed, again])[0]


@pytest.mark.parametrize(
    ("how", "end_s", "stopped", "noticed"),
    [
        ("close", 1.5, (), False),
        ("close", 3.5, (), True),
        ("close", 3.5, ((1.0, 3.4),), False),
        ("body", 1.5, (), True),
    ],
)
def test_a_client_that_left_ends_its_generation_soon(how: str, end_s: float, stopped: Any, noticed: bool) -> None:
    leave = Leave(after_s=0.0, events=None, how=how)
    asked = Asked(number=7, kind="chat", stream=False, tokens=400, words=3, leave=leave)
    rows = (began("b-1", 1), ended("b-1", end_s, aborted=True))
    problems = found([log("e", *rows, stopped=stopped)], [record("left", None, asked, ended_s=1.2)])
    assert bool(problems) is noticed
