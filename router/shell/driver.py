"""The one timer of a data plane: four beats a second, everything that depends on time is done here.

Connections carry the number of the beat (`tick`) at which something last happened, an int that costs 0.02 us to note;
a beat compares them with the bounds. Bounds are therefore kept to 0.25 s, and to 1 s when more than `MANY` clients
are connected (5,000 cost 0.5 ms a look). The core is told the time (`expired`), and its effects are applied.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from router.core.endpoints import ABSENT, IGNORED, TIMEOUT
from router.shell.client import BODY, BUSY, LINGERING, WAITING, Client
from router.shell.connection import CONNECTING, HEAD
from router.shell.lines import BadHead
from router.shell.upstream import FIRST_EVENT, Upstream

if TYPE_CHECKING:
    from router.shell.http import DataPlane

BEAT_S: Final = 0.25
MANY: Final = 512
IDLE_BEATS: Final = 16
"""An idle engine connection is reused for 4 s: uvicorn and most engines close theirs after 5."""
LINGER_S: Final = 2.0
"""A refused client gets this long to read why before it is cut off."""


class Driver:
    """Beats while started. `beat` may be called by hand in tests."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Arm the timer."""
        self._timer = self._plane.loop.call_later(BEAT_S, self._on_timer)

    def stop(self) -> None:
        """Disarm it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self.start()  # first, so that a bug below costs one beat and not all
        try:
            self.beat()
        except Exception:
            self._plane.counters.bugs += 1
            raise

    def beat(self) -> None:
        """One beat."""
        plane = self._plane
        plane.tick += 1
        plane.dispatcher.expired(plane.now())
        plane.apply_effects()
        if plane.access_log is not None:
            plane.access_log.flush()
        self._expire_pools()
        if plane.tick & 3 and len(plane.clients) > MANY:
            return
        for client in [client for client in plane.clients if self._overdue(client)]:
            self._end(client)

    def _expire_pools(self) -> None:
        """Close engine connections that were idle for too long, the oldest stand on the left, and those of gone
        endpoints.
        """
        plane = self._plane
        oldest = plane.tick - IDLE_BEATS
        for endpoint in list(plane.pooled):
            pool = endpoint.pool
            while pool and (pool[0].dead or pool[0].stamp < oldest or endpoint.intent == ABSENT):
                pool.popleft().drop()
            if not pool and endpoint.intent == ABSENT and not endpoint.in_flight:
                plane.pooled.discard(endpoint)

    def _overdue(self, client: Client) -> bool:
        """Did a bound on this client's connection pass."""
        plane = self._plane
        limits, state = plane.limits, client.state
        if client.stalled is not None and (plane.tick - client.stalled) * BEAT_S > limits.stall_s:
            return True
        still_s = (plane.tick - client.stamp) * BEAT_S
        if state == WAITING:
            return still_s > (limits.head_s if client.receiving else limits.idle_s)
        if state == BODY:
            return still_s > limits.body_s
        if state == LINGERING:
            return still_s > LINGER_S
        if state != BUSY:
            return still_s > limits.stall_s
        exchange = client.exchange
        upstream = exchange.upstream if exchange is not None else None
        return upstream is not None and self._late(upstream) is not None

    def _late(self, upstream: Upstream) -> int | None:
        """The outcome when a bound on the engine's side passed, else None."""
        exchange = upstream.exchange
        if exchange is None:
            return None
        plane = self._plane
        timeouts = exchange.model.timeouts
        if (plane.tick - exchange.since) * BEAT_S > timeouts.total_s:
            return IGNORED  # a long answer says nothing about the engine
        if upstream.paused:  # it waits for the client
            return None
        bound_s = timeouts.between_bytes_s
        if upstream.state == CONNECTING:
            bound_s = timeouts.connect_s
        elif upstream.state in (HEAD, FIRST_EVENT):
            bound_s = timeouts.first_byte_s
        return TIMEOUT if (plane.tick - upstream.stamp) * BEAT_S > bound_s else None

    def _end(self, client: Client) -> None:
        """Act on a bound that passed. A client that does not read is cut off: it would not read an answer either, and a
        connection in order ends only when what was written has left.
        """
        exchange = client.exchange
        upstream = exchange.upstream if exchange is not None else None
        outcome = self._late(upstream) if upstream is not None and client.stalled is None else None
        if client.state == BUSY and outcome is not None and upstream is not None:
            upstream.timed_out(outcome)
        elif client.stalled is not None:
            client.transport.abort()
        elif client.state == WAITING and client.receiving:
            client.refuse_head(BadHead(400, f"the head did not arrive within {self._plane.limits.head_s:g} s"))
        elif client.state == BODY:
            client.refuse_head(BadHead(400, f"the body made no progress for {self._plane.limits.body_s:g} s"))
        elif client.state == WAITING:
            client.close()
        else:
            client.transport.abort()
