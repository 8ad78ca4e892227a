"""Server-sent events on their way to a client: no client ever gets half an event and then something else.

Chunks and events are two framings, and neither respects the other: an event may span chunks and reads. As long as
each read ends with a whole event in a whole chunk, which is how engines write, reads are forwarded as they came
(`Upstream.data_received` does that itself). The first read that does not switches the stream to re-chunking: body
bytes up to the last whole event go out as one chunk of our own, the rest is held, and as soon as a read surely ends with
both framings closed (by its last bytes, which tell only for events that end with LF LF) the stream is passed through
again. So at any moment the client stands at an event's end, and
when the engine dies the half event is dropped and an error event can follow.

An event that is larger than `HELD_MAX` is forwarded in parts; if the engine dies inside it, the client is cut off.
"""

from __future__ import annotations

from typing import Final

from router.shell.framing import chunk

HELD_MAX: Final = 64 << 10
# A line may end with a lone CR as well; no engine does that, and then the stream is held up to HELD_MAX at a time.


def events_in(data: bytes | bytearray) -> int:
    """How many events end in `data`."""
    return data.count(b"\n\n") or data.count(b"\r\n\r\n")


class Regrouping:
    """One stream's held bytes. `torn`: the client stands inside an event."""

    __slots__ = ("held", "torn")

    def __init__(self) -> None:
        self.held = bytearray()
        self.torn = False

    def take(self, body: bytes) -> bytes:
        """Body bytes of one read; gives what is to be written: the whole events as one chunk, or nothing."""
        held = self.held
        known = max(len(held) - 3, 0)
        held += body
        feed, crlf = held.rfind(b"\n\n", known), held.rfind(b"\r\n\r\n", known)
        cut = max(feed + 2 if feed >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
        if cut:
            self.torn = False
        elif len(held) > HELD_MAX:
            cut = len(held)
            self.torn = True
        else:
            return b""
        whole = bytes(held[:cut])
        del held[:cut]
        return chunk(whole)

    def rest(self, body: bytes) -> bytes:
        """The stream is complete: what is held and `body` as a chunk, whatever they end with; b"" when there is
        nothing.
        """
        whole = bytes(self.held) + body
        self.held.clear()
        return chunk(whole) if whole else b""
