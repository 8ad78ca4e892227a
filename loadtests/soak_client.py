"""The soak's clients: plays visits against the routers and files one record for every request, exactly one outcome each.

Clients are raw sockets that judge each byte (`soak_wire`, `soak_judge`), never retry, and behave as badly as the plan
says: they leave at any moment, read slowly, pipeline, send in pieces. Requests are begun at a steady rate with at most
`AT_ONCE` visits open, so that a slow machine gets less at once instead of more and more.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from loadtests.soak_judge import judge
from loadtests.soak_plan import Asked, Visit
from loadtests.soak_requests import client_id, encoded
from loadtests.soak_wire import Malformed, Reader

AT_ONCE: Final = 128
PATIENCE_S: Final = 60.0
"""A request without an end after this long is hung: more than the soak's routing allows in all (`total_s` 40 s)."""

CATCH_UP_S: Final = 1.0
SLOW_PAUSE_S: Final = 0.02
SMALL_BUFFER: Final = 4096
HALF_CLOSED_S: Final = 10.0
EVENTS_NEVER: Final = 1 << 30


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one request. Times in seconds on the soak's clock; `answer_id`: x-request-id of the answer."""

    asked: Asked
    router: int
    client_id: str | None
    begun_s: float
    outcome: str = ""
    detail: str = ""
    status: int = 0
    code: str = ""
    ended_s: float = 0.0
    answer_id: str | None = None
    generation: str | None = None


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts for the screen."""

    begun: int = 0
    ended: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Connection(asyncio.Protocol):
    """One client connection. `waiting`: readers of answers that are due, in order; `news` is set when anything came."""

    def __init__(self) -> None:
        self.waiting: deque[Reader] = deque()
        self.news = asyncio.Event()
        self.problem: Malformed | None = None
        self.lost = False
        self.closing = False
        self.slow = False
        self.gone = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's transports have no base in common

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes of answers."""
        if self.gone:
            return
        try:
            while data:
                if not self.waiting:
                    raise Malformed(f"bytes that nobody asked for: {data[:80]!r}")
                reader = self.waiting[0]
                data = reader.feed(data)
                if not reader.ended:
                    break
                self.waiting.popleft()
                self.closing = self.closing or reader.fields.get("connection", "").lower() == "close"
        except Malformed as problem:
            self.problem = problem
            self.abort()
        self.news.set()
        if self.slow and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(SLOW_PAUSE_S, self._read_on)

    def _read_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send; nothing once the connection is lost."""
        if self.transport is not None and not self.lost:
            self.transport.write(data)

    def close(self) -> None:
        """Close in order."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Drop it."""
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the end."""
        self.lost = True
        self.news.set()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, or the connection is lost."""
        while not done() and not self.lost:
            self.news.clear()
            await self.news.wait()

    def leave(self, how: str) -> None:
        """Go away before the end."""
        if self.transport is None:
            return
        if how == "half":
            self.transport.write_eof()
            self.gone = True  # what was under way may still come
        elif how == "abort":
            plain = self.transport.get_extra_info("socket")
            if plain is not None:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()


class Clients:
    """Plays visits. `addresses`: host and port of each router; `now`: the soak's clock; `on_begun`: told how many
    requests have begun.
    """

    def __init__(
        self, seed: int, addresses: list[tuple[str, int]], now: Callable[[], float], on_begun: Callable[[int], None]
    ) -> None:
        self.records: list[Record] = []
        self.tally = Tally()
        self._seed = seed
        self._addresses = addresses
        self._now = now
        self._on_begun = on_begun
        self._room = asyncio.Semaphore(AT_ONCE)

    async def play(self, visits: Iterable[Visit], rate_per_s: float) -> None:
        """All visits, to their ends."""
        due = self._now()
        async with asyncio.TaskGroup() as group:
            for visit in visits:
                due = max(due + visit.gap_s / rate_per_s, self._now() - CATCH_UP_S)
                await self._room.acquire()
                await asyncio.sleep(max(0.0, due - self._now()))
                group.create_task(self._visit(visit))

    async def _visit(self, visit: Visit) -> None:
        connection: Connection | None = None
        try:
            if visit.pipelined:
                connection = await self._connect(visit)
                await self._pipeline(visit, connection)
                return
            for asked in visit.asked:
                if connection is None or connection.closing:
                    if connection is not None:
                        connection.close()
                    connection = await self._connect(visit)
                await self._one(asked, visit, connection)
                await asyncio.sleep(visit.pause_s)
        finally:
            self._room.release()
            if connection is not None:
                connection.close()

    async def _connect(self, visit: Visit) -> Connection:
        """A new connection; a router that refuses one shows in the requests that are then lost."""
        loop = asyncio.get_running_loop()
        plain = socket.socket()
        plain.setblocking(False)
        if any(asked.slow for asked in visit.asked):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection = Connection()
        try:
            await loop.sock_connect(plain, self._addresses[visit.router])
            await loop.create_connection(lambda: connection, sock=plain)
        except OSError as error:
            plain.close()
            connection.lost = True
            connection.problem = Malformed(f"no connection to the router: {error!r}")
        return connection

    # ---- requests

    def _begin(self, asked: Asked, visit: Visit) -> Record:
        record = Record(asked=asked, router=visit.router, client_id=client_id(self._seed, asked), begun_s=self._now())
        self.records.append(record)
        self.tally.begun += 1
        self._on_begun(self.tally.begun)
        return record

    def _end(self, record: Record, outcome: str, detail: str = "") -> None:
        record.outcome, record.detail, record.ended_s = outcome, detail, self._now()
        self.tally.ended += 1
        self.tally.outcomes[outcome] += 1

    async def _pipeline(self, visit: Visit, connection: Connection) -> None:
        records = [self._begin(asked, visit) for asked in visit.asked]
        readers = [Reader() for _ in records]
        connection.waiting.extend(readers)
        messages = [b"".join(encoded(record.asked, record.client_id)) for record in records]
        connection.write(b"".join(messages))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await connection.until(lambda: readers[-1].ended)
        except TimeoutError:
            pass
        broken = False
        for record, reader in zip(records, readers, strict=True):
            self._file(record, reader, connection, behind=broken)
            broken = broken or not reader.ended or reader.fields.get("connection", "").lower() == "close"

    async def _one(self, asked: Asked, visit: Visit, connection: Connection) -> None:
        record = self._begin(asked, visit)
        reader = Reader(expect=asked.expect)
        if connection.lost:
            self._end(record, "lost", f"the router had closed the connection without a word ({connection.problem})")
            connection.closing = True
            return
        connection.slow = asked.slow
        connection.waiting.append(reader)
        try:
            async with asyncio.timeout(PATIENCE_S):
                left = await self._exchange(record, reader, connection)
        except TimeoutError:
            left = False
        if left:
            self._end(record, "left")
            return
        self._file(record, reader, connection, behind=False)

    async def _exchange(self, record: Record, reader: Reader, connection: Connection) -> bool:
        """Send a request and read its answer. True when the client left before its end."""
        asked, leave = record.asked, record.asked.leave
        head, body = encoded(asked, record.client_id)
        write = connection.write
        if leave is not None and leave.how == "body":
            write(head + body[: len(body) // 2])
            await asyncio.sleep(leave.after_s)
            connection.leave("close")
            return True
        if asked.expect:
            write(head)
            await connection.until(lambda: reader.continued or reader.ended)
            write(body)
        else:
            message = head + body
            step = -(-len(message) // asked.pieces)
            for start in range(0, len(message), step):
                if start:
                    await asyncio.sleep(0.002)
                write(message[start : start + step])
        if leave is None:
            await connection.until(lambda: reader.ended)
            return False
        enough = EVENTS_NEVER if leave.events is None else leave.events

        def seen() -> bool:
            return reader.ended or (reader.events is not None and len(reader.events.values) >= enough)

        try:
            async with asyncio.timeout(leave.after_s):
                await connection.until(seen)
        except TimeoutError:
            pass
        if reader.ended or connection.lost:
            return False
        connection.leave(leave.how)
        if leave.how == "half":
            async with asyncio.timeout(HALF_CLOSED_S):  # the router takes it as gone
                await connection.until(lambda: False)
        return True

    def _file(self, record: Record, reader: Reader, connection: Connection, *, behind: bool) -> None:
        """Give a request that did not leave its one outcome."""
        record.status = reader.status
        record.answer_id = reader.fields.get("x-request-id")
        try:
            if reader.ended:
                verdict = judge(record.asked, reader, record.client_id)
                record.code, record.generation = verdict.code, verdict.generation
                self._end(record, verdict.outcome)
            elif connection.problem is not None and not behind:
                raise connection.problem
            elif not connection.lost:
                self._end(record, "hung", f"no end after {PATIENCE_S:g} s, {len(reader.body)} bytes of a body")
            elif behind and not reader.begun:
                self._end(record, "behind a cut")
            elif not reader.begun:
                self._end(record, "lost", "the connection ended without a byte of an answer")
            elif reader.status and reader.events is None:
                self._end(record, "cut")
            else:
                raise Malformed("the connection ended inside " + ("a stream" if reader.status else "a head"))
        except Malformed as problem:
            self._end(record, "malformed", str(problem))
        if not reader.ended:
            connection.abort()
