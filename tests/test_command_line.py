"""The command line as such: every command that is listed exists, and what is refused is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import tidegate


@pytest.mark.parametrize("name", tidegate.COMMANDS)
def test_every_command_that_is_listed_has_help_with_an_example(name: str) -> None:
    text = tidegate.parser_for(name).format_help()
    assert f"tidegate {name}" in text
    assert "example" in text
    assert callable(getattr(import_module(tidegate.COMMANDS[name][0]), name))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["frobnicate"], "unknown command 'frobnicate'; known: demo"),
        (["replay", "--frob"], "required: --trace, --url"),
        (["engine", "--port", "abc"], "--port: invalid int value: 'abc'"),
        (["validate"], "required: -f"),
        (["replay", "--trace", "none.csv", "--url", "http://127.0.0.1:1"], "none.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = tidegate.main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    printed = capsys.readouterr()
    assert code == 2
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tidegate --help | head -n 1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    for module in [name for name in sys.modules if name.startswith(("autoscaler.cli", "autoscaler.controller"))]:
        monkeypatch.delitem(sys.modules, module)
    assert tidegate.main(["why", "--state-dir", "nowhere"]) == 2
    assert capsys.readouterr().err == "tidegate why: needs numpy: pip install 'tidegate[controller]'\n"
