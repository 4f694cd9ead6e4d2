"""docs/reliability.md claims what tests hold: each of its tests is there, and each row has one."""

from __future__ import annotations

import ast
import re
from functools import cache

from source_tree import ROOT, broken

PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what happens")]


@cache
def found_in(path: str) -> set[str]:
    """Return the tests in `path` below tests/, those of a class as Class::test."""
    module = ast.parse((ROOT / "tests" / path).read_text())
    found = set()
    for node in module.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + each.name for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def named(row: str) -> list[str]:
    """Return the tests that the last column of a row names."""
    return re.findall(r"`([\w/]+\.py::[\w:]+)`", row.rstrip("| ").rpartition(" | ")[2])


def wrong(row: str) -> list[str]:
    """Return what is wrong with a row: it has other columns, names no test, or one that is not there."""
    found = [] if len(row.split(" | ")) == 3 else ["not three columns"]
    found += [] if named(row) else ["no test"]
    return found + [name for name in named(row) if name.partition("::")[2] not in found_in(name.partition("::")[0])]


def test_each_row_is_held_by_tests_that_exist() -> None:
    """A row without a test, or with one that was renamed, is a promise nobody keeps."""
    assert len(ROWS) > 200
    assert broken(wrong, ROWS, lambda row: row.split("|")[1].strip()) == {}


def test_a_test_that_is_not_there_is_found_out() -> None:
    """The names of this very file are seen; others are not."""
    here = found_in("docs/test_reliability.py")
    assert "test_a_test_that_is_not_there_is_found_out" in here
    assert "named" not in here
    assert named("| a | b | `x/y.py::T::test_z`, `no test` |") == ["x/y.py::T::test_z"]
    assert wrong("| a | b | `docs/test_reliability.py::test_of_nothing` |") == [
        "docs/test_reliability.py::test_of_nothing"
    ]
    assert wrong("| a | b |") == ["not three columns", "no test"]
