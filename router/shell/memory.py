"""How many bytes of request bodies the process holds, and the bound on them.

What counts is what is really held: a body's bytes from their arrival (a large one's in steps, see `large_body.py`)
until its answer begins, for nothing is sent again after that, or until its request ends. A declared length costs
nothing by itself, so idle connections that announce 64 MiB each keep nobody out. Not counted here, for each
connection bounds it by itself: an unfinished head or pipelined requests, 64 KiB (`heads.HEAD_MAX`,
`client.PIPELINED_MAX`).

Who is let in is not refused half way, as long as it keeps its course:

| body                                       | counts                         | is refused with 503                           |
|--------------------------------------------|--------------------------------|-----------------------------------------------|
| whole in the read of its head              | its length                     | when it does not fit                          |
| of known length, its first 1/32 not here   | what has arrived               | at its head, or before it is let in           |
| the same, from then on: let in             | its length: the rest is promised | no more                                     |
| the same, off course when room is short    | what has arrived               | when there is no room, the slowest of these first |
| in chunks                                  | what has arrived               | when there is no room                         |

On course = fast enough to be whole within `course_beats` of its head (one in chunks does not say its length and is
judged as the largest allowed); everything is on course for its first second. When room is short, uploads off course
lose what they were promised, and if that is not enough they are ended, the slowest first. That look at all uploads
happens at most once a beat, 0.3 us for each upload; bodies that arrive in one read pay two calls, 0.2 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.shell.lines import BadHead

if TYPE_CHECKING:
    from router.shell.exchange import Exchange

LET_IN_PART: Final = 32
"""A body is let in when 1/32 of it is here, about a second's part of one that is just on course: a declaration costs
nothing, so it must not buy room either.
"""
GRACE_BEATS: Final = 4
COURSE_BEATS: Final = 120.0
"""30 s."""


class Upload:
    """One body on its way in. `length`: declared, or the largest allowed if it comes in chunks; `since`: tick of its
    head; `let_in`: its whole length found room; `promised`: bytes kept free for what is still to come.
    """

    __slots__ = ("exchange", "length", "let_in", "promised", "since")

    def __init__(self, exchange: Exchange, length: int, since: int, *, chunked: bool) -> None:
        self.exchange = exchange
        self.length = length
        self.since = since
        self.let_in = chunked
        self.promised = 0

    def pace(self, tick: int) -> float:
        """The share of its length that arrived in each beat."""
        return self.exchange.reserved / (self.length * max(tick - self.since, 1))


class BodyMemory:
    """`held` of `limit` bytes, and `promised` ones that are kept free. What an exchange holds stands in its `reserved`.
    `uploads`: bodies on their way in, apart from those that come whole; `course_beats`: see the module.
    """

    __slots__ = ("_looked_at", "course_beats", "held", "limit", "promised", "uploads")

    def __init__(self, limit: int, course_beats: float = COURSE_BEATS) -> None:
        self.limit = limit
        self.course_beats = course_beats
        self.held = 0
        self.promised = 0
        self.uploads: set[Upload] = set()
        self._looked_at = -1

    def take(self, exchange: Exchange, size: int) -> None:
        """Count `size` bytes that came with the head. Raises `BadHead` (503) when they would pass the bound."""
        held = self.held + size
        if held + self.promised > self.limit:
            self._make_room(size, exchange.since)
            held = self.held + size
        self.held = held
        exchange.reserved += size

    def begin(self, exchange: Exchange, length: int, *, chunked: bool) -> Upload:
        """A body is on its way in. Raises `BadHead` (503) when one of that length has no room anyway."""
        if not chunked and not self._fits(length):
            self._make_room(length, exchange.since)
        upload = Upload(exchange, length, exchange.since, chunked=chunked)
        self.uploads.add(upload)
        return upload

    def arrive(self, upload: Upload, size: int, tick: int) -> None:
        """Count `size` more bytes of it. Raises `BadHead` (503) when they would pass the bound."""
        kept = min(size, upload.promised)
        upload.promised -= kept
        self.promised -= kept
        if not self._fits(size):
            self._make_room(size, tick, upload)
        exchange = upload.exchange
        self.held += size
        exchange.reserved += size
        rest = upload.length - exchange.reserved
        if not upload.let_in and exchange.reserved * LET_IN_PART >= upload.length:
            if not self._fits(rest):
                self._make_room(rest, tick, upload)
            upload.let_in = True
            upload.promised = rest
            self.promised += rest

    def end(self, upload: Upload) -> None:
        """It is whole, or no longer read."""
        self.uploads.discard(upload)
        self._break_promise(upload)

    def give_up(self, exchange: Exchange) -> None:
        """A request holds no body any more; told twice, nothing happens."""
        self.held -= exchange.reserved
        exchange.reserved = 0

    def _fits(self, size: int) -> bool:
        return self.held + self.promised + size <= self.limit

    def _break_promise(self, upload: Upload) -> None:
        self.promised -= upload.promised
        upload.promised = 0

    def _make_room(self, size: int, tick: int, upload: Upload | None = None) -> None:
        """Room is short: `upload`, or a new request, needs `size` bytes. Raises `BadHead` (503) when there is none."""
        if self._looked_at != tick:
            self._looked_at = tick
            late = sorted((each for each in self.uploads if self._late(each, tick)), key=lambda each: each.pace(tick))
            for each in late:
                self._break_promise(each)
            for each in late:
                if each is upload or self._fits(size):
                    break
                each.exchange.client.refuse_head(BadHead(503, f"{self._full()} and this one came too slowly"))
        if not self._fits(size):
            raise BadHead(503, f"{self._full()} {size} more do not fit")

    def _late(self, upload: Upload, tick: int) -> bool:
        """Is it off course."""
        age = tick - upload.since
        return age >= GRACE_BEATS and upload.exchange.reserved * self.course_beats < upload.length * age

    def _full(self) -> str:
        return f"the router holds or awaits {self.held + self.promised} of at most {self.limit} bytes of bodies;"
