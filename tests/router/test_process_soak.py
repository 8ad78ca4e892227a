"""The soak as part of the test suite: 2,000 requests under faults with a fixed seed; and that it ends well when it is ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import Processes, Running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SEED = 4
BOUND_S = 300.0
"""Ten times what it takes on an idle machine."""


def soak(processes: Processes, folder: Path, requests: int) -> Running:
    words = ["--requests", str(requests), "--seed", str(SEED), "--out", str(folder / "soak")]
    return processes.start_program(sys.executable, "-m", "loadtests.soak", *words)


def test_two_thousand_requests_under_faults(processes: Processes, tmp_path: Path) -> None:
    running = soak(processes, tmp_path, 2000)
    code = running.wait(BOUND_S)
    report = tmp_path / "soak" / "report.txt"
    assert code == 0, "\n".join([*running.stdout, *running.stderr, report.read_text() if report.exists() else ""])
    assert any(line.startswith("all held") for line in running.stdout)
    assert processes.left() == []


def test_ctrl_c_ends_every_process(processes: Processes, tmp_path: Path) -> None:
    running = soak(processes, tmp_path, 20_000)
    running.wait_ready(r"^load ", BOUND_S)
    assert len(processes.left()) > 5  # two routers and eight engines, less those that are dead at this moment
    running.signal(signal.SIGINT)
    assert running.wait(BOUND_S) == 128 + signal.SIGINT
    assert processes.left() == []


def test_a_router_that_dies_is_a_problem_with_a_report_and_leaves_nothing(processes: Processes, tmp_path: Path) -> None:
    running = soak(processes, tmp_path, 20_000)
    running.wait_ready(r"^load ", BOUND_S)
    routers = [pid for pid in processes.left() if b"router-1" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(routers) == 1
    os.kill(routers[0], signal.SIGKILL)
    assert running.wait(BOUND_S) == 1
    assert "router-1 ended with exit code -9" in (tmp_path / "soak" / "report.txt").read_text()
    assert processes.left() == []
