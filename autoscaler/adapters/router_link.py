"""Both wires over HTTP: intent tables to every router, load reports from them.

It knows no decision. `HttpRouterLink` sends the whole merged table of all policies whenever it changed, and again
every few seconds or while something drains (the answer is the acknowledgement); a router that does not answer has
acknowledged nothing and is asked again at the next tick. Source = a name of this controller's own, so that two of them
can share a router; epoch = the start counter of the history, revision = a counter of this process; a router that holds
more (a lost history) makes us go on at its epoch + 1. Each of N routers may use 1/N of every limit. `HttpLoadSource`
reads one report per router and tick; what is new in it is `load_cursor`'s business. `watch` is the standing request
that only wakes the loop.

Routers are those named at the start. One that does not answer is taken for silent, not for gone: it may still have
streams on a replica, so a drain waits for it until the policy's `drain.timeoutSeconds`, and what it counted is missing,
so nothing is scaled down. When a router is gone for good, start the controller again without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog

from autoscaler.adapters.load_cursor import LoadMerger
from autoscaler.adapters.table import StartTimes, table
from autoscaler.errors import BadInput, BadReport, RouterUnreachable, StaleRevision
from autoscaler.model import Now, Replica, ReplicaState, Sample
from autoscaler.policy import ScalingPolicy
from autoscaler.wires import AckWire, ReportWire, TableWire, encode_table, parse_ack, parse_report

REQUEST_BOUND_S = 2.0
"""Routers are on loopback or in the same cluster; one that takes longer is as good as silent, and the tick goes on."""
REPEAT_EVERY_S = 1.0
"""A router that was restarted with nothing is without a table for one tick at most."""
WATCH_S = 20.0
WATCH_AGAIN_S = 0.2
WATCH_AFTER_ERROR_S = 1.0

log = structlog.get_logger(part="router_link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes the tables: `source` names the controller among all that share a router, `epoch` its start."""

    source: str
    epoch: int


class HttpRouterLink:
    """`ports.RouterLink` for routers at fixed admin URLs, which are told `author`'s tables; `start_times` gives what
    becomes Retry-After. `token` is what the routers' admin API asks for, None = nothing.
    """

    def __init__(
        self, routers: Sequence[str], author: Author, start_times: StartTimes, token: str | None = None
    ) -> None:
        self._routers = tuple(admin_url(router) for router in routers)
        self._source, self._epoch = author.source, author.epoch
        self._token = token
        self._revision = 0
        self._start_times = start_times
        self._session: aiohttp.ClientSession | None = None
        self._table: TableWire | None = None
        self._acks: dict[str, AckWire | None] = {}
        self._errors: dict[str, str] = {}
        self._sent_s = float("-inf")

    async def publish(
        self, policies: Sequence[ScalingPolicy], replicas: Mapping[str, Sequence[Replica]], now: Now
    ) -> Mapping[str, bool]:
        """Send the table where it is due. Returns replica id -> drained on every router; all False while one is not
        reached.
        """
        fresh = table(self._source, policies, replicas, self._start_times, now)
        changed = self._renew(msgspec.structs.replace(fresh, share=1.0 / max(1, len(self._routers))))
        draining = any(r.state is ReplicaState.DRAINING for rows in replicas.values() for r in rows)
        silent = any(self._acks.get(router) is None for router in self._routers)
        if changed or draining or silent or now.monotonic_s - self._sent_s >= REPEAT_EVERY_S:
            self._sent_s = now.monotonic_s
            acks = await asyncio.gather(*(self._put(router) for router in self._routers))
            if any(isinstance(ack, StaleRevision) for ack in acks):
                self._overtake([ack.held for ack in acks if isinstance(ack, StaleRevision)])
                acks = await asyncio.gather(*(self._put(router) for router in self._routers))
            answers = dict(zip(self._routers, acks, strict=True))
            self._acks = {router: ack if isinstance(ack, AckWire) else None for router, ack in answers.items()}
            self._errors = {router: str(ack) for router, ack in answers.items() if not isinstance(ack, AckWire)}
        return {r.id: self._drained(r.id) for rows in replicas.values() for r in rows}

    def in_flight(self) -> Mapping[str, int]:
        """Requests in flight per replica, over all routers, as last acknowledged; a replica nobody spoke of is left
        out.
        """
        total: dict[str, int] = {}
        for ack in self._acks.values():
            for name, endpoint in (ack.endpoints if ack is not None else {}).items():
                total[name] = total.get(name, 0) + endpoint.in_flight
        return total

    def unacknowledged(self) -> Mapping[str, str]:
        """Routers that did not take the last table, and why; empty before the first was sent."""
        return dict(self._errors)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _renew(self, fresh: TableWire) -> bool:
        """Keep the new table under a new revision if it says anything else than the last one."""
        held = self._table
        said = (fresh.share, fresh.models, fresh.endpoints)
        if held is not None and (held.share, held.models, held.endpoints) == said:
            return False
        self._revision += 1
        self._table = msgspec.structs.replace(fresh, epoch=self._epoch, revision=self._revision)
        return True

    def _overtake(self, held: Sequence[tuple[int, int]]) -> None:
        """The source is our state folder's own and we hold its lock, so a newer table than ours is of a controller that
        is gone: go on above it.
        """
        assert self._table is not None
        self._epoch = max(epoch for epoch, _ in held) + 1
        self._table = msgspec.structs.replace(self._table, epoch=self._epoch, revision=self._revision)
        log.warning("a router held a newer table", held=list(held), going_on_at=self._epoch)

    def _drained(self, replica: str) -> bool:
        """Drained everywhere: a router that did not answer has not said so, one that does not list it has nothing of
        it.
        """
        if not self._routers or self._table is None:
            return False
        applied = (self._table.epoch, self._table.revision)
        for router in self._routers:
            ack = self._acks.get(router)
            if ack is None or ack.applied != applied:
                return False
            row = ack.endpoints.get(replica)
            if row is not None and not row.drained:
                return False
        return True

    async def _put(self, router: str) -> AckWire | StaleRevision | RouterUnreachable:
        assert self._table is not None
        if self._session is None:
            self._session = _session(REQUEST_BOUND_S, self._token)
        headers = {"content-type": "application/json"}
        try:
            url = f"{router}/admin/v1/endpoints"
            async with self._session.put(url, data=encode_table(self._table), headers=headers) as answer:
                body = await answer.read()
                status = answer.status
            if status in (409, 422):  # 422: our pair with another body, left by a controller whose history was lost
                return StaleRevision(held_by(body, self._source))
            if status != 200:
                raise BadReport(f"status {status}: {body[:300].decode('utf-8', 'replace')}")
            return parse_ack(body)
        except (aiohttp.ClientError, TimeoutError, OSError, BadReport) as error:
            if self._acks.get(router) is not None or router not in self._acks:
                log.warning("table not acknowledged", router=router, error=_text(error))
            return RouterUnreachable(_text(error))


class HttpLoadSource:
    """`ports.LoadSource` over the same routers, and the standing requests that wake the loop."""

    def __init__(self, routers: Sequence[str], token: str | None = None) -> None:
        self._routers = tuple(admin_url(router) for router in routers)
        self._token = token
        self._merger = LoadMerger(self._routers)
        self._session: aiohttp.ClientSession | None = None
        self._seqs: dict[str, int] = {}

    async def read(self, policy: ScalingPolicy, now: Now) -> Sample | None:
        """What every router counted since the last read of this policy, summed; None when none answered."""
        reports = await asyncio.gather(*(self._get(router) for router in self._routers))
        return self._merger.merge(policy.key, policy.spec.model, dict(zip(self._routers, reports, strict=True)), now)

    async def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a router has something that cannot wait. Runs until cancelled."""
        async with _session(WATCH_S + REQUEST_BOUND_S, self._token) as session, asyncio.TaskGroup() as group:
            for router in self._routers:
                group.create_task(self._watch(session, router, wake))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _watch(self, session: aiohttp.ClientSession, router: str, wake: Callable[[], None]) -> None:
        while True:
            after = self._seqs.get(router, 0)
            pause_s = WATCH_AGAIN_S
            try:
                url = f"{router}/admin/v1/load?after={after}&wait_s={WATCH_S:g}"
                async with session.get(url) as answer:
                    report = parse_report(await answer.read())
                if report.seq != after:  # less than `after` is a new boot
                    self._seqs[router] = report.seq
                    wake()
            except (aiohttp.ClientError, TimeoutError, OSError, BadReport):
                pause_s = WATCH_AFTER_ERROR_S  # the tick reports it; here it only must not spin
                self._seqs.pop(router, None)  # it may come back as a new boot that counts from zero
            await asyncio.sleep(pause_s)

    async def _get(self, router: str) -> ReportWire | None:
        if self._session is None:
            self._session = _session(REQUEST_BOUND_S, self._token)
        try:
            async with self._session.get(f"{router}/admin/v1/load") as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise BadReport(f"status {answer.status}")
            return parse_report(body)
        except (aiohttp.ClientError, TimeoutError, OSError, BadReport):
            return None


def admin_url(text: str) -> str:
    """`http://HOST:PORT` without a slash at its end. Raises `BadInput`."""
    parts = urlsplit(text.rstrip("/"))
    port = None
    with suppress(ValueError):
        port = parts.port
    if parts.scheme != "http" or not parts.hostname or port is None or parts.path or parts.query:
        raise BadInput(f"--router: {text!r} is not a router's admin address; allowed is http://HOST:PORT")
    return text.rstrip("/")


def held_by(body: bytes, source: str) -> tuple[int, int]:
    """The (epoch, revision) that a 409 says the router holds: `held` or `applied`, as a pair or by source. Raises
    `BadReport`.
    """
    try:
        document = msgspec.json.decode(body)
        found = document.get("held", document.get("applied"))
        if isinstance(found, dict):
            found = found[source]
        return int(found[0]), int(found[1])
    except (msgspec.DecodeError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise BadReport(f"409 without the held epoch and revision: {body[:200].decode('utf-8', 'replace')}") from error


def _session(bound_s: float, token: str | None) -> aiohttp.ClientSession:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=bound_s), headers=headers)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
