"""May a request whose attempt failed be sent again? The ladder, and the budget that keeps retries from becoming a
storm.

| how far the attempt came                 | again?                                                               |
|------------------------------------------|----------------------------------------------------------------------|
| no connection: nothing was sent          | elsewhere, up to `max_attempts`; outside the budget: it loads nobody |
| reused connection closed, no byte back   | once, on a fresh connection to the same endpoint (keep-alive race)   |
| sent, no byte back, connection dead      | only if the policy says idempotent, within budget and attempts       |
| sent, no byte back, merely late          | never: an engine that stands still does not see that we hung up, so  |
|                                          | it may run the request when it goes on, beside the second attempt    |
| a byte of the answer came                | never                                                                |

Budget: a token bucket that each request fills by `budget_percent`/100 and each retry empties by 1, at most `BURST`.
It is settled when a retry asks, from the number of requests that arrived since, so requests that never retry pay
nothing.
"""

from __future__ import annotations

from router.model import Retries

BURST = 10.0


class RetryBudget:
    """Tokens for retries of one model; starts full so that the first failure after a quiet time may be retried."""

    __slots__ = ("seen", "tokens")

    def __init__(self) -> None:
        self.tokens = BURST
        self.seen = 0

    def spend(self, arrived: int, percent: float) -> bool:
        """Take a token for one retry. `arrived`: requests since boot. False when there is none."""
        self.tokens = min(BURST, self.tokens + (arrived - self.seen) * percent / 100)
        self.seen = arrived
        if self.tokens < 1 or percent == 0:
            return False
        self.tokens -= 1
        return True


def attempt_id(request_id: bytes, attempt: int) -> bytes:
    """The id that attempt number `attempt` (1 = the first) carries to the engine: ID, ID-a2, ID-a3."""
    return request_id if attempt == 1 else b"%s-a%d" % (request_id, attempt)


def may_retry(rules: Retries, attempts: int, sent: bool, *, late: bool = False) -> bool:
    """The ladder without the budget. `attempts`: sends so far; `sent`: did this one leave, without a byte back; `late`: it
    was given up, its connection did not end by itself.
    """
    if attempts >= rules.max_attempts:
        return False
    return not sent or (rules.idempotent and not late)
