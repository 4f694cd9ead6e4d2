"""The files for building and installing the project agree with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from itertools import chain
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from source_tree import PACKAGES, ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def canonical(name: str) -> str:
    """Return `name` in the normal form for comparing packages."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, Version]:
    """Return the versions that CI tests with."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {
        canonical(name): Version(version.partition(";")[0].strip())
        for name, _, version in (line.partition("==") for line in lines)
    }


def test_pins_satisfy_the_project() -> None:
    """constraints.txt contains a version of each dependency that pyproject.toml allows."""
    project = PROJECT["project"]
    for requirement in map(Requirement, chain(project["dependencies"], *project["optional-dependencies"].values())):
        assert pins()[canonical(requirement.name)] in requirement.specifier, requirement


def test_extras_are_tested() -> None:
    """The packages of all extras are installed when the tests run."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert {each for extra in extras.values() for each in extra} == set(extras["test"])


def test_pins_are_names_and_versions() -> None:
    """constraints.txt contains no address, file or hash."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("# ") or re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line), line


def test_wheel_holds_our_packages() -> None:
    """The wheel contains the three packages, and each package is marked as typed."""
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == [f"{folder}/{package}" for package, folder in PACKAGES.items()]
    for package in packages:
        assert (ROOT / package / "py.typed").read_bytes() == b""


def test_ci_runs_what_the_readme_promises() -> None:
    """CI calls the two commands of the README and every check. The Makefile contains all of them."""
    called = set(re.findall(r"\bmake ([a-z ]+?)(?= [A-Z2&|]|$)", CI, re.MULTILINE))
    words = {word for call in called for word in call.split()}
    assert words >= {"demo", "test", "lint", "types", "layers"}
    assert words <= set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def test_make_needs_a_new_enough_python(tmp_path: Any) -> None:
    """Without a suitable interpreter, make prints the required version and builds nothing."""
    done = subprocess.run(
        ["make", "test", "PYTHON=false", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert list(tmp_path.iterdir()) == []
