"""Style that a machine can check: sizes, docstrings, forbidden words, and that what is committed speaks of the project alone."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("autoscaler", "forecasting", "loadtests", "router")
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
MACHINE = re.compile(
    r"/(?:work|farm|root|home)/\w|/tmp/[a-z]|deb\.debian\.org|pypi\.org|pythonhosted|registry\.npmjs|proxy\.golang",
    re.IGNORECASE,
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|NotImplementedError")


def tracked() -> list[Path]:
    """Text files that git tracks or would add; without git, every file outside hidden folders."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        paths = [ROOT / line for line in listing.stdout.splitlines()]
    else:
        paths = [p for p in ROOT.rglob("*") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    return sorted(p for p in paths if p.is_file())


def modules(*folders: str) -> list[Path]:
    """Python modules of the given folders, relative order stable."""
    return [p for p in tracked() if p.suffix == ".py" and (not folders or p.relative_to(ROOT).parts[0] in folders)]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def where(path: Path, line: int = 1) -> str:
    """`file:line` for a message."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_modules_and_functions_stay_small() -> None:
    too_long = []
    for path in modules():
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MODULE_LINES_MAX:
            too_long.append(f"{where(path)}: {lines} lines, at most {MODULE_LINES_MAX}")
        for function in functions(ast.parse(text)):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > FUNCTION_LINES_MAX:
                too_long.append(
                    f"{where(path, function.lineno)}: {function.name} has {length} lines, at most {FUNCTION_LINES_MAX}"
                )
    assert too_long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        where(p)
        for p in modules()
        if p.stat().st_size and ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []


def test_public_functions_and_classes_of_the_product_have_docstrings() -> None:
    silent = []
    for path in modules(*PACKAGES, "tidegate.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if not node.name.startswith("_") and ast.get_docstring(node) is None and not is_wire(node):
                silent.append(f"{where(path, node.lineno)}: {node.name}")
    assert silent == []


def is_wire(node: ast.AST) -> bool:
    """Types of a wire whose fields `contracts` and the other end document."""
    return isinstance(node, ast.ClassDef) and node.name.endswith("Wire")


def test_nothing_names_a_machine_or_a_registry() -> None:
    named = []
    for path in tracked():
        if path == Path(__file__).resolve() or path.suffix in {".png", ".parquet", ".gz"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if MACHINE.search(line):
                named.append(f"{where(path, number)}: {line.strip()[:80]}")
    assert named == []


def test_nothing_is_left_unfinished() -> None:
    left = []
    for path in modules():
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if UNFINISHED.search(line):
                left.append(f"{where(path, number)}: {line.strip()[:80]}")
    assert left == []


@pytest.mark.parametrize(
    "page", ["README.md", "docs/journeys.md", "docs/glossary.md", "docs/benchmarks.md", "docs/router.md"]
)
def test_links_inside_the_documentation_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []
