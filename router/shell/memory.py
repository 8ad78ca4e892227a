"""How many bytes of request bodies the process holds, and the bound on them.

Every body counts, whatever its size and however it comes: from the moment its bytes are kept until its answer begins
(then it is given up, for nothing is sent again after that), or until its request ends. A body of known length counts
whole from its head on, so that one that was let in is never refused half way; one in chunks counts as they arrive,
framing included. Small ones that arrive in one read pay two calls, 0.2 us. Not counted here, for each connection
bounds it by itself: an unfinished head or pipelined requests, 64 KiB (`heads.HEAD_MAX`, `client.PIPELINED_MAX`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.shell.lines import BadHead

if TYPE_CHECKING:
    from router.shell.exchange import Exchange


class BodyMemory:
    """`held` of `limit` bytes. What an exchange holds of them stands in its `reserved`."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, exchange: Exchange, size: int) -> None:
        """Count `size` more bytes as held by a request. Raises `BadHead` (503) when they would pass the bound."""
        held = self.held + size
        if held > self.limit:
            raise BadHead(
                503, f"the router holds {self.held} bytes of bodies, {size} more would pass the bound of {self.limit}"
            )
        self.held = held
        exchange.reserved += size

    def give_up(self, exchange: Exchange) -> None:
        """A request holds no body any more; told twice, nothing happens."""
        self.held -= exchange.reserved
        exchange.reserved = 0
