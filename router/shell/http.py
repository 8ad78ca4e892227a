"""The data plane: one router's client side and engine side around a dispatcher, on one event loop.

`DataPlane` is what the server starts: it makes a protocol per client connection, keeps the counters, and is where
both sides meet: a client hands it requests, an engine's connection tells it how they end, and what the dispatcher
decides is carried out here, one waiting request after the other: a bug with one of them costs that one only. The
parts: `client.py` (client connections), `exchange.py` (one request), `connection.py`, `upstream.py`, `endings.py` (engine
connections), `lines.py`, `heads.py`, `framing.py`, `bodies.py`, `large_body.py`, `prefix.py`, `streams.py`,
`saturated.py` (bytes), `memory.py`, `descriptors.py` (what is held), `answers.py` (own answers), `access_log.py`,
`driver.py` (time).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from router.core.dispatcher import Dispatcher, Verdict
from router.core.endpoints import CLIENT_GONE, IGNORED, Endpoint
from router.core.refusals import Refusal
from router.shell import answers
from router.shell.access_log import AccessLog
from router.shell.client import BUSY, Client
from router.shell.descriptors import NO_CONNECTION, clients_allowed, is_our_want
from router.shell.driver import BEAT_S, IDLE_BEATS, Driver
from router.shell.exchange import Exchange
from router.shell.memory import BodyMemory
from router.shell.upstream import Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on the client side. Sizes in bytes, times in seconds. The head is bounded by `heads.HEAD_MAX`, 64 KiB."""

    body_bytes: int = 64 << 20
    """One request's body: 413 above."""
    bodies_total_bytes: int = 1 << 30
    """All request bodies held at one moment, of whatever size: 503 above. An unfinished head or pipelined requests
    (64 KiB a connection) are not among them.
    """
    connections: int = 20_000
    """Open client connections, or fewer if the limit of open files does not suffice for so many
    (`descriptors.clients_within`); further ones are closed at once. Above three quarters of them idle ones are closed
    after `driver.CROWDED_IDLE_S`.
    """
    head_s: float = 10.0
    """A head must be whole this long after its first byte."""
    body_s: float = 30.0
    """A body must make progress at least this often; one that would not be whole within this time is the first to go when
    memory for bodies is short (`memory.py`).
    """
    body_bytes_per_s: float = 1024.0
    """A body must come this fast on average, from its first `body_s` on."""
    idle_s: float = 75.0
    """An idle keep-alive connection is closed after this."""
    stall_s: float = 120.0
    """A client that reads nothing of a waiting answer for this long is cut off."""


class Counters:
    """Plain counts since boot, for the metrics page.

    `bugs`: exceptions of our own that cost a request; `bad_requests`: heads and bodies refused; `error_events`:
    streams ended by an error event; `cut_off`: clients disconnected inside an answer; `left`: clients gone before
    their answer's end; `timeouts`: bounds on the engine's side that passed.
    """

    __slots__ = (
        "bad_requests",
        "bugs",
        "client_connections",
        "cut_off",
        "engine_connections",
        "error_events",
        "left",
        "local_answers",
        "timeouts",
    )

    def __init__(self) -> None:
        self.bad_requests = self.bugs = self.client_connections = self.cut_off = self.engine_connections = 0
        self.error_events = self.left = self.local_answers = self.timeouts = 0


class DataPlane:
    """Client connections in, engine connections out. See the module docstring.

    `dispatcher`: routing state; `loop`: the running loop, its `time()` is the clock. For others to read: `counters`,
    `clients` (open client connections), `dispatcher.model_states()` (meters). `access_log`: told of each request that
    ended, None = nobody is.
    """

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, limits: Limits | None = None) -> None:
        self.dispatcher = dispatcher
        self.loop = loop
        self.limits = limits or Limits()
        self.now = loop.time
        self.boot = dispatcher.boot.encode()
        self.counters = Counters()
        self.clients: set[Client] = set()
        self.pooled: set[Endpoint] = set()
        self.connections_max = clients_allowed(self.limits.connections)
        self.tick = 0
        self.minted = 0
        self.memory = BodyMemory(self.limits.bodies_total_bytes, self.limits.body_s / BEAT_S)
        self.access_log: AccessLog | None = None
        self.driver = Driver(self)
        self._connects: set[asyncio.Task[None]] = set()
        dispatcher.on_effects = self._effects_soon

    def protocol(self) -> asyncio.Protocol:
        """A new protocol for one client connection: the factory for `loop.create_server`."""
        return Client(self)

    def start(self) -> None:
        """Arm the one timer."""
        self.driver.start()

    @property
    def idle(self) -> bool:
        """No request is in flight, queued or being received."""
        return not any(client.state == BUSY or client.receiving for client in self.clients)

    def close(self) -> None:
        """Stop the timer and close every connection, also those in use; wait for `idle` first for an orderly end."""
        self.driver.stop()
        for client in list(self.clients):
            client.transport.abort()
        self._drop_idle()
        for task in list(self._connects):
            task.cancel()

    def _drop_idle(self) -> None:
        """Close the idle engine connections."""
        for endpoint in self.pooled:
            while endpoint.pool:
                endpoint.pool.pop().drop()

    # ---- between clients, dispatcher and engines

    def page(self, exchange: Exchange) -> tuple[int, bytes] | None:
        """The router's own answer for a path on the data port, (status, body), or None: everything else is the
        engines'.
        """
        line = exchange.head.line
        if line.method not in (b"GET", b"HEAD"):
            return None
        path = line.target.partition(b"?")[0]
        if path == b"/health":
            return 200, b'{"status":"ok"}'
        if path == b"/ready":
            if self.dispatcher.accepting and self.dispatcher.has_table:
                return 200, b'{"status":"ready"}'
            why = b"no table yet" if self.dispatcher.accepting else b"draining"
            return 503, b'{"status":"not ready","why":"%b"}' % why
        if path == b"/v1/models":
            return 200, answers.models_page(sorted(self.dispatcher.names))
        return None

    def send(self, exchange: Exchange, endpoint: Endpoint, fresh: bool = False) -> None:
        """Send a request to the endpoint it was given: on an idle connection unless `fresh`, else on a new one."""
        exchange.sent_to = endpoint
        pool = endpoint.pool
        if pool is None:
            pool = endpoint.pool = deque()
            self.pooled.add(endpoint)
        if not fresh:
            while pool:
                upstream = pool.pop()  # the newest, it is the least likely to be closed by the engine just now
                if not upstream.dead and self.tick - upstream.stamp <= IDLE_BEATS:
                    upstream.start(exchange)
                    return
                upstream.drop()
        upstream = exchange.upstream = Upstream(self, endpoint, exchange)
        task = self.loop.create_task(self._connect(upstream))
        upstream.connecting = task
        self._connects.add(task)
        task.add_done_callback(self._connects.discard)

    async def _connect(self, upstream: Upstream) -> None:
        """The one thing that is awaited; cancelled when the client leaves or the bound on connecting passes."""
        endpoint = upstream.endpoint
        try:
            await self.loop.create_connection(lambda: upstream, endpoint.host, endpoint.port)
        except OSError as error:
            upstream.connecting = None
            if is_our_want(error):
                self._no_connection(upstream)
            else:
                upstream.unreachable()

    def _no_connection(self, upstream: Upstream) -> None:
        """We lack what a connection takes: that says nothing about the engine. Idle connections make room for the next."""
        exchange = upstream.exchange
        upstream.drop()
        self._drop_idle()
        if exchange is not None:
            self.refused(exchange, IGNORED, NO_CONNECTION)

    def ended(self, exchange: Exchange, outcome: int) -> None:
        """The answer reached its end, well or with an error event."""
        exchange.upstream = None
        dispatcher = self.dispatcher
        now = self.now()
        dispatcher.finished(exchange, outcome, now)
        if self.access_log is not None:
            self.access_log.record(exchange, outcome, now)
        exchange.client.done(exchange)
        if dispatcher.effects:  # others come last: what goes wrong with them must not keep this one from its end
            self.apply_effects()

    def refused(self, exchange: Exchange, outcome: int, refusal: Refusal) -> None:
        """The attempt failed, is not to be repeated, and nothing was forwarded yet."""
        exchange.upstream = None
        self.dispatcher.finished(exchange, outcome, self.now())
        exchange.client.refuse(exchange, refusal)
        self.apply_effects()

    def cut_off(self, exchange: Exchange, outcome: int) -> None:
        """The attempt failed inside an answer that cannot be ended well."""
        exchange.upstream = None
        self.counters.cut_off += 1
        self.dispatcher.finished(exchange, outcome, self.now())
        self.log_end(exchange, outcome)
        exchange.client.cut_off()
        self.apply_effects()

    def attempt_failed(self, exchange: Exchange, outcome: int, *, sent: bool) -> None:
        """The attempt failed before a byte of an answer: the ladder says whether there is another."""
        self.carry_on(exchange, self.dispatcher.failed(exchange, outcome, self.now(), sent=sent))

    def carry_on(self, exchange: Exchange, verdict: Verdict) -> None:
        """An attempt gave no answer to pass on: what comes next."""
        exchange.upstream = None
        if isinstance(verdict, Endpoint):
            self.send(exchange, verdict)
        elif isinstance(verdict, Refusal):
            exchange.client.refuse(exchange, verdict)
        self.apply_effects()

    def replay(self, exchange: Exchange) -> None:
        """The keep-alive race: the engine closed an idle connection as it was used. Nothing was read of the request."""
        endpoint = exchange.endpoint
        assert endpoint is not None
        exchange.replayed = True
        self.dispatcher.replayed(exchange)
        self.send(exchange, endpoint, fresh=True)

    def left(self, exchange: Exchange) -> None:
        """The client is gone before its answer's end, at whatever stage."""
        self.counters.left += 1
        upstream, exchange.upstream = exchange.upstream, None
        if upstream is not None:
            if exchange.events >= 0:
                exchange.events = upstream.events
            upstream.drop()
        self.dispatcher.left(exchange, self.now())
        self.log_end(exchange, CLIENT_GONE)
        self.apply_effects()

    def log_end(self, exchange: Exchange, outcome: int | str) -> None:
        """A request has come to an end that is not the usual one. Its body is not kept for its line."""
        exchange.body = b""
        if self.access_log is not None:
            self.access_log.record(exchange, outcome, self.now())

    def apply_effects(self) -> None:
        """Carry out what the dispatcher decided about waiting requests. An error of ours cuts off the request it happened
        with and is raised; the others follow in the loop's next turn.
        """
        effects = self.dispatcher.effects
        while effects:
            exchange, refusal = effects.popitem(last=False)
            assert isinstance(exchange, Exchange)
            try:
                if refusal is not None:
                    exchange.client.refuse(exchange, refusal)
                    continue
                assert exchange.endpoint is not None, "started without an endpoint"
                self.send(exchange, exchange.endpoint)
            except BaseException as error:
                exchange.client.failed(error)
                self._effects_soon()
                raise

    def _effects_soon(self) -> None:
        self.loop.call_soon(self.apply_effects)
