"""Health of an endpoint, found out from what happens to requests: ejection, back-off, half-open with a single probing
request.

Works on the fields of `Endpoint` and takes `now`. Failures count only in a row. A connection that cannot be made
ejects at once: nothing was sent, the request goes elsewhere. After the back-off, 1 s doubling to 30 s while it keeps
failing, one request may try. The active probe (`GET /health`) is no proof of health for an endpoint that fails
requests (an engine that hangs may answer it for hours), so it turns only unknown into ready; when it fails it counts
in its own row, and it keeps an ejected endpoint from risking a request.

A server error is an answer, and may be the request's fault. So it ejects only while enough others are ready (`few`
says whether they would not be, `Model.few_ready`):

| what failed in a row                 | health    | few = False     | few = True            |
|--------------------------------------|-----------|-----------------|-----------------------|
| no connection, or all waited in vain | any       | ejected         | ejected               |
| 3 cuts or time-outs                  | ready     | ejected         | ejected               |
| a cut or time-out                    | half-open | ejected         | ejected               |
| 3 failures, server errors among them | ready     | ejected, `soft` | stays ready           |
| a server error                       | half-open | ejected, `soft` | ready: it does answer |

A `soft` ejection ends at once when it comes to that later (`pardon`).

Progress: an engine that hangs may answer its probes for hours. So an endpoint all of whose event streams were silent for
`progress_s` is ejected (`silent`), while its streams wait on, each for its own bound; when one of them is heard again,
the endpoint is back at once (`heard`). And a request that waited in vain while others did too and nothing at all came
from their endpoint is as certain a sign as a refused connection; one that waited alone, or while others were served, is
one failure of three: it may be the request.

Saturation: 429 and 503 are an engine's way to say that it is full. They are no failure: `full` pauses the endpoint for
as long as it asks, within bounds, and `limits.py` takes its limit down. A request speaks for one endpoint only: what
others say to it then may be about its client's quota, and it must not take all of them out.
"""

from __future__ import annotations

from router.core.endpoints import CUT, EJECTED, HALF_OPEN, READY, SERVER_ERROR, TIMEOUT, UNKNOWN, UNREACHABLE, Endpoint

EJECT_AFTER = 3
BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 30.0
PAUSE_S = 0.1
"""After an attempt was cut the endpoint gets nothing for this long. A killed process closes its connections before its
listener (seen on Linux 6.1), so whoever is sent there in that gap is lost, while a moment later the connection is
refused and the request goes elsewhere.
"""
FULL_PAUSE_S = 0.25
"""A full endpoint that does not say when to come back gets nothing for this long."""
FULL_PAUSE_MAX_S = 10.0
BUSY_PAUSE_MAX_S = 1.0
"""A 429 may be about one client's quota, so it pauses the endpoint for everybody only this long; and so does a 503 when
less than half of the pool would go on: then it may be about the requests, and nobody would be left.
"""


def succeeded(endpoint: Endpoint) -> None:
    """A whole good answer. An ejected endpoint stays so: the answer is to a request older than its ejection."""
    if endpoint.health in (HALF_OPEN, UNKNOWN):
        admit(endpoint)
        endpoint.ejections = 0
    endpoint.failures = endpoint.server_errors = 0


def failed(endpoint: Endpoint, outcome: int, sent_at: float, now: float, *, few: bool) -> bool:
    """A failed attempt (UNREACHABLE, TIMEOUT, CUT or SERVER_ERROR) that was sent at `sent_at`. `few`: without this
    endpoint too few would be ready. True when it ejected the endpoint.
    """
    endpoint.failures += 1
    if outcome == SERVER_ERROR:
        endpoint.server_errors += 1
    elif outcome == CUT:
        endpoint.paused_until = now + PAUSE_S
    mute = outcome == TIMEOUT and endpoint.heard_at < sent_at and endpoint.in_flight > 0
    certain = outcome == UNREACHABLE or mute or endpoint.failures - endpoint.server_errors >= EJECT_AFTER
    if endpoint.health == EJECTED:
        endpoint.soft = endpoint.soft and not certain
        return False
    if endpoint.health != READY:
        certain = certain or outcome != SERVER_ERROR
    elif not certain and endpoint.failures < EJECT_AFTER:
        return False
    if few and not certain:
        admit(endpoint)
        return False
    eject(endpoint, now)
    endpoint.soft = not certain
    return True


def eject(endpoint: Endpoint, now: float) -> None:
    """Take it out of the pick until its back-off is over."""
    endpoint.health = EJECTED
    endpoint.soft = endpoint.hung = False
    endpoint.probe = None
    endpoint.ejections += 1
    endpoint.retry_at = now + min(BACK_OFF_S * 2 ** min(endpoint.ejections - 1, 10), BACK_OFF_MAX_S)


def admit(endpoint: Endpoint) -> None:
    """It may be given requests."""
    endpoint.health = READY
    endpoint.soft = endpoint.hung = False
    endpoint.probe = None


def pardon(endpoint: Endpoint) -> None:
    """Too few are ready: one that is out for server errors alone is let in again, unless it does not even answer its
    active probe.
    """
    if endpoint.soft and not endpoint.probe_failures:
        admit(endpoint)
        endpoint.failures = endpoint.server_errors = 0
        endpoint.settle()


def probed(endpoint: Endpoint, ok: bool, now: float) -> bool:
    """Result of an active probe. True when it ejected the endpoint."""
    if ok:
        endpoint.probe_failures = 0
        if endpoint.health == UNKNOWN:
            endpoint.health = READY
        return False
    endpoint.probe_failures += 1
    if endpoint.health == READY and endpoint.probe_failures >= EJECT_AFTER:
        eject(endpoint, now)
        return True
    return False


def silent(endpoint: Endpoint, now: float, progress_s: float) -> bool:
    """It has event streams under way; has nothing come from it for too long. True when that ejected it."""
    if endpoint.health != READY or now - endpoint.heard_at <= progress_s:
        return False
    eject(endpoint, now)
    endpoint.hung = True
    return True


def heard(endpoint: Endpoint, at: float) -> bool:
    """Bytes of a stream came at `at`. True when that brought a hung endpoint back."""
    if at <= endpoint.heard_at:
        return False
    endpoint.heard_at = at
    if not endpoint.hung or endpoint.health == READY:
        return False
    admit(endpoint)
    endpoint.failures = endpoint.server_errors = 0
    return True


def full(endpoint: Endpoint, status: int, retry_after_s: float | None, now: float, *, most: bool) -> None:
    """It answered that it is full: nothing for as long as it asks, within bounds. `most`: less than half of the pool
    would go on."""
    longest_s = BUSY_PAUSE_MAX_S if status == 429 or most else FULL_PAUSE_MAX_S
    pause_s = FULL_PAUSE_S if retry_after_s is None else min(max(retry_after_s, FULL_PAUSE_S), longest_s)
    endpoint.paused_until = max(endpoint.paused_until, now + pause_s)


def resumed(endpoint: Endpoint, now: float) -> bool:
    """The pause after a cut is over. True when it just ended."""
    if not endpoint.paused_until or now < endpoint.paused_until:
        return False
    endpoint.paused_until = 0.0
    return True


def reopened(endpoint: Endpoint, now: float) -> bool:
    """At the end of the back-off an ejected endpoint becomes half-open. True when it did; put off while its active
    probe fails.
    """
    if endpoint.health != EJECTED or now < endpoint.retry_at:
        return False
    if endpoint.probe_failures:
        endpoint.retry_at = now + BACK_OFF_S
        return False
    endpoint.health = HALF_OPEN
    endpoint.failures = endpoint.server_errors = 0
    return True
