"""Load reports -> one sample: each second of each router counted exactly once, gaps said, routers summed. Pure.

A report carries the last 120 complete seconds of one router's boot; `second` says how many it has completed. The
cursor of a router remembers the last second taken:

    boot as before, second ahead by n <= what is listed    -> the last n values
    boot as before, second ahead by more                   -> gaps for those that fell off, then all values
    boot as before, second not ahead                       -> nothing new
    another boot                                           -> gaps for the time nobody counted, then all values of the
    new boot first contact                                          -> all values listed (a restarted controller knows
    the last two minutes)

With several routers each keeps what it is ahead of the others until they have caught up, so that seconds are added
like for like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.model import Now, Sample
from autoscaler.wires import ModelLoadWire, ReportWire

AHEAD_MAX = 3
"""Seconds that one router may be ahead of another before its oldest are dropped: their moment has been answered
already.
"""
EJECTED = ("ejected", "half-open")
"""Half-open is one request on trial: it is not back yet."""
GAP_MAX = 86_400
"""A gap longer than a day is the same as a day: every window is shorter."""


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """What was taken from one router for one policy. `ahead`: (arrived, shed) seconds not yet in a sample, None =
    gap.
    """

    boot: str
    second: int
    read_s: float
    service_count: int
    service_sum_s: float
    ahead: list[tuple[float, int] | None] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Service:
    count: int = 0
    sum_s: float = 0.0


class LoadMerger:
    """Cursors of all routers and policies. `routers`: their names, in the order in which missing ones are named."""

    def __init__(self, routers: Sequence[str]) -> None:
        self._routers = tuple(routers)
        self._cursors: dict[tuple[str, str], _Cursor] = {}

    def merge(self, policy: str, model: str, reports: Mapping[str, ReportWire | None], now: Now) -> Sample | None:
        """One policy's sample out of what the routers answered (None = no answer); None when no router knows of its
        model.
        """
        answered: list[tuple[_Cursor, ModelLoadWire]] = []
        service = _Service()
        missing = []
        for router in self._routers:
            report = reports.get(router)
            load = report.models.get(model) if report is not None else None
            if report is None or load is None:
                missing.append(router)
                continue
            answered.append((self._advance((router, policy), report, load, service, now), load))
        if not answered:
            return None
        seconds = _common([cursor for cursor, _ in answered])
        loads = [load for _, load in answered]
        waiting = [load.oldest_s for load in loads if load.queued]
        return Sample(
            at=now,
            arrivals=tuple(None if second is None else second[0] for second in seconds),
            in_flight=sum(load.in_flight for load in loads),
            queued=sum(load.queued for load in loads),
            oldest_s=max(waiting, default=0.0),
            held_from_zero=sum(load.held_from_zero for load in loads),
            service_count=service.count,
            service_sum_s=service.sum_s,
            shed=sum(second[1] for second in seconds if second is not None),
            routers_missing=tuple(missing),
            unhealthy=self._ejected(reports),
        )

    def _ejected(self, reports: Mapping[str, ReportWire | None]) -> tuple[str, ...]:
        """Endpoints that all routers have ejected; one that is silent, or does not list it, has not said so."""
        common: set[str] | None = None
        for router in self._routers:
            report = reports.get(router)
            endpoints = report.endpoints if report is not None else {}
            out = {name for name, endpoint in endpoints.items() if endpoint.health in EJECTED}
            common = out if common is None else common & out
        return tuple(sorted(common or ()))

    def _advance(
        self, key: tuple[str, str], report: ReportWire, load: ModelLoadWire, service: _Service, now: Now
    ) -> _Cursor:
        """Take what is new in one report."""
        cursor = self._cursors.get(key)
        listed = min(len(load.arrived), report.second)
        total = load.service_s
        if cursor is None or cursor.boot != report.boot:
            lost = 0
            if cursor is not None:
                lost = max(0, int(now.monotonic_s - cursor.read_s) - listed)
            # An old boot's totals are of its whole life: too old to be called new.
            fresh = report.second <= len(load.arrived)
            before = (0, 0.0) if fresh else (total.count, total.sum)
            kept = cursor.ahead if cursor is not None else []
            cursor = _Cursor(
                boot=report.boot,
                second=report.second,
                read_s=now.monotonic_s,
                service_count=before[0],
                service_sum_s=before[1],
                ahead=kept,
            )
            self._cursors[key] = cursor
            new = listed
        else:
            ahead = max(0, report.second - cursor.second)
            new = min(ahead, listed)
            lost = ahead - new
            cursor.second = max(cursor.second, report.second)
            cursor.read_s = now.monotonic_s
        cursor.ahead += [None] * min(lost, GAP_MAX)
        if new:
            shed = (0,) * max(0, new - len(load.shed)) + load.shed[-new:]
            cursor.ahead += [(float(a), s) for a, s in zip(load.arrived[-new:], shed, strict=True)]
        service.count += max(0, total.count - cursor.service_count)
        service.sum_s += max(0.0, total.sum - cursor.service_sum_s)
        cursor.service_count, cursor.service_sum_s = total.count, total.sum
        return cursor


def _common(cursors: Sequence[_Cursor]) -> list[tuple[float, int] | None]:
    """Take the seconds that all routers have, oldest first; a second that one of them has as a gap is a gap."""
    taken = min(len(cursor.ahead) for cursor in cursors)
    for cursor in cursors:
        if len(cursor.ahead) > taken + AHEAD_MAX:
            del cursor.ahead[: len(cursor.ahead) - taken]  # was silent for a while: align at the newest second
    rows = [cursor.ahead[:taken] for cursor in cursors]
    for cursor in cursors:
        del cursor.ahead[:taken]
    summed: list[tuple[float, int] | None] = []
    for second in zip(*rows, strict=True):
        known = [part for part in second if part is not None]
        whole = len(known) == len(second)
        summed.append((sum(part[0] for part in known), sum(part[1] for part in known)) if whole else None)
    return summed
