"""Every row of the table of field faults has a test that shows it and a kept mutation that makes one fail, and the page
says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fault_marks import marked, table
from tests.mutate import rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "field-faults.md"
ROWS = {f"R{number}" for number in range(1, 30)}


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """Row -> its tests."""
    return marked()


def test_each_row_is_shown_by_a_test_and_at_least_ten_on_a_real_engine(shown: dict[str, list[str]]) -> None:
    assert shown.keys() == ROWS
    assert sum(any(test.startswith("tests/engines/") for test in tests) for tests in shown.values()) >= 10


def test_each_row_has_a_fix_that_can_be_undone(shown: dict[str, list[str]]) -> None:
    assert {row.fault for row in rows()} == ROWS
    ids = {test for tests in shown.values() for test in tests}
    ids |= {test.partition("[")[0] for test in ids}
    strange = [row.test for row in rows() if row.test not in ids]
    assert not strange, f"mutations of tests that carry no mark: {strange}"


def test_each_mutation_can_still_be_made() -> None:
    for row in rows():
        row.applied((ROOT / row.file).read_text(encoding="utf-8"))


def test_the_page_has_each_row_and_the_tests_as_they_are(shown: dict[str, list[str]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (R\d+) \| [a-zA-Z]", page, re.MULTILINE)) == ROWS
    assert table(shown) in page, "bring the page's second table up to date: python -m tests.fault_marks"
