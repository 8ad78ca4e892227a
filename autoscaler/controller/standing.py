"""Work that goes on for as long as the process does: when it ends by itself, that is logged and it is started again.

It knows no policy and no router. Without this a task that died of a bug would be missed by nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Never, TypeVar

import structlog

AGAIN_S = 1.0

T = TypeVar("T")

log = structlog.get_logger(part="standing")


async def outcome(work: Awaitable[T]) -> T | Exception:
    """What it gives, or the error it ended in. Raises only what must end the task itself, such as a cancellation."""
    (found,) = await asyncio.gather(work, return_exceptions=True)
    if isinstance(found, BaseException) and not isinstance(found, Exception):
        raise found
    return found


async def kept_running(name: str, work: Callable[[], Awaitable[None]], again_s: float = AGAIN_S) -> Never:
    """Run `work`, and once more `again_s` seconds after it has ended, however it did. Runs until cancelled."""
    while True:
        found = await outcome(work())
        log.error("ended, starting it again", name=name, exc_info=found if isinstance(found, Exception) else None)
        await asyncio.sleep(again_s)
