"""A short run of the fuzzer, and proof that its checks bite: each thing it looks for is found when it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.fuzz_checks import Found, answers_in, check, requests_in
from loadtests.fuzz_messages import mark, marks
from loadtests.fuzz_router import fuzz, main, play, read_case
from loadtests.fuzz_world import World
from router.shell.client import Client
from router.shell.exchange import Exchange
from router.shell.memory import BodyMemory
from router.shell.upstream import Upstream

CASES = 1000
SABOTAGED = 400


@pytest.mark.fault("R12", "R15")
def test_nothing_is_found(tmp_path: Path) -> None:
    tally, failed = fuzz(1, CASES, seconds=1000.0, folder=tmp_path)
    assert [path.read_text(encoding="utf-8") for path in failed] == []
    assert tally.cases == CASES
    assert {200, 400, 404, 502, 503, 504} <= tally.answers.keys()  # it gets that far


def test_the_same_seed_gives_the_same_cases(tmp_path: Path) -> None:
    told = [str(fuzz(5, 50, seconds=1000.0, folder=tmp_path)[0]) for _ in range(2)]
    assert told[0] == told[1]


def keeps_bytes(self: BodyMemory, exchange: Exchange) -> None:
    """Bodies are never given back."""


def answers_nobody(self: Client, exchange: Exchange, refusal: object) -> None:
    """A refusal is not told."""


def hands_on_idle_bytes(self: Upstream, data: bytes) -> None:
    """What comes on an idle connection goes to whoever used it last."""
    self._write(data)


def raises(self: Client, data: bytes) -> None:
    """Our own bug."""
    raise RuntimeError("quite wrong")


def goes_round_in_circles(self: Client) -> None:
    """A callback that calls itself for ever."""
    self.plane.loop.call_soon(self._next)


SABOTAGE: dict[str, tuple[type, str, Any]] = {
    "bytes of bodies are still held": (BodyMemory, "give_up", keeps_bytes),
    "is still open": (Client, "refuse", answers_nobody),
    "as an answer": (Upstream, "_seldom", hands_on_idle_bytes),
    "quite wrong": (Client, "_pipelined", raises),
    "callbacks at once": (Client, "_next", goes_round_in_circles),
}


@pytest.mark.parametrize("problem", SABOTAGE)
def test_what_it_looks_for_is_found_and_played_again_from_its_file(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, name, wrong = SABOTAGE[problem]
    with monkeypatch.context() as patch:
        patch.setattr(where, name, wrong)
        _, failed = fuzz(1, SABOTAGED, seconds=1000.0, folder=tmp_path)
        found = [path for path in failed if problem in json.loads(path.read_text(encoding="utf-8"))["problem"]]
        assert found, [json.loads(path.read_text(encoding="utf-8"))["problem"] for path in failed]
        with pytest.raises(Exception, match=problem):
            play(read_case(found[0]))
        assert main(["--replay", str(found[0])]) == 1
    assert main(["--replay", str(found[0])]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_crossed_answers_are_found() -> None:
    world = World(1)
    for _ in range(2):
        world.step("open")
    world.clients[0].got += mark(1000)
    world.quiet()
    with pytest.raises(Found, match="client 0 got the answer to request 1000"):
        check(world)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nx-request-id: f-1\r\n\r\n", "more than once"),
        (b"GET / HTTP/1.1\r\nx-request-id: f-1\r\n\r\n", "no host"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\n\r\n", "not ours"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer-encoding"),
    ],
)
def test_what_engines_may_not_be_sent(sent: bytes, problem: str) -> None:
    with pytest.raises(Found, match=problem):
        requests_in(sent)


def test_reading_answers() -> None:
    plain = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: y\r\n\r\n"
    until_end = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answers_in(interim + plain + chunked + until_end, closed=True) == ([(200, b"ok")] * 3, True)
    assert answers_in(plain + until_end, closed=False) == ([(200, b"ok")], False)
    assert answers_in(plain + chunked[:-1], closed=True) == ([(200, b"ok")], False)
    with pytest.raises(Found, match="as an answer"):
        answers_in(plain + b"\r\n" + plain, closed=True)
    with pytest.raises(Found, match="size"):
        answers_in(chunked.replace(b"2\r\n", b"zz\r\n"), closed=True)


def test_marks_are_not_made_by_accident() -> None:
    assert marks(b"a" + mark(7) + b"b" + mark(7)[:-1] + b"q8-00000000z" + mark(12)) == [7, 12]
