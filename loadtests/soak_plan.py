"""What the soak does, as values: who asks what and how, and what goes wrong when. A pure function of the seed.

The schedule's clock is the number of requests begun, not seconds: "after request 731 kill slot 3". So the same seed
gives the same requests and the same faults between the same requests on a fast machine and on a slow one; which request
meets which replica, and hence its outcome, still depends on timing. This module knows no process, no socket and no clock.

A visit is one client connection to one router with the requests that it carries, one after the other or pipelined.
Each slot of the pool runs through its own row of faults, each with a beginning and an end; no two overlap in a slot, and
at most `TROUBLED_MAX` slots are in one at a time, except in an outage, which takes most of the pool.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SLOTS = 8
ROUTERS = 2
LIMITS = (4, 4, 4, 4, 3, 3, 3, 5)
"""Limit of each slot over both routers. Odd ones are there for the contract's N - 1 (`max(1, round(limit x share))`)."""

TROUBLED_MAX = 4
REQUESTS_PER_FAULT = 22.0
"""Mean distance of two faults, in requests: with a mean length of 160 about half of the pool is in trouble."""

OUTAGE_EVERY = 4000
"""Mean distance of two outages, in requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """How a client goes away before the end. `after_s` seconds after it sent, or after `events` of its stream when that
    is sooner; `how`: `close` (in order), `abort` (reset), `half` (closes its sending side), `body` (inside its body).
    """

    after_s: float
    events: int | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. `kind`: `chat`, `text`, `unknown` (a model nobody has), `page` (GET /v1/models) or `bad` (not HTTP);
    `words` of prompt and `padding` bytes more of body; `named`: with an x-request-id of the client's own; `pieces`: the
    request is sent in this many; `slow`: it reads a little at a time; `expect`: it waits for 100 Continue.
    """

    number: int
    kind: str
    stream: bool
    tokens: int
    words: int
    usage: bool = True
    padding: int = 0
    named: bool = True
    pieces: int = 1
    slow: bool = False
    expect: bool = False
    chunked: bool = False
    leave: Leave | None = None

    @property
    def runs(self) -> bool:
        """May it become a generation."""
        return self.kind in ("chat", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One client connection. `gap_s`: seconds after the visit before at one request per second (scaled by the rate)."""

    router: int
    gap_s: float
    pause_s: float
    pipelined: bool
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong (or ends) in one slot once `at` requests have begun. Slot -1 = the controller's."""

    at: int
    slot: int
    what: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = "".join(f" {name}={value}" for name, value in self.settings.items())
        return f"after {self.at}: {'controller' if self.slot < 0 else f'slot {self.slot}'} {self.what}{said}"


def visits(seed: int, requests: int) -> Iterator[Visit]:
    """All visits until `requests` requests are asked. Numbers count from 0 in order."""
    rng = random.Random(f"visits {seed}")
    number = 0
    while number < requests:
        pipelined = rng.random() < 0.08
        count = min(rng.randint(2, 5) if pipelined else rng.choice((1, 1, 2, 4, 8, 16)), requests - number)
        asked = []
        for _ in range(count):
            one = _asked(rng, number, pipelined=pipelined)
            asked.append(one)
            number += 1
            if one.leave is not None or one.kind == "bad":
                break  # its connection ends with it
        yield Visit(
            router=rng.randrange(ROUTERS),
            gap_s=rng.expovariate(1.0) * len(asked),
            pause_s=rng.choice((0.0, 0.0, 0.002, 0.03)),
            pipelined=pipelined,
            asked=tuple(asked),
        )


def _asked(rng: random.Random, number: int, *, pipelined: bool) -> Asked:
    """One request. A pipelined one is plain, small and stays."""
    kind = rng.choices(("chat", "text", "unknown", "page", "bad"), (70, 26, 2, 1, 0 if pipelined else 1))[0]
    stream = rng.random() < 0.5
    tokens = rng.choices((rng.randint(1, 12), rng.randint(12, 40), rng.randint(60, 200)), (72, 23, 5))[0]
    words, named, usage = rng.randint(1, 60), rng.random() < 0.8, rng.random() < 0.7
    plain = Asked(number=number, kind=kind, stream=stream, tokens=tokens, words=words, named=named, usage=usage)
    if pipelined or kind in ("page", "bad"):
        return plain
    how = rng.random()
    padding = rng.choices((0, rng.randint(1, 64) << 10, rng.randint(64, 3000) << 10), (93, 6, 1))[0]
    leave = _leave(rng, stream, padding) if rng.random() < 0.12 and plain.runs else None
    return Asked(
        number=number,
        kind=kind,
        stream=stream,
        tokens=tokens,
        words=words,
        named=named,
        usage=usage,
        padding=padding,
        pieces=rng.randint(2, 9) if how < 0.04 else 1,
        slow=0.04 <= how < 0.07,
        expect=0.07 <= how < 0.08,
        chunked=0.08 <= how < 0.11,
        leave=leave,
    )


def _leave(rng: random.Random, stream: bool, padding: int) -> Leave:
    how = rng.choices(("close", "abort", "half", "body"), (45, 30, 10, 15 if padding else 2))[0]
    after_s = rng.choice((0.0, rng.random() * 0.02, rng.random() * 0.3, rng.random() * 1.5))
    return Leave(after_s=after_s, events=rng.randint(1, 10) if stream and rng.random() < 0.5 else None, how=how)


# ---- what goes wrong

_ONE = {
    "kill": 5,
    "stop": 3,
    "hang": 3,
    "drop": 4,
    "cut": 3,
    "error": 2,
    "die": 3,
    "fail": 5,
    "slow": 3,
    "late": 2,
    "pieces": 2,
    "burst": 1,
    "metrics": 2,
    "unhealthy": 2,
    "drain": 8,
    "standby": 2,
    "resurrect": 2,
    "retire": 2,
    "limit": 2,
}
"""Faults of one slot and how often each is drawn."""

_CONTROLLER = ("restart", "stale", "other_body", "routing")
_FAULT_FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hang": ({"freeze": True}, {"freeze": False}),
    "slow": ({"speed": 0.2}, {"speed": 1.0}),
    "late": ({"first_byte_delay_s": 0.4}, {"first_byte_delay_s": 0.0}),
    "pieces": ({"split_bytes": 7}, {"split_bytes": 0}),
    "burst": ({"burst": True}, {"burst": False}),
    "unhealthy": ({"unhealthy": True}, {"unhealthy": False}),
}
"""Faults that an engine is told at their beginning and end (POST /fault)."""


def schedule(seed: int, requests: int) -> tuple[Fault, ...]:
    """All faults in order, ended by the last request; what is still wrong then is put right by the run itself."""
    rng = random.Random(f"faults {seed}")
    busy = [0] * SLOTS
    found: list[Fault] = []
    at = REQUESTS_PER_FAULT
    outage_at = rng.uniform(0.3, 1.0) * min(OUTAGE_EVERY, requests)
    while at < requests:
        now = int(at)
        if at >= outage_at:
            found += _outage(rng, now, busy)
            outage_at += rng.uniform(0.5, 1.5) * OUTAGE_EVERY
        elif rng.random() < 0.06:
            found.append(Fault(at=now, slot=-1, what=rng.choice(_CONTROLLER)))
        free = [slot for slot in range(SLOTS) if busy[slot] <= now]
        if len(free) > SLOTS - TROUBLED_MAX:
            slot = rng.choice(free)
            what = rng.choices(list(_ONE), list(_ONE.values()))[0]
            length = int(rng.choice((rng.uniform(5, 40), rng.uniform(40, 150), rng.uniform(150, 600))))
            found += _fault(rng, what, slot, now, length)
            busy[slot] = now + length + 20
        at += rng.expovariate(1 / REQUESTS_PER_FAULT)
    return tuple(sorted((one for one in found if one.at < requests), key=lambda one: one.at))


def _outage(rng: random.Random, at: int, busy: list[int]) -> list[Fault]:
    """Most of the pool at once: killed, or frozen."""
    what = rng.choice(("kill", "stop"))
    found = []
    for slot in range(SLOTS):
        if busy[slot] <= at and rng.random() < 0.85:
            length = rng.randint(100, 700)
            found += _fault(rng, what, slot, at, length)
            busy[slot] = at + length + 20
    return found


def _fault(rng: random.Random, what: str, slot: int, at: int, length: int) -> list[Fault]:
    """The beginning and the end of one fault."""

    def pair(begin: dict[str, Any], end: dict[str, Any], name: str = "fault") -> list[Fault]:
        first = Fault(at=at, slot=slot, what=name, settings=begin)
        return [first, Fault(at=at + length, slot=slot, what=name, settings=end)]

    begin = Fault(at=at, slot=slot, what=what)
    if what in ("kill", "die"):
        if what == "die":
            tokens = rng.randint(1, 8)
            begin = Fault(at=at, slot=slot, what="fault", settings={"die_after_tokens": tokens})
        else:
            begin = Fault(at=at, slot=slot, what="kill", settings={"told": rng.random() < 0.4})
        return [begin, Fault(at=at + length, slot=slot, what=rng.choice(("restart", "replace")))]
    if what in _FAULT_FIELDS:
        return pair(*_FAULT_FIELDS[what])
    match what:
        case "stop":
            return [begin, Fault(at=at + length, slot=slot, what="continue")]
        case "drop":
            return pair({"drop_next": rng.randint(1, 6)}, {"drop_next": 0})
        case "cut" | "error":
            name = f"{what}_after_tokens"
            return pair({name: rng.randint(0, 9)}, {name: None})
        case "fail":
            status = rng.choice((500, 500, 503, 429, 502))
            wait_s = rng.choice((None, 1, 2)) if status in (503, 429) else None
            told = {"fail_next": rng.randint(1, 12), "fail_status": status, "retry_after_s": wait_s}
            return pair(told, {"fail_next": 0})
        case "metrics":
            return pair({"metrics": rng.choice(("absent", "nan", "renamed"))}, {"metrics": "vllm"})
        case "drain":
            return [Fault(at=at, slot=slot, what="drain", settings={"surge": rng.random() < 0.5})]
        case "limit":
            return pair({"limit": 2}, {"limit": LIMITS[slot]}, "table")
        case _:  # standby, resurrect, retire: only the table says so
            intent = {"standby": "standby", "resurrect": "draining", "retire": "absent"}[what]
            return pair({"intent": intent}, {"intent": "active"}, "table")
