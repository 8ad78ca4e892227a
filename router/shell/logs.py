"""What the router says about itself: JSON lines on stderr, one per change of state. Requests are counted, not
logged."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import structlog
from structlog.types import EventDict, Processor

LOOK_EVERY_S = 0.25

log = structlog.get_logger(part="health")


def configure_logs(level: str, router: str | None = None) -> None:
    """JSON lines from `level` on; other libraries' warnings come as lines of the same kind. `router`: which of several
    workers says it.
    """
    common: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if router is not None:
        common.append(partial(_signed, router))
    as_json = structlog.processors.JSONRenderer(default=str)
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*common, as_json],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line is one write: workers share the stream
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=as_json, foreign_pre_chain=common))
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING))


def _signed(router: str, logger: object, method: str, event: EventDict) -> EventDict:
    """A processor: the worker's name."""
    event.setdefault("router", router)
    return event


class Seen(Protocol):
    """An endpoint as far as the log cares."""

    @property
    def health(self) -> str: ...
    @property
    def outcomes(self) -> Mapping[str, int]: ...


class Watched(Protocol):
    """The dispatcher as far as the log cares."""

    @property
    def endpoints(self) -> Mapping[str, Seen]: ...


class HealthLog:
    """One line per change of an endpoint's health, seen by asking: the core logs nothing, and no request waits for a
    log."""

    def __init__(self, dispatcher: Watched) -> None:
        self._dispatcher = dispatcher
        self._known: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Compare with the last look."""
        known, self._known = self._known, {}
        for id_, endpoint in self._dispatcher.endpoints.items():
            before, after = known.get(id_, "unknown"), endpoint.health
            self._known[id_] = after
            if after != before:
                tell = log.warning if after == "ejected" else log.info
                tell("health changed", endpoint=id_, before=before, after=after, outcomes=endpoint.outcomes)
