"""Every row of `wire_requests.py`, on a real socket, whole and byte by byte: one outcome, the one that is documented."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from router.model import table_from
from router.shell.client import Client
from router.shell.driver import BEAT_S
from router.shell.http import DataPlane, Limits
from tests.router.pages import bring_up_to_date, grouped, shown
from tests.router.wire import Caller, Received, Site, on_uvloop, until
from tests.router.wire_requests import BODY_MAX, FAULTS, OTHERS, ROWS, SECTIONS, SIZES, Row

PIECES_MAX = 2000
"""Above so many bytes (heads of 64 KiB) a piece is more than a byte."""
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


async def engine(received: Received, writer: asyncio.StreamWriter) -> None:
    """Answers everything well."""
    body = b"" if received.head.startswith(b"HEAD ") else b'{"ok":true}'
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + body)


class Noting(Client):
    """A client connection that notes how its bytes came, but not how it goes over them once more."""

    __slots__ = ("inside", "reads")

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self.reads: list[int] = []
        self.inside = False

    def data_received(self, data: bytes) -> None:
        if self.inside:
            super().data_received(data)
            return
        self.reads.append(len(data))
        self.inside = True
        super().data_received(data)
        self.inside = False

    def _next(self) -> None:
        self.inside = True
        super()._next()
        self.inside = False


async def send(site: Site, caller: Caller, sent: bytes, *, whole: bool) -> None:
    """Send it; in pieces, each goes off only when the router has read the one before."""
    size = len(sent) if whole else max(len(sent) // PIECES_MAX, 1)
    (client,) = site.plane.clients
    assert isinstance(client, Noting)
    for start in range(0, len(sent), size):
        piece = sent[start : start + size]
        caller.writer.write(piece)
        async with asyncio.timeout(5):
            while not client.transport.is_closing() and sum(client.reads) < start + len(piece):  # noqa: ASYNC110  # the router has no event for tests
                await asyncio.sleep(0)
    assert whole or max(client.reads) <= size, client.reads


async def outcome(row: Row, *, whole: bool) -> dict[str, object]:
    """What becomes of a row, in the row's own terms."""
    async with Site(engine, limits=Limits(body_bytes=BODY_MAX), client=Noting) as site:
        if row.models > 1:
            site.dispatcher.apply(table_from({"source": "u", "models": [{"name": "n"}]}), 0.0)
        site.plane.driver.stop()
        caller = await site.call()
        await until(lambda: bool(site.plane.clients))
        await send(site, caller, row.sent, whole=whole)
        if row.late:
            for _ in range(int(row.late / BEAT_S)):
                site.plane.driver.beat()
        answers = [(await caller.answer(head_only=row.heads)).status for _ in row.answers]
        closes = False
        try:
            closes = (await caller.ask(HEALTH)).status != 200
        except (asyncio.IncompleteReadError, ConnectionError):
            closes = True
        received = site.engines[0].received
        if not closes:
            await site.settled()
        return {
            "answers": tuple(answers),
            "closes": closes,
            "gets": tuple((each.head.partition(b"\r\n")[0].decode(), each.body) for each in received),
            "fields": {name: received[0].field(name) for name in row.fields},
            "held": site.plane.memory.held,
            "bugs": site.plane.counters.bugs,
        }


def marked(what: str) -> Iterator[pytest.MarkDecorator]:
    """The field faults that a row shows."""
    yield from (pytest.mark.fault(FAULTS[name]) for name, rows in SECTIONS.items() if ROWS[what] in rows)
    if any(size in what for size in SIZES):
        yield pytest.mark.fault("R14")


@pytest.mark.parametrize("what", [pytest.param(what, marks=[*marked(what)], id=what) for what in ROWS])
@on_uvloop
async def test_each_request_has_its_one_answer_whole_and_byte_by_byte(what: str) -> None:
    row = ROWS[what]
    documented = {
        "answers": row.answers,
        "closes": row.closes,
        "gets": row.gets,
        "fields": row.fields,
        "held": 0,
        "bugs": 0,
    }
    assert await outcome(row, whole=True) == documented
    assert await outcome(row, whole=False) == documented


@on_uvloop
async def test_too_much_behind_a_request_in_one_read_is_refused() -> None:
    for row in OTHERS:
        told = await outcome(row, whole=True)
        assert (told["answers"], told["closes"], told["gets"]) == (row.answers, row.closes, row.gets)


def said(row: Row) -> str:
    """A row's answer as the page says it."""
    words = ", ".join(str(status) for status in row.answers)
    if row.late:
        words += " when the bound has passed"
    if row.gets:
        words += f"; engine: `{row.gets[0][0]}`"
        fields = [f"`{name}: {', '.join(values)}`" if values else f"no `{name}`" for name, values in row.fields.items()]
        words += "".join(f", {each}" for each in fields)
    if row.gets and row.closes:
        words += "; closed"
    return words


def page() -> str:
    """The sections of the page: for each answer, which requests get it."""
    return grouped(SECTIONS, said, ("answer", "requests"))


def test_the_page_shows_exactly_these_rows() -> None:
    """To bring the page up to date: `python -m tests.router.test_wire_requests`."""
    assert shown("requests") == page()


if __name__ == "__main__":
    bring_up_to_date("requests", page())
