"""docs/reference/fault_matrix.md: each row names existing tests."""

from __future__ import annotations

import ast
import re
from functools import cache

from source_tree import ROOT, broken

PAGE = (ROOT / "docs" / "reference" / "fault_matrix.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| fault")]


@cache
def found_in(path: str) -> set[str]:
    """Return the names of the tests in the file `path` below tests/. A test of a class is Class::test."""
    module = ast.parse((ROOT / "tests" / path).read_text())
    found = set()
    for node in module.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + each.name for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def named(row: str) -> list[str]:
    """Return the tests in the last column of a row."""
    return re.findall(r"`([\w/]+\.py::[\w:]+)`", row.rstrip("| ").rpartition(" | ")[2])


def wrong(row: str) -> list[str]:
    """Return the errors of a row: a wrong number of columns, no test, and tests that do not exist."""
    found = [] if len(row.split(" | ")) == 3 else ["not three columns"]
    found += [] if named(row) else ["no test"]
    return found + [name for name in named(row) if name.partition("::")[2] not in found_in(name.partition("::")[0])]


def test_each_row_names_existing_tests() -> None:
    """Each row has three columns and names at least one test, and all named tests exist."""
    assert len(ROWS) > 200
    assert broken(wrong, ROWS, lambda row: row.split("|")[1].strip()) == {}


def test_missing_test_is_detected() -> None:
    """The check finds the tests of this file, and reports missing tests and missing columns."""
    here = found_in("docs/test_fault_matrix.py")
    assert "test_missing_test_is_detected" in here
    assert "named" not in here
    assert named("| a | b | `x/y.py::T::test_z`, `no test` |") == ["x/y.py::T::test_z"]
    assert wrong("| a | b | `docs/test_fault_matrix.py::test_of_nothing` |") == [
        "docs/test_fault_matrix.py::test_of_nothing"
    ]
    assert wrong("| a | b |") == ["not three columns", "no test"]
