"""Where this process's log goes: JSON lines on stderr, so that stdout holds answers only. It knows nobody's events."""

from __future__ import annotations

import sys

import structlog


def log_to_stderr() -> None:
    """JSON lines on stderr, for all of the process."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
