"""Regrouping of event streams against the rule of server-sent events, for any line ends and any split."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.shell.streams import HELD_MAX, Regrouping, events_in, first_number, only_comments

LINE_ENDS = (b"\n", b"\r\n", b"\r")
_line = re.compile(rb"([^\r\n]*)(\r\n|\n|\r)")


def between_events(data: bytes) -> bool:
    """By the rule: does `data` end just behind an empty line."""
    at, last = 0, None
    while (match := _line.match(data, at)) is not None:
        last, at = match[1], match.end()
    return at == len(data) and last == b""


lines = st.sampled_from([b"data: a", b": ping", b"event: x", b"id: 7", "data: ä€".encode(), b"data", b""])
ends = st.sampled_from(LINE_ENDS)


@settings(deadline=None)
@given(st.lists(st.tuples(lines, ends), max_size=12), st.lists(st.integers(0, 60), max_size=8))
@pytest.mark.fault("R12")
def test_only_whole_events_come_out_and_nothing_is_lost(told: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in told)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    groups, seen = Regrouping(), b""
    for start, stop in itertools.pairwise(places):
        piece = groups.take(stream[start:stop])
        seen += piece
        assert not piece or between_events(seen)
    assert seen + bytes(groups.held) == stream
    # Nothing that is whole waits: what is held has no end of an event in it, but perhaps the LF CR that waits for its LF.
    held = bytes(groups.held).lstrip(b"\r\n")  # further empty lines are no events
    assert not any(between_events(held[:stop]) for stop in range(1, len(held) + (not held.endswith(b"\n\r"))))


@pytest.mark.parametrize("second", LINE_ENDS)
@pytest.mark.parametrize("first", LINE_ENDS)
@pytest.mark.fault("R12")
def test_an_event_comes_out_with_its_last_byte(first: bytes, second: bytes) -> None:
    """Whatever its line ends, fed by the byte: no event waits for the next one."""
    if first + second == b"\r\n":
        return  # one line end, not two
    one = b"event: delta" + first + "data: ä".encode() + first + second
    groups, out = Regrouping(), []
    for byte in one + b"data: next":
        out.append(groups.take(bytes([byte])))
    assert b"".join(out).rstrip(b"\n") == one.rstrip(b"\n")
    late = first + second in (b"\n\r", b"\r\n\r")  # its LF was waited for
    late_lf = second == b"\r\n" and first == b"\r"  # the LF of CR CRLF goes with the next event
    assert len(b"".join(out[: len(one) + late])) == len(one) - late_lf


def test_counts_of_events() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"):
        assert events_in((b"data: x" + end) * 3) == 3
    assert events_in(b"event: a\ndata: b\n\n") == 1
    assert events_in(b"data: half\n") == 0


def test_an_event_beyond_the_bound_goes_out_in_parts_and_the_next_is_whole_again() -> None:
    groups = Regrouping()
    assert groups.take(b"data: " + b"x" * HELD_MAX) != b""
    assert (groups.torn, bytes(groups.held)) == (True, b"")
    assert groups.take(b"yy\n\ndata: z") == b"yy\n\n"
    assert (groups.torn, bytes(groups.held)) == (False, b"data: z")


@pytest.mark.fault("R13")
def test_what_is_held_is_bounded() -> None:
    groups, most = Regrouping(), 0
    for _ in range(100):
        groups.take(b"x" * 4096)
        most = max(most, len(groups.held))
    assert most <= HELD_MAX


@pytest.mark.parametrize(
    ("pieces", "only"),
    [
        ([], True),
        ([b": ping\n\n"], True),
        ([b":\n", b"\n: a\r\n\r\n"], True),
        ([b": ping\n\ndata: x\n\n"], False),
        ([b"data: x\n\n"], False),
        ([b"event: ping\ndata: {}\n\n"], False),
    ],
)
def test_comments_are_nothing_of_an_answer(pieces: list[bytes], only: bool) -> None:
    assert only_comments(pieces) is only


def test_the_first_number() -> None:
    assert first_number(b'data: {"type":"x","sequence_number": 3}\n\n') == 3
    assert first_number(b"data: {}\n\n") == 0
