"""Fixtures that every folder of tests may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Real processes; all are stopped at the end, and the test fails when one is left behind."""
    started = Processes(tmp_path)
    try:
        yield started
    finally:
        started.close()
