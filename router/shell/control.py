"""What a parent and its workers say to each other: JSON lines over a socket pair, made when a worker is started.

| who    | says              | means                                                                         |
|--------|-------------------|-------------------------------------------------------------------------------|
| parent | (first line)      | the worker's settings                                                         |
| worker | ready             | tables are applied, nothing is served yet                                     |
| worker | failed (why)      | it cannot start and exits                                                     |
| parent | go (urls)         | serve; these predecessors still finish their streams                          |
| parent | retire            | a successor is ready: accept nothing more, finish, exit                       |
| worker | retired (url)     | it accepts nothing more; its admin API is at this private address from now on |
| parent | gone (url)        | that predecessor has ended                                                    |
| parent | stop, hurry       | the whole router stops; now                                                   |
| parent | reload            | read the file again                                                           |

The end of the line is a message as well: a worker whose parent is gone leaves, so none is an orphan for long.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from router.settings import Settings

LINE_BYTES_MAX = 64 << 20
"""Settings may carry a table that was made from flags."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. `what`: a word of the table above."""

    what: str
    why: str = ""
    urls: tuple[str, ...] = ()


_message = msgspec.json.Decoder(Message)


class Line:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Line:
        """Take an end over."""
        return cls(*await asyncio.open_connection(sock=end, limit=LINE_BYTES_MAX))

    def say(self, what: str, *urls: str, why: str = "") -> None:
        """Send a message; one that the other side no longer reads is lost with it."""
        self._send(msgspec.json.encode(Message(what=what, why=why, urls=urls)))

    async def hear(self) -> Message | None:
        """The next message; None when the other side is gone."""
        with suppress(OSError):
            if line := await self._reader.readline():
                return _message.decode(line)
        return None

    def say_settings(self, settings: Settings) -> None:
        """The first line."""
        self._send(msgspec.json.encode(settings, enc_hook=_plain))

    async def hear_settings(self) -> Settings:
        """The first line. Raises `msgspec.DecodeError` when the parent left before it."""
        return msgspec.json.decode(await self._reader.readline(), type=Settings, dec_hook=_made)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def _send(self, line: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(line + b"\n")


def _plain(value: Any) -> str:
    assert isinstance(value, Path), type(value)
    return str(value)


def _made(kind: type, value: Any) -> Path:
    assert kind is Path, kind
    return Path(value)
