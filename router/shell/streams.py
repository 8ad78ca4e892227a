"""Server-sent events on their way to a client: no client ever gets half an event and then something else.

Chunks and events are two framings, and neither respects the other: an event may span chunks and reads. As long as
each read ends with a whole event in a whole chunk, which is how engines write, reads are forwarded as they came
(`Upstream.data_received` does that itself). The first read that does not switches the stream to re-chunking: body
bytes up to the last whole event go out as one chunk of our own, the rest is held, and as soon as a read surely ends with
both framings closed (by its last bytes, which tell only for events that end with LF LF) the stream is passed through
again. So at any moment the client stands at an event's end, and when the engine dies the half event is dropped and an
error event can follow. A client that gets no chunks (HTTP/1.0, or the engine sends none) gets the same whole events.

An event ends with an empty line, and a line with LF, CR LF or CR, in any mixture: whatever its fields (`event:`,
`data:`, `id:`, comments), it is one event. Of two line ends in a row the second is the empty line. Only where a read
ends with LF CR its LF is waited for: it is in all likelihood on its way, and a client that knows nothing but CR LF CR LF
would see the event one event late.

An event that is larger than `HELD_MAX` is forwarded in parts; if the engine dies inside it, the client is cut off.
"""

from __future__ import annotations

import re
from typing import Final

HELD_MAX: Final = 64 << 10

_number = re.compile(rb'"sequence_number"\s*:\s*(\d{1,9})').search


def events_in(data: bytes | bytearray) -> int:
    """How many events end in `data`, exactly where all end alike. A comment that stands alone counts as one."""
    return data.count(b"\n\n") or data.count(b"\n\r\n") or data.count(b"\r\r")


def first_number(data: bytes) -> int:
    """The number of the first numbered event in `data`; 0, where the numbers of the Responses API begin, if there is
    none.
    """
    found = _number(data)
    return int(found[1]) if found else 0


def end_in(held: bytearray, start: int) -> int:
    """Where the last whole event in `held` ends that ends behind `start`; 0 = none does."""
    stop = len(held)
    if held.endswith(b"\n\r"):
        stop -= 1
    # Each end of an event has one of these three in it; what they leave out is a last LF.
    at = max(held.rfind(b"\n\n", start, stop), held.rfind(b"\n\r", start, stop), held.rfind(b"\r\r", start, stop))
    if at < 0:
        return 0
    end = at + 2
    return end + 1 if held[end - 1 : end + 1] == b"\r\n" else end


def only_comments(pieces: list[bytes]) -> bool:
    """Is there nothing but comments in these chunks, as engines send them to keep a connection alive."""
    if not pieces or not pieces[0].startswith(b":"):
        return not pieces
    return all(line.startswith(b":") or not line for line in b"".join(pieces).splitlines())


def ends_well(events: bytes) -> bool:
    """Is the last of these whole events the one with which its protocol ends a stream: then nothing is missing."""
    last = events.replace(b"\r\n", b"\n").rstrip(b"\n").rpartition(b"\n\n")[2]
    return last.endswith(b"data: [DONE]") or last.startswith((b"event: message_stop\n", b"event: response.completed\n"))


class Regrouping:
    """One stream's held bytes. `torn`: the client stands inside an event · `first`: number of the stream's first event,
    where events have numbers · `given`: what `take` gave last.
    """

    __slots__ = ("first", "given", "held", "torn")

    def __init__(self) -> None:
        self.held = bytearray()
        self.torn = False
        self.first = 0
        self.given = b""

    def take(self, body: bytes) -> bytes:
        """Body bytes of one read; gives those that may be written now: up to the end of the last whole event."""
        held = self.held
        known = max(len(held) - 2, 0)
        held += body
        end = end_in(held, known)
        if end:
            self.torn = False
        elif len(held) > HELD_MAX:
            end = len(held)
            self.torn = True
        else:
            return b""
        if end == len(held):
            whole = bytes(held)
            held.clear()
        else:
            whole = bytes(held[:end])
            del held[:end]
        self.given = whole
        return whole

    def rest(self, body: bytes) -> bytes:
        """The stream is complete: what is held and `body`, whatever they end with."""
        whole = bytes(self.held) + body
        self.held.clear()
        return whole
