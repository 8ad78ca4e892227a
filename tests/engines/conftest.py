"""Fixtures of the tests against real engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from functools import cache
from pathlib import Path

import pytest

from tests.engines.llama import Llamas, llamas
from tests.engines.tiny_model import write_model
from tests.processes import Processes


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Gives the path of a model of so many layers, written once a session."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def written(layers: int) -> Path:
        return write_model(folder / f"random-{layers}.gguf", layers)

    return written


@pytest.fixture
async def ours(processes: Processes, tiny_model: Callable[[int], Path]) -> AsyncIterator[Llamas]:
    """Real llama.cpp replicas behind a real router."""
    pytest.importorskip("xllamacpp", reason="real llama.cpp is not packaged for this machine")
    async with llamas(processes, tiny_model) as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """pytest: a file that is skipped as a whole says so in one line, not in one for each of its tests."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        path, _, reason = report.longrepr
        report.longrepr = (path, 1, reason)
    return report
