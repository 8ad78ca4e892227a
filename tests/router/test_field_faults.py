"""Every row of the table of field faults has a test that shows it and a mutation that makes one fail, and the page says
which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.mutate import rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "field-faults.md"
ROWS = {f"R{number}" for number in range(1, 30)}


def marked() -> Iterator[tuple[str, str]]:
    """(row, test id) of each `@pytest.mark.fault(...)`, also of one on a whole module or class."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            decorators = getattr(node, "decorator_list", [])
            for call in (each for each in decorators if isinstance(each, ast.Call)):
                if ast.unparse(call.func) == "pytest.mark.fault":
                    for argument in call.args:
                        yield ast.literal_eval(argument), f"{name}::{node.name}"  # type: ignore[attr-defined]  # what has decorators has a name


def test_each_row_is_shown_by_a_test() -> None:
    shown = {row for row, _ in marked()}
    assert shown - {f"A{number}" for number in range(1, 19)} == ROWS


def test_each_row_has_a_fix_that_can_be_undone() -> None:
    assert {row.fault for row in rows()} == ROWS
    ids = {test for _, test in marked()}
    strange = [row.test for row in rows() if row.test.partition("[")[0] not in ids]
    assert not strange, f"mutations of tests that carry no mark: {strange}"


def test_each_mutation_can_still_be_made() -> None:
    for row in rows():
        row.applied((ROOT / row.file).read_text(encoding="utf-8"))


def test_the_page_names_every_row_and_a_test_that_exists_for_each() -> None:
    said = dict(re.findall(r"^\| (R\d+) \|.*\| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert said.keys() == ROWS
    ids = set(marked())
    for row, tests in said.items():
        for name in re.findall(r"`([\w/.]+::\w+)`", tests) or ["nothing"]:
            assert (row, f"tests/{name}") in ids, f"{row}: {name}"
