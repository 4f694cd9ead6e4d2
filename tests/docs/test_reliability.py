"""docs/reliability.md claims what tests hold: each of its tests is there, and each row has one."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from sources import ROOT

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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_each_row_is_held_by_tests_that_exist(row: str) -> None:
    """A row without a test, or with one that was renamed, is a promise nobody keeps."""
    assert len(row.split(" | ")) == 3
    assert named(row)
    for name in named(row):
        path, _, test = name.partition("::")
        assert test in found_in(path), name


def test_a_test_that_is_not_there_is_found_out() -> None:
    """The names of this very file are seen; others are not."""
    here = found_in("docs/test_reliability.py")
    assert "test_a_test_that_is_not_there_is_found_out" in here
    assert "named" not in here
    assert named("| a | b | `x/y.py::T::test_z`, `no test` |") == ["x/y.py::T::test_z"]
