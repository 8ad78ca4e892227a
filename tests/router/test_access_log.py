"""The access log: a line for each end that a request can have, and a writer that never keeps a request waiting."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from router.errors import BadInput
from router.shell.access_log import BATCH, PATH_CHARS_MAX, AccessLog, Line, LineWriter, whole_lines
from tests.router.wire import (
    DONE,
    SSE_HEAD,
    Behaviour,
    Site,
    chunk,
    event,
    json_answer,
    on_uvloop,
    post,
    raw_answer,
    until,
)

FIELDS = list(Line.__struct_fields__)


class Shelf(LineWriter):
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__("-")
        self.lines: list[dict[str, Any]] = []

    def put(self, lines: bytes, count: int) -> None:
        rows = lines.splitlines()
        assert len(rows) == count
        self.lines += map(json.loads, rows)


class Logged:
    """A site with an access log."""

    def __init__(self, *behaviours: Behaviour, **changes: Any) -> None:
        self.site = Site(*behaviours, **changes)
        self.shelf = Shelf()

    async def __aenter__(self) -> Logged:
        await self.site.__aenter__()
        self.site.plane.access_log = AccessLog(self.shelf, "edge", asyncio.get_running_loop().time)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.site.__aexit__()

    async def line(self) -> dict[str, Any]:
        """The only line that there is by now."""
        await self.site.settled()
        assert self.site.plane.access_log is not None
        await until(lambda: self.flushed() > 0)
        (line,) = self.shelf.lines
        assert list(line) == FIELDS
        return line

    def flushed(self) -> int:
        assert self.site.plane.access_log is not None
        self.site.plane.access_log.flush()
        return len(self.shelf.lines)


SSE = raw_answer(SSE_HEAD + chunk(event(0)), chunk(event(1)), chunk(DONE) + b"0\r\n\r\n")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@on_uvloop
async def test_a_good_answer_says_who_what_where_and_how_long() -> None:
    async with Logged(json_answer()) as logged:
        body = b'{"model":"alias","n":1}'
        fields = ("x-request-id: abc", f"TraceParent: {TRACE}", "authorization: Bearer sk-secret")
        await logged.site.ask(post(body, *fields, path="/v1/chat/completions?key=secret"))
        line = await logged.line()
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ", line["time"])
        assert line["router"] == "edge"
        assert line["id"].startswith("boot-")
        assert (line["client_id"], line["peer"], line["traceparent"]) == ("abc", "127.0.0.1", TRACE)
        assert (line["method"], line["path"], line["model"]) == ("POST", "/v1/chat/completions", "alias")
        assert (line["status"], line["outcome"], line["endpoint"], line["attempts"]) == (200, "success", "e0", 1)
        assert 0 <= line["ttft_s"] <= line["duration_s"] < 20
        assert (line["queue_s"], line["events"], line["stream"]) == (0.0, None, False)
        assert line["bytes_in"] > len(body)
        assert "secret" not in json.dumps(line)


@on_uvloop
async def test_a_stream_counts_its_events() -> None:
    async with Logged(SSE) as logged:
        await logged.site.ask(post())
        line = await logged.line()
        assert (line["status"], line["outcome"], line["stream"], line["events"]) == (200, "success", True, 3)


ENDS: dict[str, tuple[Behaviour | None, bytes, dict[str, Any]]] = {
    "an answer of 404": (
        json_answer(status=b"404 Not Found"),
        post(),
        {"status": 404, "outcome": "client_error", "endpoint": "e0"},
    ),
    "an unknown model": (
        json_answer(),
        post(b'{"model":"x"}'),
        {"status": 404, "outcome": "model_not_found", "endpoint": None, "model": "x", "attempts": 0},
    ),
    "a page": (None, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", {"status": 200, "outcome": "page", "path": "/health"}),
    "a stream that breaks": (
        raw_answer(SSE_HEAD + chunk(event(0)), close=True),
        post(),
        {"status": 200, "outcome": "cut", "stream": True, "events": 1},
    ),
    "an answer that breaks": (
        raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", abort=True),
        post(),
        {"status": 200, "outcome": "cut", "stream": False},
    ),
    "an answer that is not HTTP": (
        raw_answer(b"220 smtp.example ready\r\n\r\n"),
        post(),
        {"status": 502, "outcome": "bad_answer", "endpoint": "e0", "attempts": 1},
    ),
    "a head that is none": (
        None,
        b"GET /x HTTP/1.1\r\nx-request-id: mine\r\n\r\n",
        {"status": 400, "outcome": "bad_request", "client_id": "mine", "method": None, "duration_s": None},
    ),
    "a body that is none": (
        None,
        b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        {"status": 400, "outcome": "bad_request", "method": "POST", "path": "/x", "duration_s": None},
    ),
}


@pytest.mark.parametrize("what", ENDS)
@on_uvloop
async def test_every_end_of_a_request_has_a_line(what: str) -> None:
    behaviour, sent, wanted = ENDS[what]
    async with Logged(*([behaviour] if behaviour else [])) as logged:
        caller = await logged.site.call()
        caller.writer.write(sent)
        await until(lambda: logged.flushed() > 0)
        line = await logged.line()
        assert {name: line[name] for name in wanted} == wanted


@pytest.mark.parametrize("part", ["body", "answer", "stream"])
@on_uvloop
async def test_a_client_that_leaves_has_a_line(part: str) -> None:
    async def silent(*_: Any) -> None:
        await asyncio.sleep(0)

    behaviour = raw_answer(SSE_HEAD + chunk(event(0))) if part == "stream" else silent
    async with Logged(behaviour) as logged:
        caller = await logged.site.call()
        caller.writer.write(post()[: -3 if part == "body" else None])
        if part == "body":
            await until(lambda: any(client.receiving for client in logged.site.plane.clients))
        else:
            await logged.site.engines[0].got(1)
        if part == "stream":
            await caller.reader.readuntil(b"\n\n")
        caller.leave()
        await until(lambda: logged.flushed() > 0)
        line = await logged.line()
        assert (line["outcome"], line["path"]) == ("client_gone", "/v1/chat/completions")
        assert (line["status"], line["events"]) == ((200, 1) if part == "stream" else (None, None))
        assert line["bytes_in"] is None if part == "body" else line["bytes_in"] > 0


@on_uvloop
async def test_the_body_of_a_refused_request_is_not_kept_for_its_line() -> None:
    async with Logged(json_answer()) as logged:
        await logged.site.ask(post(b'{"model":"x","p":"%b"}' % (b"y" * 10_000)))
        access_log = logged.site.plane.access_log
        assert access_log is not None
        assert [exchange.body for exchange, _, _ in access_log._ended] == [b""]


@on_uvloop
async def test_lines_are_made_at_each_beat_and_when_many_wait() -> None:
    async with Logged(json_answer(), limit=4) as logged:
        caller = await logged.site.call()
        logged.site.plane.driver.stop()
        for number in range(BATCH):
            assert len(logged.shelf.lines) == 0, number
            await caller.ask(post())
        assert len(logged.shelf.lines) == BATCH
        await caller.ask(post())
        logged.site.plane.driver.beat()
        assert len(logged.shelf.lines) == BATCH + 1


@on_uvloop
async def test_a_line_is_never_longer_than_a_pipe_takes_at_once() -> None:
    async with Logged(json_answer()) as logged:
        path = "/" + "p" * 5000
        model = "\\u0001" * 1000
        fields = ("x-request-id: " + '"' * 128, "traceparent: " + '"' * 128)
        await logged.site.ask(post(b'{"model":"%b"}' % model.encode(), *fields, path=path))
        line = await logged.line()
        assert line["path"] == path[:PATH_CHARS_MAX]
        assert len(json.dumps(line, separators=(",", ":"))) < select.PIPE_BUF


# ---- the writer


@contextmanager
def writing(target: Path | str, room: int = 1 << 20) -> Iterator[LineWriter]:
    """A writer whose thread runs."""
    writer = LineWriter(str(target), room)
    writer.open()
    writer.start()
    yield writer
    writer.close(10.0)


def test_lines_come_in_order_and_close_writes_what_waits(tmp_path: Path) -> None:
    with writing(tmp_path / "a.log") as writer:
        for number in range(1000):
            writer.put(b"%d\n" % number, 1)
    assert (tmp_path / "a.log").read_bytes() == b"".join(b"%d\n" % number for number in range(1000))
    assert writer.dropped == 0


def test_a_rotated_file_is_left_and_a_removed_one_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    writer = LineWriter(str(path))
    writer.open()
    for number, move in enumerate((None, lambda: path.rename(tmp_path / "a.log.1"), path.unlink)):
        if move is not None:
            move()
        assert writer._write(b"%d\n" % number) == 0
    assert (path.read_bytes(), (tmp_path / "a.log.1").read_bytes()) == (b"2\n", b"0\n")


def test_what_does_not_fit_is_dropped_and_counted(tmp_path: Path) -> None:
    writer = LineWriter(str(tmp_path / "a.log"), room=10)
    writer.open()
    writer.put(b"12\n45\n78\n", 3)
    writer.put(b"ab\nde\n", 2)
    assert writer.dropped == 2
    writer.start()
    writer.close(10.0)
    assert (tmp_path / "a.log").read_bytes() == b"12\n45\n78\n"


def test_a_pipe_that_nobody_reads_costs_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, out = os.pipe()
    os.set_blocking(out, False)
    writer = LineWriter("-", room=100_000)
    monkeypatch.setattr(writer, "open", lambda: setattr(writer, "_fd", out))
    writer.open()
    writer.start()
    for _ in range(1000):
        writer.put(b"x" * 999 + b"\n", 1)
    assert writer.dropped > 700
    writer.close(0.05)
    os.set_blocking(reader, False)
    read = 0
    while read < (1000 - writer.dropped) * 1000:
        select.select([reader], [], [])
        read += len(os.read(reader, 1 << 16))
    assert writer._thread is not None
    writer._thread.join(10.0)
    assert not writer._thread.is_alive()
    os.close(reader)
    os.close(out)


def test_a_full_disk_is_counted_told_once_and_torn_lines_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    writer = LineWriter(str(path))
    writer.open()
    room = [5]
    write = os.write

    def full(descriptor: int, data: bytes | memoryview) -> int:
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        room[0] -= min(room[0], len(data))
        return write(descriptor, bytes(data)[: max(1, room[0] + len(data))][:5])

    monkeypatch.setattr(os, "write", full)
    assert writer._write(b"abc\ndef\nghi\n") == 2
    assert writer._write(b"jkl\n") == 1
    monkeypatch.setattr(os, "write", write)
    assert writer._write(b"mno\n") == 0
    assert path.read_bytes() == b"abc\nd\nmno\n"


def test_a_target_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"--access-log: .*absent/a.log cannot be written to: No such file or directory; "
    ):
        LineWriter(str(tmp_path / "absent" / "a.log")).open()


def test_a_pipe_gets_whole_lines_in_pieces_that_it_keeps_together() -> None:
    lines = (b"x" * 999 + b"\n") * 9 + b"y" * 5000 + b"\n"
    found, start = [], 0
    while start < len(lines):
        found.append(whole_lines(lines, start))
        start += found[-1]
    assert found == [4000, 4000, 1000, 5001]


@on_uvloop
async def test_the_tenant_is_named_whether_its_request_waited_or_not() -> None:
    async with Logged(json_answer(), limit=1, routing={"tenants": {}}) as logged:
        callers = [await logged.site.call() for _ in range(4)]
        for caller in callers:
            caller.writer.write(post(b'{"model":"m"}', "x-tenant-id: gold"))
        for caller in callers:
            assert (await caller.answer()).status == 200
        await until(lambda: logged.flushed() == 4)
        assert [row["tenant"] for row in logged.shelf.lines] == ["gold"] * 4


def test_a_pipe_without_a_reader_is_refused_at_the_start_and_waits_for_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match=r"--access-log: .*pipe cannot be written to"):
        LineWriter(str(pipe)).open()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = LineWriter(str(pipe))
    writer.open()
    writer.put(b'{"a":1}\n', 1)
    writer.start()
    writer.close(5)
    assert os.read(reader, 100) == b'{"a":1}\n'
    os.close(reader)
