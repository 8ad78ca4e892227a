"""Whose turn it is in one priority band: weighted fair queueing between tenants, by the tokens they are expected to
cost.

Each tenant has a line of its own, ordered by deadline. A tenant that begins to wait gets a tag: the band's virtual
time, or where its earlier work ended if that is later. The lowest tag is served next; its tenant moves on by
cost / weight. So over any time in which tenants wait, each gets tokens in proportion to its weight, whatever the others
send, and one that was away has no claim on the past: an idle share is lent. Every step is O(log n) in tenants and in
requests.

Who left or was refused is only marked (`queued` False) and dropped when it comes to the head, or when marks are the
majority of what a list holds, whichever is first: a line may never be empty, or never have its turn. So memory follows
those who wait, and no step looks at tenants that wait for nothing. With one tenant, the default, this is a line ordered
by deadline.

Source: P. Goyal, H. Vin and H. Cheng, Start-time fair queuing (1996); cost in tokens after Y. Sheng et al., Fairness in
serving large language models (2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from router.core.requests import Request

TENANTS_KEPT: Final = 10_000
"""Tenants remembered that wait for nothing; those that owe least are forgotten first."""


SPARE: Final = 64
"""Marked entries that a list may hold beyond as many as are alive."""


class Tenant:
    """One tenant's line in one band. `done`: virtual time at which its work so far ends; `turning`: it stands among the
    band's turns; `waiting`: requests in line; `newest`: its requests in order of arrival.
    """

    __slots__ = ("done", "line", "name", "newest", "tag", "turning", "waiting", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.line: list[tuple[float, int, Request]] = []
        self.newest: list[Request] = []
        self.waiting = 0
        self.tag = 0.0
        self.turning = False
        self.done = 0.0

    def tidy(self) -> None:
        """Drop marked entries, and take over changed deadlines."""
        self.line = [(each.deadline, number, each) for _, number, each in self.line if each.queued]
        heapify(self.line)
        self.newest = [each for each in self.newest if each.queued and not each.ahead]


class Band:
    """The tenants of one band and their turns."""

    __slots__ = ("_numbers", "_sizes", "_turns", "_virtual", "tenants", "waiting")

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.waiting = 0
        self._virtual = 0.0
        self._numbers = count()
        self._turns: list[tuple[float, int, Tenant]] = []
        self._sizes: list[tuple[float, int, Tenant]] = []

    def put(self, request: Request, name: str, weight: float) -> None:
        """To its place in its tenant's line."""
        tenant = self.tenants.get(name)
        if tenant is None:
            if len(self.tenants) > 2 * TENANTS_KEPT + len(self._turns):
                self._forget()
            tenant = self.tenants[name] = Tenant(name, weight)
        tenant.weight = weight
        number = next(self._numbers)
        if not tenant.turning:
            tenant.turning = True
            tenant.tag = max(self._virtual, tenant.done)
            heappush(self._turns, (tenant.tag, number, tenant))
        heappush(tenant.line, (request.deadline, number, request))
        tenant.newest.append(request)
        request.tenant = tenant
        tenant.waiting += 1
        self.waiting += 1
        heappush(self._sizes, (-tenant.waiting / weight, number, tenant))
        if max(len(tenant.line), len(tenant.newest)) > SPARE + 2 * tenant.waiting:
            tenant.tidy()
        if max(len(self._sizes), len(self._turns)) > SPARE + 2 * self.waiting:
            self._tidy()

    def left(self, request: Request) -> None:
        """It waits no more; its entry is dropped later, with all others when it was the last of its tenant."""
        tenant = request.tenant
        tenant.waiting -= 1
        self.waiting -= 1
        if not tenant.waiting:
            tenant.line.clear()
            tenant.newest.clear()

    def head(self) -> Request | None:
        """Who is next, left in place."""
        turns = self._turns
        while turns:
            tenant = turns[0][2]
            line = tenant.line
            while line and not line[0][2].queued:
                heappop(line)
            if line:
                return line[0][2]
            heappop(turns)
            tenant.turning = False
        return None

    def take(self, cost: float) -> None:
        """Remove the one that `head()` gave, which is expected to cost so many tokens."""
        _, number, tenant = heappop(self._turns)
        heappop(tenant.line)
        self._virtual = tenant.tag
        tenant.done = tenant.tag + cost / tenant.weight
        if tenant.line:
            tenant.tag = tenant.done
            heappush(self._turns, (tenant.tag, number, tenant))
        else:
            tenant.turning = False

    def largest(self) -> Tenant | None:
        """The tenant with the most requests in line per weight."""
        sizes = self._sizes
        while sizes:
            size, number, tenant = sizes[0]
            now = -tenant.waiting / tenant.weight
            if size == now and tenant.waiting:
                return tenant
            heappop(sizes)
            if tenant.waiting and size < now:
                heappush(sizes, (now, number, tenant))
        return None

    def latest(self, tenant: Tenant) -> Iterator[Request]:
        """Requests of a tenant that wait, the one it sent last first. To be looked at, not changed meanwhile."""
        newest = tenant.newest
        while newest and (not newest[-1].queued or newest[-1].ahead):
            newest.pop()
        return (each for each in reversed(newest) if each.queued and not each.ahead)

    def sweep(self) -> None:
        """Drop marked entries, and take over changed deadlines."""
        for _, _, tenant in self._turns:
            tenant.tidy()
        self._tidy()

    def requests(self) -> Iterator[Request]:
        """Everybody who waits, in no order."""
        for _, _, tenant in self._turns:
            for _, _, request in tenant.line:
                if request.queued:
                    yield request

    def _tidy(self) -> None:
        """Drop the places of tenants that do not wait, and what their sizes were before."""
        turns, self._turns = self._turns, []
        for turn in turns:
            turn[2].turning = turn[2].waiting > 0
            if turn[2].turning:
                self._turns.append(turn)
        heapify(self._turns)
        self._sizes = [(-each.waiting / each.weight, number, each) for _, number, each in self._turns]
        heapify(self._sizes)

    def _forget(self) -> None:
        """Drop tenants that wait for nothing, those that owe nothing first."""
        idle = sorted((tenant for tenant in self.tenants.values() if not tenant.turning), key=lambda each: each.done)
        keep = len(idle) - TENANTS_KEPT
        for index, tenant in enumerate(idle):
            if index < keep or tenant.done <= self._virtual:
                del self.tenants[tenant.name]
