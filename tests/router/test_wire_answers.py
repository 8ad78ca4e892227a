"""Every row of `wire_answers.py`, from a real socket, whole and byte by byte: what the client gets and what becomes of
the engine's connection.
"""

from __future__ import annotations

import asyncio
import json
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest

from loadtests.fuzz_checks import answers_in
from loadtests.fuzz_world import World
from router.shell.client import RESET
from router.shell.upstream import Upstream
from tests.router.pages import bring_up_to_date, grouped, shown
from tests.router.wire import (
    DONE,
    SSE_HEAD,
    Answer,
    Caller,
    Received,
    Site,
    chunk,
    event,
    json_answer,
    on_uvloop,
    post,
    until,
)
from tests.router.wire_answers import BAD, CUT, EVENT_ERROR, FAULTS, ROWS, SECTIONS, WORDS, Row

PIECES_MAX = 2000
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


class Noting(Upstream):
    """An engine connection that notes how much it was given to read."""

    read = 0

    def data_received(self, data: bytes) -> None:
        Noting.read += len(data)
        super().data_received(data)


def told(answer: Answer) -> str:
    """What the client got, in a row's words."""
    if not answer.whole:
        return CUT
    if answer.fields.get("content-type", "").startswith("text/event-stream"):
        if b'"error"' in answer.body:
            assert answer.body.startswith(event(0) + b'data: {"error"')
            return EVENT_ERROR
        whole = {event(0): "one event", event(0) + event(1): "two events", WORDS + DONE: "all of it"}
        return f"200 {whole[answer.body]}"
    if answer.fields.get("content-type") == "application/json":
        return f"{answer.status} {json.loads(answer.body)['error']['code']}"
    return f"{answer.status} {answer.body.decode()}"


async def get(caller: Caller, asked: bytes) -> str:
    """Ask, and tell what came."""
    try:
        return told(await caller.ask(asked, head_only=asked.startswith(b"HEAD")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return CUT


async def outcome(row: Row, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> dict[str, Any]:
    """What becomes of a row, in its own terms."""
    monkeypatch.setattr("router.shell.http.Upstream", Noting)
    Noting.read = 0
    size = max(len(row.sent), 1) if whole else max(len(row.sent) // PIECES_MAX, 1)
    idle = asyncio.Event()

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(row.sent), size):
            writer.write(row.sent[start : start + size])
            while not received.gone.is_set() and Noting.read < min(start + size, len(row.sent)):  # noqa: ASYNC110  # the router has no event for tests
                await asyncio.sleep(0)
        if row.later:
            await idle.wait()
            writer.write(row.later)
        if row.ends == "close":
            writer.close()
        elif row.ends == "reset":
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, RESET)
            writer.transport.abort()

    async with Site(behave) as site:
        caller = await site.call()
        gets = await get(caller, row.asked)
        idle.set()
        await site.settled()
        if row.later:
            await until(lambda: Noting.read == len(row.sent + row.later))
        kept = any(not each.dead for each in site.dispatcher.endpoints["e0"].pool)
        if kept:
            site.engines[0].behaviour = json_answer()
            assert (await site.ask(post())).body == b'{"ok":true}'
            assert site.engines[0].connections == 1
        try:
            closes = (await caller.ask(HEALTH)).body != b'{"status":"ok"}'
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):  # RuntimeError: uvloop, closed before
            closes = True
        return {"gets": gets, "kept": kept, "closes": closes}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(row.what, marks=pytest.mark.fault(FAULTS[name]), id=row.what)
        for name, rows in SECTIONS.items()
        for row in rows
    ],
)
@on_uvloop
async def test_each_answer_has_its_one_outcome_whole_and_byte_by_byte(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS[what]
    in_pieces = row.in_pieces or row.gets
    for whole, gets in ((True, row.gets), (False, in_pieces)):
        closes = row.closes and (gets != BAD or row.in_pieces is None)  # who got a 502 may ask again
        documented = {"gets": gets, "kept": row.kept, "closes": closes}
        assert await outcome(row, monkeypatch, whole=whole) == documented


@on_uvloop
async def test_a_1xx_shows_that_the_request_arrived_so_it_is_not_replayed() -> None:
    count = 0

    async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count == 1:
            await json_answer()(received, writer)
        else:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.close()

    async with Site(behave) as site:
        caller = await site.call()
        assert (await caller.ask(post())).status == 200
        assert (await caller.ask(post())).status == 502
        assert [received.field("x-request-id") for received in site.engines[0].received] == [["boot-1"], ["boot-2"]]
        await site.settled()


@pytest.mark.fault("R12")
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_chunk_split_anywhere_between_whole_ones(end: bytes) -> None:
    """Reads that end with a whole event pass as they come; the rest of one that did not must not."""
    events = [WORDS.replace(b"\n\n", end), b"data: [DONE]" + end]
    asked = post().decode("latin-1")
    for place in range(1, len(chunk(events[0]))):
        world = World(1)
        world.step("open")
        world.step("client", 0, asked)
        world.step("answer the door", 0)
        middle = chunk(events[0])
        parts = (SSE_HEAD + chunk(events[0]), middle[:place], middle[place:], chunk(events[1]), b"0\r\n\r\n")
        for part in parts:
            world.step("engine", 0, part.decode("latin-1"))
        got = answers_in(bytes(world.clients[0].got), closed=False)
        assert got == ([(200, events[0] * 2 + events[1])], True), place


def said(row: Row) -> str:
    """A row's outcome as the page says it."""
    words = row.gets.strip()
    if row.in_pieces is not None:
        words += f" while nothing has left, else {row.in_pieces}"
    if row.closes and row.gets not in (BAD, CUT):
        words += ", closed"
    return words + ("; kept" if row.kept else "; dropped")


def page() -> str:
    """The sections of the page: for each outcome, which answers have it."""
    return grouped(SECTIONS, said, ("the client gets; the engine's connection is", "the engine sends"))


def test_the_page_shows_exactly_these_rows() -> None:
    """To bring the page up to date: `python -m tests.router.test_wire_answers`."""
    assert shown("answers") == page()


if __name__ == "__main__":
    bring_up_to_date("answers", page())
