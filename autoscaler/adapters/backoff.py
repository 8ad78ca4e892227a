"""How long to wait before starting a variant again whose replicas keep failing: 1 s, doubled with each failure in a
row, at most 60 s.

Pure: `now_s` is monotonic. A replica that served for a minute ends the row, so a crash once a day costs one second.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 1.0
LAST_S = 60.0
SERVED_LONG_ENOUGH_S = 60.0


@dataclass(slots=True, kw_only=True)
class _Row:
    failures: int = 0
    until_s: float = 0.0
    why: str = ""


class BackOffs:
    """One row of failures per policy and variant."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    def failed(self, policy: str, variant: str, why: str, now_s: float) -> None:
        """A start failed or a replica died."""
        row = self._rows.setdefault((policy, variant), _Row())
        row.until_s = now_s + min(LAST_S, FIRST_S * 2.0**row.failures)
        row.failures += 1
        row.why = why

    def served(self, policy: str, variant: str, seconds: float) -> None:
        """A replica was ready for that long before it ended."""
        if seconds >= SERVED_LONG_ENOUGH_S:
            self._rows.pop((policy, variant), None)

    def waiting(self, policy: str, variant: str, now_s: float) -> str | None:
        """Why the variant must not be started now, in a sentence; None when it may."""
        row = self._rows.get((policy, variant))
        if row is None or now_s >= row.until_s:
            return None
        left_s = row.until_s - now_s
        return f"variant {variant}: {row.failures} failed in a row, next start in {left_s:.1f} s; last: {row.why}"
