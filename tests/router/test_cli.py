"""`tidegate router` from the command line: help, light imports, refusals in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from router.cli import router
from router.errors import BadInput


def test_the_help_has_an_example_and_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tidegate.main(["router", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "tidegate router -f router.yaml" in text
    assert "tidegate router --worker-urls http://127.0.0.1:8000" in text
    for flag in (
        "--file",
        "--worker-urls",
        "--model",
        "--host",
        "--port",
        "--admin-port",
        "--admin-token-file",
        "--state-dir",
        "--workers",
        "--access-log",
        "--name",
        "--log-level",
        "--max-concurrent-requests",
        "--queue-size",
        "--queue-timeout-secs",
        "--request-timeout-secs",
    ):
        assert flag in text


def test_help_needs_none_of_the_heavy_libraries() -> None:
    heavy = ("aiohttp", "asyncio", "msgspec", "prometheus_client", "pydantic", "structlog", "uvloop", "yaml")
    code = f"import sys, tidegate; tidegate.parser_for('router'); print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "70000"], "tidegate router: --port: 70000 is not a port"),
        (["--admin-host", "0.0.0.0"], "tidegate router: --admin-host: '0.0.0.0' is not loopback"),
        (["--worker-urls", "http://127.0.0.1:8000"], "tidegate router: --model: missing"),
        (["--model", "m"], "tidegate router: --worker-urls: missing; --model 'm' is only for it"),
        (
            ["--worker-urls", "127.0.0.1", "--model", "m"],
            "tidegate router: --worker-urls: '127.0.0.1' is not of the form",
        ),
        (["--admin-token-file", "absent"], "tidegate router: --admin-token-file: absent cannot be read"),
        (["--workers", "0"], "tidegate router: --workers: 0 is out of bounds; allowed: 1 to 256"),
        (["--log-level", "loud"], "tidegate router: --log-level: 'loud' is not a level"),
    ],
)
def test_bad_flags_end_in_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tidegate.main(["router", *argv]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(message)


def test_a_file_and_worker_urls_together_are_refused() -> None:
    args = tidegate.parser_for("router").parse_args(
        ["-f", "x.yaml", "--worker-urls", "http://127.0.0.1:1", "--model", "m"]
    )
    with pytest.raises(BadInput, match="--worker-urls: not together with -f"):
        router(args)
