"""The soak's controller: one table for both routers, sent again and again under an epoch and a revision, and their answers.

It does what a real one does and nothing cleverer: one writer, the whole table each time, a new revision when it changed,
the same pair when not. `told()` returns once both routers have acknowledged everything that was changed before the call.
Answers that a router must not give (a stale table taken, a good one refused) are filed as problems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from loadtests.soak_requests import MODEL

TICK_S: Final = 0.25
ANSWER_S: Final = 15.0
SOURCE: Final = "soak"
ROUTING: Final = {
    "queue": {"max_requests": 24, "timeout_s": 2.0},
    "timeouts": {"connect_s": 1.0, "first_byte_s": 2.0, "between_bytes_s": 2.0, "total_s": 40.0},
}


@dataclass(slots=True, kw_only=True)
class Row:
    """What the table says of one endpoint; `intent` absent = the table omits it."""

    id: str
    url: str
    limit: int
    intent: str = "active"

    def document(self) -> dict[str, Any]:
        """Its row on the wire."""
        said: dict[str, Any] = {"id": self.id, "url": self.url, "model": MODEL, "engine": "vllm"}
        return {**said, "intent": self.intent, "limit": self.limit, "capacity": self.limit}


class Controller:
    """`admins`: admin URLs of the routers; `problem`: where it files what must not happen."""

    def __init__(self, session: aiohttp.ClientSession, admins: list[str], problem: Callable[[str], None]) -> None:
        self.rows: dict[str, Row] = {}
        self.idempotent = False
        self._session = session
        self._admins = admins
        self._problem = problem
        self._epoch = 1
        self._revision = 0
        self._body: dict[str, Any] = {}
        self._wanted = 0
        self._done = 0
        self._changed = asyncio.Event()
        self._round = asyncio.Condition()
        self._answers: list[dict[str, Any]] = [{} for _ in admins]

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._send()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def told(self) -> None:
        """Wait until both routers hold everything that was changed before."""
        self._wanted += 1
        wanted = self._wanted
        self._changed.set()
        async with self._round:
            await self._round.wait_for(lambda: self._done >= wanted)

    def drained(self, id_: str) -> bool:
        """Did both routers say drained in their last answers."""
        return all(answer.get(id_, {}).get("drained") is True for answer in self._answers)

    def restart(self) -> None:
        """A controller that starts again: a higher epoch, revisions from 1."""
        self._epoch += 1
        self._revision = 0
        self._body = {}

    async def send_stale(self) -> None:
        """The table of before, late on its way: both must refuse it with 409 and say what they hold."""
        await self.told()
        epoch, revision = self._epoch, self._revision
        pair = (epoch, revision - 1) if revision else (epoch - 1, 1_000)
        await self._refused(pair, {**self._body, "endpoints": []}, 409)

    async def send_other_body(self) -> None:
        """The pair in force with another body: both must refuse it with 422."""
        await self.told()
        await self._refused((self._epoch, self._revision), {**self._body, "endpoints": []}, 422)

    async def _refused(self, pair: tuple[int, int], body: dict[str, Any], wanted: int) -> None:
        for admin in self._admins:
            status, answer = await self._put(admin, pair, body)
            # A newer table may have been sent meanwhile, then the pair in force has become a stale one.
            if status != wanted and not (status == 409 and (self._epoch, self._revision) > pair):
                self._problem(f"a table that is to be refused with {wanted} ({pair}) got {status}: {answer}")

    async def _send(self) -> None:
        self._changed.clear()
        wanted = self._wanted
        body = self._document()
        if body != self._body:
            self._body = body
            self._revision += 1
        pair = (self._epoch, self._revision)
        for number, admin in enumerate(self._admins):
            status, answer = await self._put(admin, pair, body)
            if status != 200 or answer.get("applied") != list(pair):
                self._problem(f"table {pair} got {status} from router {number}: {answer}")
            else:
                self._answers[number] = answer["endpoints"]
        async with self._round:
            self._done = max(self._done, wanted)
            self._round.notify_all()

    def _document(self) -> dict[str, Any]:
        routing = {**ROUTING, "retries": {"idempotent": self.idempotent, "max_attempts": 3}}
        return {
            "version": 1,
            "source": SOURCE,
            "share": 1 / len(self._admins),
            "models": [{"name": MODEL, "routing": routing, "supply": {"eta_s": 1.0}}],
            "endpoints": [row.document() for row in self.rows.values() if row.intent != "absent"],
        }

    async def _put(self, admin: str, pair: tuple[int, int], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        document = {**body, "epoch": pair[0], "revision": pair[1]}
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._session.put(f"{admin}/admin/v1/endpoints", json=document) as said,
            ):
                return said.status, await said.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return 0, {"error": repr(error)}
