"""The limits that `docs/http.md` names are the limits."""

from __future__ import annotations

import pytest

from router.shell.client import PIPELINED_MAX
from router.shell.descriptors import clients_within
from router.shell.driver import CROWDED_IDLE_S
from router.shell.heads import HEAD_MAX
from router.shell.http import Limits
from router.shell.memory import LET_IN_PART
from tests.router.pages import PAGE


@pytest.mark.fault("R14")
def test_the_limits_on_the_page() -> None:
    limits, page = Limits(), PAGE.read_text(encoding="utf-8")
    for row in (
        f"| a head | {HEAD_MAX:,} bytes | 431 |",
        f"| a head, from its first byte on | {limits.head_s:g} s |",
        f"| a body | {limits.body_bytes:,} bytes (64 MiB) | 413 |",
        f"| a body without progress | {limits.body_s:g} s |",
        f"| a body, on average after its first {limits.body_s:g} s | {limits.body_bytes_per_s:,.0f} bytes a second |",
        f"| all bodies held at a time | {limits.bodies_total_bytes:,} bytes (1 GiB) | 503",
        f"| requests sent ahead of an answer | {PIPELINED_MAX:,} bytes |",
        f"| connections | {limits.connections:,}, or {clients_within(16)}/16 of the open files",
        f"| an idle connection | {limits.idle_s:g} s; {CROWDED_IDLE_S:g} s while more than three quarters",
        f"| an answer that the client does not read | {limits.stall_s:g} s |",
        f"its first 1/{LET_IN_PART} is here",
        f"whole {limits.body_s:g} s after its head",
    ):
        assert row in page
