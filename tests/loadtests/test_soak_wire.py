"""The strict reader of answers: what is whole, what is not yet, and every kind of byte that it must refuse."""

from __future__ import annotations

import pytest

from loadtests.soak_wire import Malformed, Reader

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = SSE + chunk(b'data: {"a":1}\n\n') + chunk(b'data: {"b"') + chunk(b":2}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("answer", [JSON, STREAM])
def test_any_split_gives_the_same_answer_and_what_follows_is_given_back(answer: bytes, step: int) -> None:
    reader = Reader()
    data = answer + b"HTTP/1.1 "
    rest = b""
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        rest += piece if reader.ended else reader.feed(piece)
    assert reader.ended
    assert rest == b"HTTP/1.1 "
    assert reader.status == 200
    if reader.events is not None:
        assert (reader.events.values, reader.events.done) == ([{"a": 1}, {"b": 2}], True)
    else:
        assert reader.body == b"{}"


def test_an_answer_that_is_not_whole_says_how_far_it_came() -> None:
    silent, head, body = Reader(), Reader(), Reader()
    head.feed(b"HTTP/1.1 200 O")
    body.feed(JSON[:-1])
    assert [reader.begun for reader in (silent, head, body)] == [False, True, True]
    assert [reader.status for reader in (silent, head, body)] == [0, 0, 200]
    assert not any(reader.ended for reader in (silent, head, body))


def test_one_100_continue_may_come_before_the_answer_if_it_was_asked_for() -> None:
    reader = Reader(expect=True)
    reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert (reader.continued, reader.ended) == (True, False)
    assert reader.feed(JSON) == b""
    assert reader.ended
    with pytest.raises(Malformed, match="status 100"):
        Reader().feed(b"HTTP/1.1 100 Continue\r\n\r\n")


REFUSED = {
    "not http": b"<html>",
    "another version": b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "status": b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
    "no framing": b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
    "two framings": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
    "length twice": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length": b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}",
    "folded": b"HTTP/1.1 200 OK\r\na: b\r\n c\r\ncontent-length: 2\r\n\r\n{}",
    "space before the colon": b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\n{}",
    "bare LF": b"HTTP/1.1 200 OK\ncontent-length: 2\r\n\r\n{}",
    "coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    "chunk size": SSE + b"0x5\r\n",
    "chunk extension": SSE + b"5;a=b\r\n",
    "chunk end": SSE + b"2\r\nabXX",
    "trailer": SSE + b"0\r\na: b\r\n\r\n",
    "glued": SSE + chunk(b'data: {"a"data: {"error":{}}\n\n'),
    "half an event": SSE + chunk(b'data: {"a":1}\n\ndata: {"b"') + b"0\r\n\r\n",
    "not an event": SSE + chunk(b'{"error":{}}\n\n'),
    "two lines": SSE + chunk(b"data: {}\ndata: {}\n\n"),
    "after done": SSE + chunk(b"data: [DONE]\n\ndata: {}\n\n"),
    "not an object": SSE + chunk(b"data: 3\n\n"),
    "endless head": b"HTTP/1.1 200 OK\r\na: " + b"x" * 20_000,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_bytes_that_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        Reader().feed(data)
    with pytest.raises(Malformed):
        byte_by_byte(data)


def byte_by_byte(data: bytes) -> None:
    reader = Reader()
    for byte in data:
        reader.feed(bytes([byte]))
