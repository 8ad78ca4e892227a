"""How many requests an endpoint may hold at once: what its source told, corrected downwards by what is seen of it.

limit = max(1, round(told x squeeze)), with `told` = this router's share and 0.25 <= squeeze <= 1:

| seen                                                         | squeeze                                    |
|--------------------------------------------------------------|--------------------------------------------|
| two readings in a row with 5 % of the limit waiting in the engine | x (1 - waiting / limit), at least x 0.9 |
| a reading with the KV cache at least 95 % full               | x 0.9                                      |
| an answer 503; 429                                           | down to what it holds; x 0.9               |
| ten looks in a row: first events 3 times as late as usual, at least half full | x 0.9, once a second       |
| none of these for a second                                   | + 0.05, up to 1                            |

An absent value corrects nothing, nor does a reading older than `READING_OLD_S`: an engine whose metrics are gone is
served by our own counts. The latency rule looks at the fastest of some streams (five, and those of 0.2 s), because
prompts differ a hundredfold in length and a mean would see only that; what is usual is the mean of that, which falls
twenty times as fast as it rises. Where most prompts are long, many a look sees none but long ones: only when ten in a row
are late is it the engine. Simulated: an engine at 60 % of its limit whose prompts take 0.1 s or 1 to 10 s keeps 0.9 of
it at whatever mix; were one late look enough, it would be held at a quarter where 80 % are long.

The ramp: an endpoint that begins to serve weighs a tenth of its capacity in the pick, and all of it `ramp_s` later. It
never changes the limit: when requests wait, an empty endpoint takes what it can hold.

Source of the additive-increase, multiplicative-decrease form: D. Chiu and R. Jain, Analysis of the increase and
decrease algorithms for congestion avoidance in computer networks (1989).
"""

from __future__ import annotations

from typing import Final

from router.core.endpoints import Endpoint
from router.model import EngineLoad

SQUEEZE_MIN: Final = 0.25
BACK_OFF: Final = 0.9
RECOVER_PER_S: Final = 0.05
KV_FULL: Final = 0.95
WAITING_PART: Final = 0.05
"""Fewer than this part of the limit waiting in the engine is the jitter of its scheduler."""
READING_OLD_S: Final = 10.0
STREAMS_A_LOOK: Final = 5
LOOK_S: Final = 0.2
LOOKS: Final = 10
LATE: Final = 3.0
LATE_LEAST_S: Final = 0.05
"""First events this quick are never called late, whatever is usual: at this scale a machine's own noise is larger."""
RISE: Final = 0.01
FALL: Final = 0.2
RAMP_FROM: Final = 0.1


def read(endpoint: Endpoint, load: EngineLoad, read_at: float, now: float) -> None:
    """What an engine reports about itself at `read_at`."""
    endpoint.engine_load = load
    endpoint.engine_read_at = read_at
    waited = endpoint.engine_waits
    waiting = load.waiting or 0.0
    endpoint.engine_waits = waiting >= max(1.0, WAITING_PART * endpoint.limit)
    if now - read_at > READING_OLD_S:
        return
    if load.kv is not None and load.kv >= KV_FULL:
        _squeeze(endpoint, endpoint.squeeze * BACK_OFF, now)
    elif endpoint.engine_waits and waited:
        _squeeze(endpoint, endpoint.squeeze * max(BACK_OFF, 1 - waiting / endpoint.limit), now)


def refused(endpoint: Endpoint, status: int, now: float) -> None:
    """It answered that it is full: 503, then what it holds besides is what it can hold; a 429 may be about one client."""
    if status == 503:
        _squeeze(endpoint, (endpoint.in_flight - 1) / endpoint.told_limit, now)
    else:
        _squeeze(endpoint, endpoint.squeeze * BACK_OFF, now)


def first_event(endpoint: Endpoint, after_s: float, now: float) -> None:
    """A stream's first event came `after_s` after the request was sent."""
    if after_s < endpoint.ttft_best:
        endpoint.ttft_best = after_s
    endpoint.ttft_count += 1
    if endpoint.ttft_count < STREAMS_A_LOOK or now - endpoint.looked_at < LOOK_S:
        return
    best, usual = endpoint.ttft_best, endpoint.ttft_usual
    endpoint.ttft_count, endpoint.ttft_best, endpoint.looked_at = 0, float("inf"), now
    if usual is None:
        endpoint.ttft_usual = best
        return
    endpoint.ttft_usual = usual + (RISE if best > usual else FALL) * (best - usual)
    if best > LATE * usual and best > LATE_LEAST_S and endpoint.in_flight * 2 >= endpoint.limit:
        endpoint.late_looks += 1
        if endpoint.late_looks > LOOKS and now - endpoint.squeezed_at >= 1:
            _squeeze(endpoint, endpoint.squeeze * BACK_OFF, now)
    else:
        endpoint.late_looks = 0


def _squeeze(endpoint: Endpoint, squeeze: float, now: float) -> None:
    endpoint.squeezed_at = now
    endpoint.squeeze = min(endpoint.squeeze, max(SQUEEZE_MIN, squeeze))
    endpoint.correct()


def recovered(endpoint: Endpoint, now: float) -> bool:
    """Called once a second: give back what was taken, when nothing spoke against it lately. True when the limit rose."""
    if endpoint.squeeze >= 1 or now - endpoint.squeezed_at < 1:
        return False
    age_s = READING_OLD_S if endpoint.engine_read_at is None else now - endpoint.engine_read_at
    if endpoint.engine_waits and age_s < READING_OLD_S:
        return False
    before = endpoint.limit
    endpoint.squeeze = min(1.0, endpoint.squeeze + RECOVER_PER_S)
    endpoint.correct()
    return endpoint.limit > before


def ramped(endpoint: Endpoint, now: float, ramp_s: float) -> bool:
    """Set what the endpoint weighs in the pick at `now`. True while that still grows."""
    since_s = now - endpoint.serving_since
    if since_s >= ramp_s:
        endpoint.weight = endpoint.capacity
        return False
    endpoint.weight = endpoint.capacity * max(RAMP_FROM, since_s / ramp_s)
    return True
