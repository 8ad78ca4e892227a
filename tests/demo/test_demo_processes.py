"""The demo for real: processes start, load is played, files are written, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtests.demo_load import generated
from loadtests.demo_policy import policy_document
from loadtests.demo_stack import Child, Stack, StackFailed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


async def demo(*words: str, temporary: Path) -> asyncio.subprocess.Process:
    """A demo whose temporary files are in `temporary`, so that its processes can be told from all others."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidegate",
        "demo",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def left_of(temporary: Path) -> list[str]:
    """Command lines of processes that mention the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if str(temporary) in words:
                found.append(words.replace("\0", " "))
    return found


async def test_a_short_demo_ends_with_a_verdict_and_leaves_nothing(tmp_path: Path) -> None:
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    process = await demo("--seconds", "360", "--seed", "2", "--json", "--out", str(out), temporary=temporary)
    printed, progress = await process.communicate()
    assert process.returncode == 0, progress.decode()
    document = json.loads(printed)
    assert document == json.loads((out / "scorecard.json").read_text())
    assert [run["law"] for run in document["runs"]] == ["tidegate", "hpa"]
    for run in document["runs"]:
        counts = [run[key] for key in ("answered", "refused", "failed", "client_gone", "lost")]
        assert run["requests"] == sum(counts) > 100
        assert run["lost"] == run["failed"] == 0
        assert run["gpu_hours"] > 0
        assert run["late_fraction"] is not None
    late = {run["law"]: run["late_fraction"] for run in document["runs"]}
    assert late["tidegate"] < late["hpa"]
    assert document["seed"] == 2
    assert 4_000_000 < (out / "report.html").stat().st_size < 8_000_000
    assert b"warning" not in progress, progress.decode()
    assert b"Time runs 15 times as fast" in progress
    assert left_of(temporary) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_demo_and_every_process_of_it(tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = await demo("--out", str(tmp_path / "out"), temporary=temporary)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while b"starting load" not in await process.stdout.readline():
            pass
        for _ in range(400):
            if any("tidegate engine" in words for words in left_of(temporary)):
                break
            await asyncio.sleep(0.05)
    assert len(left_of(temporary)) >= 3
    process.send_signal(number)
    printed, errors = await process.communicate()
    assert process.returncode == 128 + number, errors.decode()
    assert f"stopped by {number.name}".encode() in printed
    assert b"Traceback" not in errors
    assert left_of(temporary) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--seconds", "10"), "--seconds 10: must be 360 to 27000"),
        (("--trace", "no-such-file.csv"), "no-such-file.csv"),
    ],
)
async def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    process = await demo(*words, "--out", str(tmp_path / "out"), temporary=tmp_path)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode().count("\n") == 1
    assert says in errors.decode()


def broken(document: dict[str, Any]) -> dict[str, Any]:
    document["spec"]["variants"][0]["capacity"] = -1
    return document


async def test_a_stack_whose_controller_fails_says_what_it_wrote_and_leaves_nothing(tmp_path: Path) -> None:
    document = broken(policy_document("tidegate", generated(1), tmp_path, bound_s=60.0))
    async with aiohttp.ClientSession() as client:
        stack = Stack("tidegate", document, tmp_path, client)
        with pytest.raises(StackFailed, match=r"(?s)controller ended with exit code 2.*capacity"):
            await stack.start()
        await stack.stop()
    assert left_of(tmp_path) == []


async def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    child = Child("engine", ["engine", "--port", "0", "--ignore-sigterm", "--exit-after-s", "60"], tmp_path)
    await child.start()
    await child.ready()
    assert not await child.stop(0.2)
    with pytest.raises(StackFailed, match="exit code -9"):
        child.check()
