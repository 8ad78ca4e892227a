"""Runs the batching model in real time: one timer for the whole engine, one event for each request that waits, one log
line at its end.

It owns the batch and the faults and knows no HTTP. The timer stands at the next token due; when it fires, all tokens
due are given and only the requests concerned are woken (a request that is not streamed only when it is finished). A
generation is logged when it ends in the batch, not when its answer is written, so the log says what the engine
computed: that is what "at most one running generation per request id" is checked against.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

import orjson

from loadtests.engine_batch import Batch, Generation
from loadtests.engine_faults import Faults

CORE_DEATH_S = 0.1
"""From the death of the process for the model to the end of the engine, as vLLM."""
TIMER_SLACK_S = 0.001
"""Tokens due within a millisecond are given now: uvloop's clock counts whole ones, and a timer that fires early
would spin.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """One request's place in the engine. `woken` is set when there is something new to send; `stopped`: why the engine
    gave it up, "abort" (it went to sleep) or "error" (its process for the model died).
    """

    generation: Generation
    request_id: str
    client_request_id: str | None
    stream: bool
    stopped: str | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def tokens(self, sent: int) -> int:
        """Wait until more than `sent` tokens are there (for a request not streamed: all); returns how many there
        are. Fewer when the engine gave it up.
        """
        while self.generation.tokens <= sent and self.stopped is None:
            self.woken.clear()
            await self.woken.wait()
        return self.generation.tokens


@dataclass(slots=True, kw_only=True)
class Totals:
    """Counters since the start."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0


class EngineDriver:
    """The batch on a real clock. `epoch_s` turns the loop's time into epoch seconds. `awake`: set while requests are
    taken, neither frozen nor asleep; `emptied`: set while nothing is in the engine; `leave_process` ends the process;
    `log_starts`: log also what is taken in, so that the log of a killed engine shows what it had begun.
    """

    def __init__(self, batch: Batch, faults: Faults, log: TextIO | None, epoch_s: Callable[[float], float]) -> None:
        self.batch = batch
        self.totals = Totals()
        self.log_starts = False
        self.awake = asyncio.Event()
        self.emptied = asyncio.Event()
        self.emptied.set()
        self.leave_process: Callable[[int], object] = os._exit
        self._loop = asyncio.get_running_loop()
        self._epoch_s = epoch_s
        self._log = log
        self._tickets: dict[Generation, Ticket] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_due_s = 0.0
        self._frozen_since_s: float | None = None
        self.faults = Faults()
        self.obey(faults)

    @property
    def now_epoch_s(self) -> float:
        """Epoch seconds of now."""
        return self._epoch_s(self._loop.time())

    def obey(self, faults: Faults) -> None:
        """New faults from now on."""
        now = self._loop.time()
        before, self.faults = self.faults, faults
        self.batch.speed = faults.speed
        if faults.freeze:
            if self._frozen_since_s is None:
                self._frozen_since_s = now
        elif self._frozen_since_s is not None:
            self.batch.shift(now - self._frozen_since_s)
            self._frozen_since_s = None
        if faults.asleep:
            self._give_up("abort")
        if faults.core_dead and not before.core_dead:
            self._give_up("error")
            self._loop.call_later(CORE_DEATH_S, self.leave_process, 0)
        if faults.freeze or faults.asleep:
            self.awake.clear()
        else:
            self.awake.set()
        self._arm()

    def _give_up(self, why: str) -> None:
        """All that is in the engine ends now, unfinished."""
        now = self._loop.time()
        for ticket in reversed(list(self._tickets.values())):  # the last first: those that wait must not be started
            self.batch.leave(ticket.generation, now)
            ticket.stopped = why
            self._ended(ticket, aborted=True)
            ticket.woken.set()

    def submit(self, ticket: Ticket) -> None:
        """Take a request in."""
        self._tickets[ticket.generation] = ticket
        if self.log_starts and self._log is not None:
            row = {"request_id": ticket.request_id, "client_request_id": ticket.client_request_id}
            self._log.write(orjson.dumps({**row, "begun_s": self.now_epoch_s}).decode() + "\n")
        self.emptied.clear()
        self.batch.add(ticket.generation, self._loop.time())
        self._arm()

    def leave(self, ticket: Ticket) -> None:
        """Its client left: abort it now. Nothing happens to one that has finished."""
        if self.batch.leave(ticket.generation, self._loop.time()):
            self._ended(ticket, aborted=True)
            self._arm()

    def die(self) -> None:
        """End the process at once, as a crash does; what ran is logged as aborted."""
        for ticket in list(self._tickets.values()):
            self._ended(ticket, aborted=True)
        self.leave_process(1)

    def _arm(self) -> None:
        due = None if self.faults.freeze else self.batch.next_due()
        if self._timer is not None:
            if due is not None and self._timer_due_s == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            # Kept here: what uvloop returns for a moment that has passed is a plain handle, which knows no `when`.
            self._timer_due_s = due
            self._timer = self._loop.call_at(due, self._advance)

    def _advance(self) -> None:
        self._timer = None
        for generation, count in self.batch.advance(self._loop.time() + TIMER_SLACK_S).items():
            ticket = self._tickets[generation]
            self.totals.generation_tokens += count
            if generation.finished:
                self._ended(ticket, aborted=False)
            if ticket.stream or generation.finished:
                ticket.woken.set()
        self._arm()

    def _ended(self, ticket: Ticket, *, aborted: bool) -> None:
        generation = ticket.generation
        del self._tickets[generation]
        if not self._tickets:
            self.emptied.set()
        self.totals.prompt_tokens += generation.input_tokens if generation.tokens else 0
        if aborted:
            self.totals.aborted += 1
        else:
            self.totals.finished += 1
        if self._log is None:
            return
        end_s = self.now_epoch_s
        row = {
            "request_id": ticket.request_id,
            "client_request_id": ticket.client_request_id,
            "start_s": end_s if generation.started_s is None else self._epoch_s(generation.started_s),
            "end_s": end_s,
            "aborted": aborted,
            "tokens": generation.tokens,
            "stream": ticket.stream,
        }
        self._log.write(orjson.dumps(row).decode() + "\n")
