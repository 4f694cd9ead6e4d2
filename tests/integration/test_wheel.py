"""The built wheel works with its declared dependencies and no extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from source_tree import PACKAGES, ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDS_AN_EXTRA = {"orch.notebook.magic": "IPython"}
"""Modules that import a package of an extra when they are imported."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys

sys.path[:0] = sys.argv[1:]
missing, imported = {}, 0
for package in ("orch_protocol", "orch_worker", "orch"):
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, package + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            imported += 1
        except ModuleNotFoundError as error:
            missing[found.name] = error.name.partition(".")[0]
print(json.dumps({"missing": missing, "imported": imported, "file": sys.modules["orch"].__file__}))
"""


def closure(requirements: list[str]) -> set[str]:
    """Return the names of the distributions that `requirements` install, without extras."""
    found: set[str] = set()
    waiting = [*requirements]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found:
            found.add(name)
            waiting += distribution(name).requires or ()
    return found


def link_distributions(names: set[str], folder: Path) -> None:
    """Create links in `folder` to each top-level package and module of the installed distributions `names`."""
    folder.mkdir()
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(found.locate_file(top)))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the project's files."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=50,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_is_named_orch_agents_and_has_the_command(wheel: Path) -> None:
    """The wheel is not named `orch`, because this name on the package index belongs to another project."""
    assert wheel.name.startswith("orch_agents-")
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "orch = orch.cli:main" in archive.read(entry_points).decode()


def test_every_module_imports_from_the_wheel_without_extras(wheel: Path, tmp_path: Path) -> None:
    """Only the wheel, its declared dependencies and their dependencies can be imported."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    link_distributions(closure(PROJECT["dependencies"]), tmp_path / "dependencies")
    ran = subprocess.run(
        # -S removes site-packages from the path, and -I removes the checkout.
        [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(tmp_path / "wheel"), str(tmp_path / "dependencies")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert Path(result["file"]).is_relative_to(tmp_path)
    assert result["missing"] == NEEDS_AN_EXTRA
    modules = sum(1 for package, folder in PACKAGES.items() for _ in (ROOT / folder / package).rglob("*.py"))
    assert result["imported"] + len(result["missing"]) >= modules - len(PACKAGES) * 2


def test_demo_finds_its_example_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The package contains the script and all files of the example, so that the demo needs no checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    link_distributions(closure(PROJECT["dependencies"]), tmp_path / "dependencies")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; from orch.demo import bug_hunt\n"
        "bug_hunt.copy_project(Path(sys.argv[3])); print(len(bug_hunt.read_script().steps))"
    )
    folders = [str(tmp_path / name) for name in ("wheel", "dependencies", "copy")]
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *folders], capture_output=True, text=True, timeout=50, check=True
    )
    example = ROOT / "examples" / "bug_hunt"
    steps = [step for turn in json.loads((example / "script.json").read_text())["turns"] for step in turn["steps"]]
    assert int(ran.stdout) == len(steps)

    def files(folder: Path) -> dict[str, bytes]:
        found = (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}

    assert files(tmp_path / "copy") == files(example / "project")
