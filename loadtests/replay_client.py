"""A light HTTP/1.1 client for open-loop load: one request, the moments that matter, and what the answer amounted to.

Knows nothing of traces and schedules. Each connection is an `asyncio.Protocol` around llhttp (httptools), kept for
reuse while the server keeps it; there is no limit on their number, because a client that waits for a connection is no
longer open-loop. Streams are never stored: they are looked at line by line as they come. It exists because a general
client costs twice as much: a streamed answer of 12 events took 0.61 ms of CPU here and 1.23 ms in aiohttp's (both on
uvloop; on asyncio's own loop 1.38 and 1.65), and the demo shares two cores with everything that it loads.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from loadtests.replay_answers import DETAIL_MAX, Answer, queue_seconds, read_event_line

IDLE_S_MAX = 2.0
"""A kept connection older than this is not used again: servers close idle ones after a few seconds (uvicorn after 5),
and a POST sent into a closing connection would be counted as the server's failure."""


class ReplayError(Exception):
    """The replay cannot start; the message says what and why."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send: parsed once from a base URL. `prefix` is the URL's path, put before every request's own."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str) -> Target:
        """From `http://HOST[:PORT][/PATH]` or https. Raises `ReplayError` for anything else."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ReplayError(f"--url {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ReplayError(f"--url {url!r}: allowed is http://HOST[:PORT] or https://HOST[:PORT]")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host=parts.hostname, port=port or (443 if tls else 80), prefix=prefix, tls=tls)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class _Connection(asyncio.Protocol):
    """One connection, at most one request on it at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, forget: Callable[[_Connection], None]) -> None:
        self._loop = loop
        self._forget = forget
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.open = False
        self._waiter: asyncio.Future[None] | None = None
        self._answer = Answer()
        self._line = b""
        self._sized = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        self.open = True

    def send(self, data: bytes, answer: Answer) -> asyncio.Future[None]:
        """Send one request and fill in `answer`; the future is done when that is over, however it ended."""
        assert self.transport is not None
        assert self._waiter is None, "one request at a time"
        self._parser = httptools.HttpResponseParser(self)
        self._answer, self._line, self._sized = answer, b"", False
        self._waiter = self._loop.create_future()
        self.transport.write(data)
        return self._waiter

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.close()  # bytes that nobody asked for: do not trust the connection any more
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer.error = f"not HTTP: {error}"
            self._over(keep=False)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._forget(self)
        if self._waiter is None:
            return
        answer = self._answer
        if error is None and answer.status >= 200 and not self._sized:
            answer.complete = True  # neither length nor chunks: the body ends with the connection
        else:
            answer.error = answer.error or (
                f"connection lost: {error}" if error else "connection closed before the answer's end"
            )
        self._over(keep=False)

    def close(self) -> None:
        """Close at once; an answer still waited for counts as cut."""
        self.open = False
        if self.transport is not None:
            self.transport.abort()

    def _over(self, keep: bool) -> None:
        waiter, self._waiter = self._waiter, None
        self._answer.done_at = self.idle_since = self._loop.time()
        if not keep:
            self.close()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"server-timing":
                self._answer.queue_s = queue_seconds(value.decode("latin-1"))
            case b"content-type":
                self._answer.stream = value.lower().startswith(b"text/event-stream")
            case b"content-length" | b"transfer-encoding":
                self._sized = True

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if answer.first_byte_at is None:
            answer.first_byte_at = self._loop.time()
        if not answer.stream:
            if len(answer.text) < DETAIL_MAX:
                answer.text += body
            return
        *lines, self._line = (self._line + body).split(b"\n")
        for line in lines:
            if line:
                read_event_line(line, answer)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer.status < 200:  # 100 or 103: the real answer follows
            answer.status, answer.stream, self._sized = 0, False, False
            return
        if answer.stream:
            read_event_line(self._line, answer)
        answer.complete = True
        self._over(keep=self._parser.should_keep_alive())


class ReplayClient:
    """Connections to one server. Use as an async context manager; leaving it closes every connection."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Connection] = []
        self._all: dict[_Connection, None] = {}

    def __repr__(self) -> str:
        return f"ReplayClient({len(self._all)} connections, {len(self._idle)} idle)"

    async def __aenter__(self) -> ReplayClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(self, head: str, headers: Mapping[str, str], body: bytes, answer: Answer) -> None:
        """Send `METHOD PATH` with a JSON body and wait for the end, filling in `answer` as it comes; never raises for
        what comes.

        Raises `OSError` when no connection can be made. Cancelling it (a timeout, a client that leaves) closes the
        connection.
        """
        connection = await self._connection()
        try:
            await connection.send(self._encode(head, headers, body), answer)
        except BaseException:
            connection.close()
            raise
        if connection.open:
            self._idle.append(connection)

    async def close(self) -> None:
        """Close every connection and let their transports finish closing."""
        for connection in list(self._all):
            connection.close()
        for _ in range(100):
            if not self._all:
                return
            await asyncio.sleep(0.001 if self.target.tls else 0)

    async def _connection(self) -> _Connection:
        oldest = self._loop.time() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.idle_since >= oldest:
                return connection
            connection.close()
        target = self.target
        _, connection = await self._loop.create_connection(
            lambda: _Connection(self._loop, self._forget), target.host, target.port, ssl=target.tls
        )
        self._all[connection] = None
        return connection

    def _forget(self, connection: _Connection) -> None:
        self._all.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def _encode(self, head: str, headers: Mapping[str, str], body: bytes) -> bytes:
        method, path = head.split(" ", 1)
        lines = [f"{method} {self.target.prefix}{path} HTTP/1.1", f"host: {self.target.authority}"]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
