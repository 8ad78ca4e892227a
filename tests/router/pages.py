"""The tables of `docs/http.md` that are made from tables of tests: read, compared, brought up to date."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"


class Named(Protocol):
    """A row that says what it is about."""

    @property
    def what(self) -> str: ...


R = TypeVar("R", bound=Named)


def grouped(sections: Mapping[str, Sequence[R]], said: Callable[[R], str], columns: tuple[str, str]) -> str:
    """A table for each section: what is said of rows, and the rows of which it is said."""
    text = ""
    for section, rows in sections.items():
        text += f"\n### {section}\n\n| {columns[0]} | {columns[1]} |\n|---|---|\n"
        groups: dict[str, list[str]] = {}
        for row in rows:
            groups.setdefault(said(row), []).append(row.what)
        text += "".join(f"| {words} | {'; '.join(whats)} |\n" for words, whats in groups.items())
    return text + "\n"


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)


def shown(name: str) -> str:
    """What the page shows between the marks of that name."""
    found = _between(name).search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"no marks {name!r} in {PAGE.name}"
    return found[0]


def bring_up_to_date(name: str, text: str) -> None:
    """Write it there."""
    PAGE.write_text(_between(name).sub(lambda _: text, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
