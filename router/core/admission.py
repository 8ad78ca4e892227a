"""The bounded queue of one model: first in, first out, with a deadline; and what a request is told when it is not let
in.

Bounds: how many wait, how many bytes they hold, how long one may wait. A client that leaves is only marked: its place
in the line is dropped when it comes to the head, so leaving is O(1) and the counts are right at once. The line itself
never holds more than twice its bound: marked places are swept when they are the majority. Each wait is filed in a
histogram when it ends, by an endpoint, a refusal or the client's departure; a request that waits again after a failed
attempt files the second wait by itself.

| what happened                                        | answer                                                 |
|------------------------------------------------------|--------------------------------------------------------|
| queue full (count or bytes)                          | 429, Retry-After = waiting / rate of freed slots       |
| no replica, and the next one is due after the limit  | 503, Retry-After = its ETA                             |
| waited until the deadline                            | 503, Retry-After = ETA, else by the rate, else 5 s     |
| known model, no replica, none or one in time told    | held: the controller is woken and may still bring one  |
"""

from __future__ import annotations

from collections import deque

from router.core.meter import Buckets
from router.core.refusals import Refusal, whole_seconds
from router.core.requests import Request
from router.model import QueueBounds


class Queue:
    """Requests of one model that wait for a slot, oldest first.

    `count`, `bytes` and `tokens` are of those that still wait; `retried` counts those among them that an endpoint failed;
    `waits`: where the time of each wait is filed.
    """

    __slots__ = ("bounds", "bytes", "count", "line", "retried", "tokens", "waits")

    def __init__(self, bounds: QueueBounds, waits: Buckets) -> None:
        self.bounds = bounds
        self.waits = waits
        self.line: deque[Request] = deque()
        self.count = 0
        self.bytes = 0
        self.tokens = 0
        self.retried = 0

    def has_room(self, size: int) -> bool:
        """Would a request of `size` bytes fit."""
        return self.count < self.bounds.max_requests and self.bytes + size <= self.bounds.max_bytes

    def put(self, request: Request, now: float) -> None:
        """To the end of the line."""
        request.queued_at = now
        self.line.append(request)
        self._enter(request)

    def put_back(self, request: Request, now: float) -> None:
        """To the head of the line: it was let in before."""
        request.queued_at = now
        self.line.appendleft(request)
        self._enter(request)

    def _enter(self, request: Request) -> None:
        request.queued = True
        self.count += 1
        self.bytes += request.size
        self.tokens += request.tokens
        if request.tried:
            self.retried += 1

    def discard(self, request: Request, now: float) -> None:
        """It left; its place in the line is dropped later."""
        self._leave(request)
        self._file_wait(request, now)
        if len(self.line) > 32 and self.count * 2 < len(self.line):
            self.line = deque(waiting for waiting in self.line if waiting.queued)

    def _leave(self, request: Request) -> None:
        request.queued = False
        self.count -= 1
        self.bytes -= request.size
        self.tokens -= request.tokens
        if request.tried:
            self.retried -= 1

    def head(self) -> Request | None:
        """The oldest that still waits, left in place."""
        line = self.line
        while line:
            if line[0].queued:
                return line[0]
            line.popleft()
        return None

    def take(self, now: float) -> Request:
        """Remove the head that `head()` gave: its wait is over."""
        request = self.line.popleft()
        self._leave(request)
        self._file_wait(request, now)
        return request

    def _file_wait(self, request: Request, now: float) -> None:
        wait_s = now - request.queued_at
        request.waited_s += wait_s
        self.waits.observe(wait_s)

    def set_aside(self) -> Request:
        """Step over the head that `head()` gave: others may be served before it. It waits on, `restore` must follow."""
        request = self.line.popleft()
        self._leave(request)
        return request

    def restore(self, request: Request) -> None:
        """Back to the head after `set_aside`."""
        self.line.appendleft(request)
        self._enter(request)

    def deadline(self) -> float | None:
        """When the head must be evicted: the bound in force counts from its arrival, so the head is always the first
        due.
        """
        head = self.head()
        return None if head is None else head.arrived_at + self.bounds.timeout_s

    def oldest_s(self, now: float) -> float:
        """How long the oldest has been here; 0 when nobody waits."""
        head = self.head()
        return 0.0 if head is None else now - head.arrived_at


def full(queue: Queue, size: int, freed_per_s: float) -> Refusal:
    """429: the queue has no room for `size` bytes more; come back when what waits now has been served at the rate
    measured.
    """
    bounds = queue.bounds
    if queue.count >= bounds.max_requests:
        message = f"the queue is full: {queue.count} requests wait, the bound is {bounds.max_requests}"
    else:
        message = f"the queue is full: {queue.bytes} bytes wait, {size} more would pass the bound of {bounds.max_bytes}"
    wait_s = max(queue.count, 1) / freed_per_s if freed_per_s > 0 else None
    return Refusal(status=429, code="queue_full", message=message, retry_after_s=whole_seconds(wait_s))


def none_in_time(model: str, eta_s: float, timeout_s: float) -> Refusal:
    """503: there is no replica, and the next one comes after this request's deadline."""
    message = (
        f"no replica of {model!r} is ready; the next is due in {eta_s:.0f} s, "
        f"later than the {timeout_s:g} s a request may wait"
    )
    return Refusal(status=503, code="no_capacity", message=message, retry_after_s=whole_seconds(eta_s))


def evicted(queue: Queue, model: str, eta_s: float | None, freed_per_s: float) -> Refusal:
    """503: it waited until its deadline."""
    if eta_s is None and freed_per_s > 0:
        eta_s = max(queue.count, 1) / freed_per_s
    message = f"no replica of {model!r} had room within {queue.bounds.timeout_s:g} s"
    return Refusal(status=503, code="queue_timeout", message=message, retry_after_s=whole_seconds(eta_s))
