"""Which tests show which rows of the table of field faults: asked of pytest itself, because marks also stand on the rows
of tables.

    python -m tests.fault_marks        prints docs/field-faults.md's table of tests

As a plugin (`-p tests.fault_marks`) it prints one JSON line per mark of a collected test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIGN = "fault-mark "


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest: everything is collected."""
    for item in session.items:
        for mark in item.iter_markers("fault"):
            for row in mark.args:
                print(SIGN + json.dumps([row, item.nodeid]))


def marked() -> dict[str, list[str]]:
    """Row -> ids of its tests, in the order of collection. Raises `AssertionError` when collecting fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests",
        "--collect-only",
        "-q",
        "-m",
        "fault",
        "-p",
        "tests.fault_marks",
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    found: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if line.startswith(SIGN):
            row, test = json.loads(line[len(SIGN) :])
            found[row].append(test)
    return found


def table(found: dict[str, list[str]]) -> str:
    """The page's second table: the files whose tests show a row, those on real engines apart."""
    lines = ["| row | on real engines | elsewhere |", "|---|---|---|"]
    for row in sorted(found, key=lambda each: int(each[1:])):
        files = sorted({test.partition("::")[0].removeprefix("tests/") for test in found[row]})
        real = ", ".join(f"`{name}`" for name in files if name.startswith("engines/")) or "-"
        others = ", ".join(f"`{name}`" for name in files if not name.startswith("engines/")) or "-"
        lines.append(f"| {row} | {real} | {others} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(marked()))
