"""The one timer of a data plane: four beats a second, everything that depends on time is done here.

Connections carry the number of the beat (`tick`) at which something last happened, an int that costs 0.02 us to note;
a beat compares them with the bounds. Bounds are therefore kept to 0.25 s, and to 1 s when more than `MANY` clients
are connected (5,000 cost 0.5 ms a look). The core is told the time (`expired`), and its effects are applied.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from router.core.endpoints import ABSENT, IGNORED, TIMEOUT, Endpoint
from router.shell.client import BODY, BUSY, LINGERING, WAITING, Client
from router.shell.connection import CONNECTING, EVENTS, FIRST_EVENT, HEAD
from router.shell.lines import BadHead
from router.shell.upstream import Upstream

if TYPE_CHECKING:
    from router.shell.http import DataPlane

BEAT_S: Final = 0.25
MANY: Final = 512
IDLE_BEATS: Final = 16
"""An idle engine connection is reused for 4 s: uvicorn and most engines close theirs after 5."""
CROWDED_IDLE_S: Final = 5.0
"""What `Limits.idle_s` becomes while more than three quarters of the allowed clients are connected: those who do nothing
make room for those who come.
"""
LINGER_S: Final = 2.0
"""A refused client gets this long to read why before it is cut off."""


class Driver:
    """Beats while started. `beat` may be called by hand in tests."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._timer: asyncio.TimerHandle | None = None
        self._idle_s = plane.limits.idle_s

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
        crowded = len(plane.clients) * 4 > plane.connections_max * 3
        self._idle_s = min(plane.limits.idle_s, CROWDED_IDLE_S) if crowded else plane.limits.idle_s
        for client in [client for client in plane.clients if self._overdue(client)]:
            self._end(client)
        if not plane.tick & 3:
            self._tell_progress()

    def _tell_progress(self) -> None:
        """Once a second, when the newest byte of any event stream came from each endpoint that has some under way.
        Streams whose clients do not read say nothing. 0.2 us a client.
        """
        plane = self._plane
        newest: dict[Endpoint, int] = {}
        for client in plane.clients:
            exchange = client.exchange
            upstream = exchange.upstream if exchange is not None else None
            if upstream is not None and upstream.state == EVENTS and not upstream.paused:
                endpoint = upstream.endpoint
                newest[endpoint] = max(newest.get(endpoint, 0), upstream.stamp)
        now = plane.now()
        for endpoint, stamp in newest.items():
            plane.dispatcher.streaming(endpoint, now - (plane.tick - stamp) * BEAT_S, now)

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
            return still_s > (limits.head_s if client.receiving else self._idle_s)
        if state == BODY:
            return still_s > limits.body_s or self._dribbles(client)
        if state == LINGERING:
            return still_s > LINGER_S
        if state != BUSY:
            return still_s > limits.stall_s
        exchange = client.exchange
        upstream = exchange.upstream if exchange is not None else None
        return upstream is not None and self._late(upstream) is not None

    def _dribbles(self, client: Client) -> bool:
        """Does a body come slower than is allowed."""
        limits, upload = self._plane.limits, client.upload
        if upload is None:
            return False
        age_s = (self._plane.tick - upload.since) * BEAT_S
        return age_s > limits.body_s and upload.exchange.reserved < limits.body_bytes_per_s * age_s

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
            limits = self._plane.limits
            slow = f"comes slower than {limits.body_bytes_per_s:g} bytes a second"
            still = f"made no progress for {limits.body_s:g} s"
            stands = (self._plane.tick - client.stamp) * BEAT_S > limits.body_s
            client.refuse_head(BadHead(400, f"the body {still if stands else slow}"))
        elif client.state == WAITING:
            client.close()
        else:
            client.transport.abort()
