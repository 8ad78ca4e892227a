"""The admin port: intent tables in, load reports and metrics out.

| path                          | does                                                                           |
|-------------------------------|--------------------------------------------------------------------------------|
| PUT /admin/v1/endpoints       | applies a whole table: 200 with the answer to it, 400 it is bad, 409 stale,    |
|                               | 413 too large, 422 another body under the pair in force                        |
| GET /admin/v1/endpoints       | the tables in force and the answer to each                                     |
| GET /admin/v1/load            | the load report; with `after` and `wait_s` once `seq` is past `after`, or late |
| GET /metrics, /health, /ready | for Prometheus and balancers; /ready: 503 while draining and before any table  |

It runs on the loop of the data path, so nothing here may take long: a table is applied at once and written to disk in a
thread. Errors have one JSON form, `{"error": {"message", "type", "code"}}`; 409 and 422 add `held`, the (epoch,
revision) in force. A waiting client that leaves is noticed and its wait ends; waits are bounded in number and time,
above the bound the answer comes at once.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiohttp import web

from router.core.dispatcher import Dispatcher
from router.errors import BadTable, RouterError, StaleTable, TableMismatch
from router.model import IntentTable, TableAck, parse_table
from router.shell.discovery.document import problems, same_form
from router.shell.predecessors import Predecessors

WAIT_S_MAX = 60.0
"""Longest wait for a load report; above it intermediaries give up first."""

WAITERS_MAX = 64
"""Controllers that wait at once. One router has one or two; more is a mistake that must not use up connections."""

TABLE_BYTES_MAX = 16 << 20
"""Largest table, about 50,000 endpoints."""

JSON = "application/json"

log = structlog.get_logger(part="admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Wakes:
    """Who waits for the next wake of the dispatcher; `wake` is its `on_wake`."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def wake(self) -> None:
        """Let all waiters look again."""
        for waiter in tuple(self._waiting):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, looked: Callable[[], bool], wait_s: float) -> None:
        """Until `looked()` is True or the time is up; at once when too many wait already."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not looked() and len(self._waiting) < WAITERS_MAX:
            waiter = loop.create_future()
            self._waiting.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return
            finally:
                self._waiting.discard(waiter)


class Admin:
    """The handlers. `stored` is awaited after each table that changed something (None = tables are not kept on
    disk); `at_work`: connections on which a request is being answered."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        metrics: Callable[[], tuple[bytes, str]],
        token: str | None = None,
        stored: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._token = token
        self._stored = stored
        self._closing = False
        self._only: tuple[str, int] | None = None
        self.at_work: set[asyncio.Transport | None] = set()
        self.predecessors = Predecessors(token)
        self.wakes = Wakes()
        dispatcher.on_wake = self.wakes.wake

    def application(self) -> web.Application:
        """The routes, behind the token and the error form."""
        application = web.Application(client_max_size=TABLE_BYTES_MAX, middlewares=[self._in_error_form])
        application.router.add_put("/admin/v1/endpoints", self._guarded(self.put_endpoints))
        application.router.add_get("/admin/v1/endpoints", self._guarded(self.get_endpoints))
        application.router.add_get("/admin/v1/load", self._guarded(self.get_load))
        application.router.add_get("/metrics", self._guarded(self.get_metrics))
        application.router.add_get("/health", self.get_health)
        application.router.add_get("/ready", self.get_ready)
        return application

    def serve_only(self, place: tuple[str, int]) -> None:
        """Requests that come to another address than `place` are sent away: a successor serves there."""
        self._only = place[:2]

    def close(self) -> None:
        """Answer everybody who waits; later requests do not wait."""
        self._closing = True
        self.wakes.wake()

    async def put_endpoints(self, request: web.Request) -> web.StreamResponse:
        """Apply one table."""
        body = await request.read()
        table = parsed(body)
        now = asyncio.get_running_loop().time()
        before = self._dispatcher.tables().get(table.source)
        try:
            answer = self._dispatcher.apply(table, now)
        except (StaleTable, TableMismatch) as error:
            held = error.held if isinstance(error, StaleTable) else (table.epoch, table.revision)
            log.warning("table refused", source=table.source, given=[table.epoch, table.revision], held=held)
            return problem(error.status, str(error), held=held)
        after = self._dispatcher.tables().get(table.source)
        if after != before:
            self._tell(before, table)
            if self._stored is not None:
                await asyncio.shield(self._stored())  # the client may leave, the write goes on
        if self.predecessors:
            answer = await self.predecessors.with_theirs(body, answer)
        return encoded(answer)

    async def get_endpoints(self, request: web.Request) -> web.StreamResponse:
        """What is in force."""
        tables = self._dispatcher.tables()
        answers = {source: self._dispatcher.acknowledgement(source) for source in tables}
        return encoded({"version": 1, "tables": tables, "acknowledged": answers})

    async def get_load(self, request: web.Request) -> web.StreamResponse:
        """Wire 1. `after` of another boot (larger than `seq`) is answered at once, so that the reader sees the new
        boot."""
        after = number(request, "after", None)
        wait_s = number(request, "wait_s", 0.0)
        dispatcher = self._dispatcher
        if after is not None and wait_s:
            await self.wakes.wait(
                lambda: self._closing or self._only is not None or dispatcher.seq != after, min(wait_s, WAIT_S_MAX)
            )
        return encoded(dispatcher.report(asyncio.get_running_loop().time()))

    async def get_metrics(self, request: web.Request) -> web.StreamResponse:
        """The Prometheus page."""
        page, content_type = self._metrics()
        return web.Response(body=page, headers={"content-type": content_type})

    async def get_health(self, request: web.Request) -> web.StreamResponse:
        """200 while the process lives."""
        return encoded({"status": "alive"})

    async def get_ready(self, request: web.Request) -> web.StreamResponse:
        """200 once there is a table and until the router drains. No endpoints is ready: requests wake them."""
        if not self._dispatcher.accepting:
            return encoded({"status": "draining"}, 503)
        if not self._dispatcher.has_table:
            return encoded({"status": "no table yet"}, 503)
        return encoded({"status": "ready"})

    def _tell(self, before: IntentTable | None, table: IntentTable) -> None:
        """One line per table that changed what is in force, with what changed; a new revision alone is debug."""
        old, new = told(before), told(table)
        changed = {id_: intent for id_, intent in new.items() if old.get(id_) != intent}
        gone = sorted(old.keys() - new.keys())
        level = log.info if before is None or changed or gone else log.debug
        level(
            "table applied",
            source=table.source,
            epoch=table.epoch,
            revision=table.revision,
            models=len(table.models),
            endpoints=len(table.endpoints),
            changed=dict(list(changed.items())[:20]),
            gone=gone[:20],
        )

    def _guarded(self, handler: Handler) -> Handler:
        """Behind the bearer token, if there is one."""
        if self._token is None:
            return handler
        wanted = f"Bearer {self._token}".encode()

        async def checked(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, wanted):
                answer = problem(401, "Authorization: missing or wrong; allowed: Bearer and the admin token")
                answer.headers["WWW-Authenticate"] = "Bearer"
                return answer
            return await handler(request)

        return checked

    @web.middleware
    async def _in_error_form(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Expected refusals as JSON; anything else is a bug, which aiohttp answers with 500 and logs."""
        if self._elsewhere(request):
            answer = problem(503, "this worker was replaced; ask again on a new connection")
            answer.force_close()
            return answer
        transport = request.transport
        self.at_work.add(transport)
        try:
            done = await handler(request)
            if self._elsewhere(request):  # since it began
                done.force_close()
            return done
        except RouterError as error:
            return problem(error.status, str(error))
        except web.HTTPRequestEntityTooLarge:
            return problem(413, f"body: too large; allowed: at most {TABLE_BYTES_MAX} bytes")
        except web.HTTPException as error:
            answer = problem(error.status, f"{request.method} {request.path}: {error.reason}")
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
        finally:
            self.at_work.discard(transport)

    def _elsewhere(self, request: web.Request) -> bool:
        """Did the request come to an address that is a successor's now."""
        if self._only is None or request.transport is None:
            return False
        return bool(request.transport.get_extra_info("sockname")[:2] != self._only)


def told(table: IntentTable | None) -> dict[str, str]:
    """What a table says of each endpoint, in a word."""
    endpoints = table.endpoints if table else ()
    return {endpoint.id: "starting" if endpoint.starting else endpoint.intent for endpoint in endpoints}


def parsed(body: bytes) -> IntentTable:
    """The table in a request body. Raises `BadTable` that names each field, its value and what is allowed."""
    try:
        return parse_table(body)
    except BadTable as error:
        try:
            found = problems(msgspec.json.decode(body), unknown_fields=False)
        except (msgspec.DecodeError, RecursionError):
            found = []
        raise BadTable("; ".join(found[:20]) or same_form(str(error))) from error


def number(request: web.Request, name: str, default: float | None) -> float | None:
    """A number of the query, not below 0. Raises `BadTable` (400)."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadTable(f"{name}: {text[:40]!r}; allowed: a number of 0 or more")
    return value


def encoded(value: TableAck | object, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=JSON)


def problem(status: int, message: str, held: tuple[int, int] | None = None) -> web.Response:
    """A JSON refusal."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    document: dict[str, object] = {"error": {"message": message, "type": kind, "code": status}}
    if held is not None:
        document["held"] = held
    return encoded(document, status)
