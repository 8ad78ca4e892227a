"""The soak's plan is a pure function of its seed, and has in it what the soak is for."""

from __future__ import annotations

import pytest

from loadtests.soak import main
from loadtests.soak_plan import ROUTERS, SLOTS, Asked, schedule, visits
from loadtests.soak_requests import client_id, encoded


def test_equal_seeds_give_equal_plans_and_others_do_not() -> None:
    assert list(visits(1, 500)) == list(visits(1, 500))
    assert list(visits(1, 500)) != list(visits(2, 500))
    assert schedule(1, 5000) == schedule(1, 5000)
    assert schedule(1, 5000) != schedule(2, 5000)


def test_twenty_thousand_requests_have_everything_in_them() -> None:
    played = list(visits(1, 20_000))
    asked = [one for visit in played for one in visit.asked]
    assert [one.number for one in asked] == list(range(20_000))
    assert 0.48 < sum(one.stream for one in asked) / 20_000 < 0.52
    assert {one.kind for one in asked} == {"chat", "text", "unknown", "page", "bad"}
    assert {one.leave.how for one in asked if one.leave} == {"close", "abort", "half", "body"}
    assert all(any(getattr(one, what) for one in asked) for what in ("slow", "expect", "chunked", "padding"))
    assert max(one.padding for one in asked) > 1 << 20
    assert any(visit.pipelined for visit in played)
    assert {visit.router for visit in played} == set(range(ROUTERS))


def test_faults_come_in_order_and_one_at_a_time_in_a_slot() -> None:
    faults = schedule(1, 20_000)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert {fault.slot for fault in faults} == set(range(-1, SLOTS))
    kinds = {fault.what for fault in faults}
    assert kinds >= {"kill", "restart", "replace", "stop", "continue", "fault", "drain", "table", "routing", "stale"}
    settings = {name for fault in faults for name in fault.settings}
    assert settings >= {"drop_next", "cut_after_tokens", "die_after_tokens", "fail_next", "freeze", "speed", "metrics"}
    for slot in range(SLOTS):
        down = False
        for fault in faults:
            if fault.slot != slot:
                continue
            if fault.what in ("kill", "stop", "drain", "fault", "table"):
                assert not down, f"{fault} while the slot is down"
            down = fault.what in ("kill", "stop") or (down and fault.what not in ("restart", "replace", "continue"))


def test_a_request_is_bytes_of_its_own() -> None:
    plain = Asked(number=3, kind="chat", stream=True, tokens=2, words=4)
    head, body = encoded(plain, client_id(9, plain))
    assert b"x-request-id: soak-9-3\r\n" in head
    assert b"content-length: %d\r\n" % len(body) in head
    assert b'"content":"request-3 w w w"' in body
    chunked = Asked(number=3, kind="text", stream=False, tokens=2, words=4, chunked=True, named=False)
    head, body = encoded(chunked, client_id(9, chunked))
    assert b"x-request-id" not in head
    assert body.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("flags", [["--requests", "0"], ["--rate", "0"], ["--rate", "nan"]])
def test_bad_flags_are_refused_with_one_line(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert capsys.readouterr().err.startswith(f"soak: {flags[0]}")


def test_the_schedule_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "500", "--seed", "3", "--show-schedule"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(fault) for fault in schedule(3, 500)]
