"""A wheel built from the tree installs and runs outside the checkout, and carries no tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the checkout gets no build folders."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("autoscaler", "forecasting", "loadtests", "router"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tidegate.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("tidegate-*.whl"))


def test_it_holds_the_packages_their_data_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"autoscaler", "forecasting", "loadtests", "router", "tidegate.py"}
    assert "router/py.typed" in names
    assert not [name for name in names if Path(name).name.startswith("test_")]


def test_it_installs_and_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    zipfile.ZipFile(wheel).extractall(site)
    dependencies = sysconfig.get_path("purelib")
    program = (
        f"import sys; sys.path.append({dependencies!r})\n"
        "import router, tidegate\n"
        f"assert tidegate.__file__.startswith({str(site)!r}), tidegate.__file__\n"
        f"assert router.__file__.startswith({str(site)!r}), router.__file__\n"
        "raise SystemExit(tidegate.main(sys.argv[1:]))"
    )
    policy = tmp_path / "policy.yaml"
    shutil.copy(ROOT / "deploy" / "examples" / "local.yaml", policy)
    for arguments in (["--help"], ["validate", "-f", str(policy)], ["engine", "--help"]):
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [str(python), "-c", program, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        assert done.stdout
