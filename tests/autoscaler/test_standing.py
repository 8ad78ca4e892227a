"""Standing work: whatever ends it, it is started again, and a cancellation ends it for good."""

from __future__ import annotations

import asyncio

import pytest

from autoscaler.controller.standing import kept_running, outcome


async def test_work_that_ends_is_started_again_however_it_ended() -> None:
    ends: list[Exception | None] = [RuntimeError("a bug"), None, ExceptionGroup("two", [KeyError("x"), OSError("y")])]
    runs = asyncio.Semaphore(0)

    async def work() -> None:
        runs.release()
        if not ends:
            await asyncio.Event().wait()
        end = ends.pop(0)
        if end is not None:
            raise end

    standing = asyncio.create_task(kept_running("work", work, again_s=0.0))
    async with asyncio.timeout(20):
        for _ in range(4):
            await runs.acquire()
    assert ends == []
    standing.cancel()
    await asyncio.gather(standing, return_exceptions=True)
    assert standing.cancelled()


async def test_an_outcome_is_a_value_or_an_error_and_a_cancellation_goes_on() -> None:
    async def give(end: BaseException | None) -> int:
        if end is not None:
            raise end
        return 7

    error = KeyError("x")
    assert [await outcome(give(None)), await outcome(give(error))] == [7, error]
    with pytest.raises(asyncio.CancelledError):
        await outcome(give(asyncio.CancelledError()))
