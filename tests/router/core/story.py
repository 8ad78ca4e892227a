"""A dispatcher with the time in one's hand: what the time stories and the state machine of the routing core are told with."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from router.core.dispatcher import Dispatcher
from router.core.endpoints import SUCCESS, Endpoint
from router.core.refusals import Refusal
from router.core.requests import Request
from router.model import IntentTable, table_from

START_S = 1000.0


class Asked(Request):
    """A request as the shell would hand it over. `fields`: what its client said by header; `key`: of its prompt's beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.patience: float | None = None
        self.key: int | None = None

    @property
    def patience_s(self) -> float | None:
        return self.patience

    def field(self, name: str) -> str | None:
        return self.fields.get(name)

    def prefix_key(self) -> int | None:
        return self.key


def request(asked: str | None = "m", **changes: Any) -> Asked:
    """A request with 10 tokens of prompt that may ask for 16 more, 100 bytes; `changes`: tokens_in, tokens, size, fields,
    patience_s, key.
    """
    made = Asked()
    made.asked = asked
    made.tokens_in = changes.get("tokens_in", 10)
    made.tokens = changes.get("tokens", made.tokens_in + 16)
    made.size = changes.get("size", 100)
    made.fields = changes.get("fields", {})
    made.patience = changes.get("patience_s")
    made.key = changes.get("key")
    return made


def endpoint(name: str, **changes: Any) -> dict[str, Any]:
    """One row of a table's endpoints; the port follows from the name, so equal names have equal addresses."""
    port = 20_000 + sum(map(ord, name)) % 10_000
    return {"id": name, "url": f"http://127.0.0.1:{port}", "model": "m", "limit": 2, **changes}


def table(*endpoints: dict[str, Any], revision: int = 1, **changes: Any) -> IntentTable:
    """A table of the source "test" with the model "m" (alias "alias"); `routing`, `supply` and top-level keys can be changed."""
    model: dict[str, Any] = {"name": "m", "aliases": ["alias"]}
    for key in ("routing", "supply"):
        if key in changes:
            model[key] = changes.pop(key)
    document = {"source": "test", "epoch": 1, "revision": revision, "models": [model], "endpoints": list(endpoints)}
    return table_from({**document, **changes})


def effort(do: Callable[[], object]) -> int:
    """How much Python is run by `do`, in byte codes: what takes longer the more there is of something, without a clock."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


class Story:
    """A dispatcher, its clock, and words for what happens to it. Every endpoint told is probed ready unless it starts."""

    def __init__(self, *endpoints: dict[str, Any], seed: int = 1, **changes: Any) -> None:
        self.now = START_S
        self.wakes = 0
        self.running: Any = None
        self.dispatcher = Dispatcher(router="r", boot="b", random=random.Random(seed).random, now=self.now)
        self.dispatcher.on_wake = self._woken
        self.revision = 0
        if endpoints or changes:
            self.tell(*endpoints, **changes)

    def _woken(self) -> None:
        self.wakes += 1

    def tell(self, *endpoints: dict[str, Any], ready: bool = True, **changes: Any) -> None:
        """The next revision of the whole table."""
        self.revision += 1
        self.dispatcher.apply(table(*endpoints, revision=self.revision, **changes), self.now)
        if ready:
            for told in endpoints:
                if not told.get("starting"):
                    self.dispatcher.probed(told["id"], True, self.now)

    def later(self, seconds: float) -> None:
        """Time passes and the timer fires."""
        self.now += seconds
        self.dispatcher.expired(self.now)

    def arrive(self, asked: str | None = "m", **changes: Any) -> tuple[Asked, Endpoint | Refusal | str]:
        """A request comes in; gives it and what the dispatcher says."""
        made = request(asked, **changes)
        return made, self.dispatcher.arrived(made, self.now)

    def sent(self, asked: str | None = "m", **changes: Any) -> Asked:
        """A request that must get an endpoint at once."""
        made, verdict = self.arrive(asked, **changes)
        assert isinstance(verdict, Endpoint), verdict
        return made

    def end(self, made: Request, outcome: int = SUCCESS) -> None:
        """Its answer reached its end."""
        self.dispatcher.finished(made, outcome, self.now)

    def fail(self, made: Request, outcome: int, *, sent: bool) -> Endpoint | Refusal | str:
        """Its attempt failed before a byte of an answer."""
        return self.dispatcher.failed(made, outcome, self.now, sent=sent)

    def effects(self) -> tuple[list[Any], list[tuple[Any, Refusal]]]:
        """What came of waiting requests since the last look: started and refused, each in order."""
        started: list[Any] = []
        refused: list[tuple[Any, Refusal]] = []
        while self.dispatcher.effects:
            made, refusal = self.dispatcher.effects.popitem(last=False)
            if refusal is None:
                started.append(made)
            else:
                refused.append((made, refusal))
        return started, refused

    def started(self) -> list[Any]:
        """Requests that came out of the queue since the last look."""
        return self.effects()[0]

    def refused(self) -> list[Refusal]:
        """Refusals of waiting requests since the last look."""
        return [refusal for _, refusal in self.effects()[1]]

    def at(self, name: str) -> Endpoint:
        """The endpoint called `name`."""
        return self.dispatcher.endpoints[name]
