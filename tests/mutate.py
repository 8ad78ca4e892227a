"""Undoes the fixes, one at a time, and requires the tests that show them to fail.

    python -m tests.mutate [--fault R7]... [--only wire] [--list]

Each row of `tests/mutations/*.yaml` names a field fault, a file, text that occurs there once, what stands there without
the fix, and a test. The tree is copied to a temporary folder, so the working tree is never touched; first every test of
the chosen rows must pass on the unchanged copy. Exit code 1 when a test passes without its fix, 2 when a row is bad.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "mutations"
TEST_BOUND_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One fix undone."""

    source: str
    fault: str
    file: str
    old: str
    new: str
    test: str

    def applied(self, text: str) -> str:
        """The file's text without the fix. Raises `ValueError` when the old text is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.source}: {self.fault}: the text to replace occurs {text.count(self.old)} times in {self.file}"
            )
        return text.replace(self.old, self.new)


def rows(folder: Path = FOLDER) -> list[Mutation]:
    """All rows, by file and then as they stand. Raises `TypeError` for a row with a missing or an unknown key."""
    return [
        Mutation(source=path.stem, **row)
        for path in sorted(folder.glob("*.yaml"))
        for row in yaml.safe_load(path.read_text(encoding="utf-8")) or []
    ]


def copied(into: Path) -> Path:
    """The tree as git sees it, without what it ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in listing.stdout.splitlines():
        if (ROOT / line).is_file():
            (into / line).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / line, into / line)
    return into


def passes(tree: Path, tests: list[str]) -> tuple[bool, str]:
    """Do tests pass there, and the last lines that pytest printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=TEST_BOUND_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"not done after {TEST_BOUND_S} s"
    return done.returncode == 0, "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])


def survivors(tree: Path, chosen: list[Mutation]) -> list[Mutation]:
    """Rows whose test passes although the fix is undone."""
    alive = []
    for row in chosen:
        path = tree / row.file
        before = path.read_text(encoding="utf-8")
        path.write_text(row.applied(before), encoding="utf-8")
        try:
            passed, said = passes(tree, [row.test])
        finally:
            path.write_text(before, encoding="utf-8")
        print(f"{row.fault:4} {'SURVIVED' if passed else 'killed':8} {row.file:32} {row.test}", flush=True)
        if passed or "no tests ran" in said or "error" in said.lower().split("failed")[0]:
            print(said)
        if passed:
            alive.append(row)
    return alive


def main() -> int:
    """Run the chosen rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description="undo fixes and see tests fail")
    parser.add_argument("--fault", action="append", help="only this row of the table of field faults; may be repeated")
    parser.add_argument("--only", help="only the file of this name, without .yaml")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the rows are (default tests/mutations)")
    parser.add_argument("--list", action="store_true", help="print the rows and do nothing")
    args = parser.parse_args()
    chosen = [
        row
        for row in rows(args.folder)
        if args.only in (None, row.source) and (not args.fault or row.fault in args.fault)
    ]
    if args.list:
        for row in chosen:
            print(f"{row.fault:4} {row.file:32} {row.test}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        try:
            for row in chosen:
                row.applied((tree / row.file).read_text(encoding="utf-8"))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        passed, said = passes(tree, sorted({row.test for row in chosen}))
        if not passed:
            print(f"the tests do not pass as things are:\n{said}", file=sys.stderr)
            return 2
        alive = survivors(tree, chosen)
    print(f"{len(chosen)} fixes undone, {len(alive)} not noticed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
