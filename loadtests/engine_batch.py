"""Continuous batching as a plain model: N slots, a waiting line, prefill and decode at given rates.

It knows no sockets, no loop and no faults. A generation takes a slot when one is free (first come, first served),
spends `input_tokens / prefill_tokens_per_s` on its prompt, gives its first token at the end of that, then one token
every `1 / decode_tokens_per_s` seconds, stretched by `1 + slowdown x (running - 1) / (slots - 1)` when the batch is
fuller. A slot that falls free at t is taken by the next generation at t, even when `advance` is called later, so timing
does not depend on how often it is called. Moments are the caller's clock, in seconds; a heap holds one due moment for
each running generation.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast one replica is. Tokens per second are for one request; `slowdown` 1.0 means half as fast with all
    slots taken.
    """

    slots: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    slowdown: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """One request in the engine. `started_s` None = still waiting for a slot; `tokens` = given so far."""

    input_tokens: int
    output_tokens: int
    arrived_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    tokens: int = 0

    @property
    def finished(self) -> bool:
        """All tokens given."""
        return self.tokens >= self.output_tokens


class Batch:
    """The slots and the waiting line of one engine."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.speed = 1.0
        self._running: dict[Generation, None] = {}
        self._waiting: OrderedDict[Generation, None] = OrderedDict()
        self._due: list[tuple[float, int, Generation]] = []
        self._order = 0

    @property
    def running(self) -> int:
        """Generations that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Generations in the waiting line."""
        return len(self._waiting)

    @property
    def tokens_held(self) -> int:
        """Prompt and answer tokens of all running generations: what the KV cache holds."""
        return sum(generation.input_tokens + generation.tokens for generation in self._running)

    def generations(self) -> tuple[Generation, ...]:
        """All that are in the engine, running ones first, each group in order of arrival."""
        return (*self._running, *self._waiting)

    def add(self, generation: Generation, now: float) -> None:
        """Take a request in; it runs at once if a slot is free."""
        self._waiting[generation] = None
        self._fill(now)

    def leave(self, generation: Generation, now: float) -> bool:
        """The client left: free the slot or the place in line at once. False when it was not there any more."""
        if generation in self._waiting:
            del self._waiting[generation]
            return True
        if generation not in self._running:
            return False
        del self._running[generation]
        self._fill(now)
        return True

    def next_due(self) -> float | None:
        """When `advance` next has something to give, None when nothing runs."""
        while self._due and self._due[0][2] not in self._running:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def advance(self, now: float) -> dict[Generation, int]:
        """Give all tokens due by `now`: how many for each generation, in the order in which they fell due."""
        given: dict[Generation, int] = {}
        while (due := self.next_due()) is not None and due <= now:
            generation = heappop(self._due)[2]
            generation.tokens += 1
            given[generation] = given.get(generation, 0) + 1
            if generation.tokens == 1:
                generation.first_token_s = due
            if generation.finished:
                del self._running[generation]
                self._fill(due)
            else:
                self._push(generation, due + self._interval_s())
        return given

    def shift(self, seconds: float) -> None:
        """Put off everything due: the engine stood still for that long."""
        self._due = [(due + seconds, order, generation) for due, order, generation in self._due]
        heapify(self._due)

    def _interval_s(self) -> float:
        rates = self.rates
        stretch = 1 + rates.slowdown * (len(self._running) - 1) / max(1, rates.slots - 1)
        return stretch / (rates.decode_tokens_per_s * self.speed)

    def _fill(self, now: float) -> None:
        while self._waiting and len(self._running) < self.rates.slots:
            generation, _ = self._waiting.popitem(last=False)
            generation.started_s = now
            self._running[generation] = None
            self._push(generation, now + generation.input_tokens / (self.rates.prefill_tokens_per_s * self.speed))

    def _push(self, generation: Generation, due: float) -> None:
        self._order += 1
        heappush(self._due, (due, self._order, generation))
