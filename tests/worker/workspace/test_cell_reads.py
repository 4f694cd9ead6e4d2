"""What code reads and binds, by its text."""

from __future__ import annotations

import pytest

from orch_worker.workspace.python_cells import analyze_statements


def read(code: str) -> set[str]:
    """Return all names that `code` reads of its namespace."""
    return {name for each in analyze_statements(code) for name in each.reads}


def bound(code: str) -> set[str]:
    """Return all names that `code` binds in its namespace."""
    return {name for each in analyze_statements(code) for name in each.binds}


@pytest.mark.parametrize(
    ("code", "reads", "binds"),
    [
        ("a = b + c.d[e]", {"b", "c", "e"}, {"a"}),
        ("a, (b, *c) = d", {"d"}, {"a", "b", "c"}),
        ("a += b", {"a", "b"}, {"a"}),
        ("a[b] = c", {"a", "b", "c"}, {"a"}),
        ("a.b.c = d", {"a", "d"}, {"a"}),
        ("for a in b: c = a", {"a", "b"}, {"a", "c"}),
        ("with a as b: c = b", {"a", "b"}, {"b", "c"}),
        ("if (a := b): pass", {"b"}, {"a"}),
        ("import a.b, c as d\nfrom e import f as g", set(), {"a", "d", "g"}),
        ("a = [b for c in d if c in e]", {"b", "d", "e"}, {"a"}),
        ("a = [b for b in b]", {"b"}, {"a"}),
        ("a = {b: c for b, c in d.items()}", {"d"}, {"a"}),
        ("a = [(x := b) for b in c]", {"c"}, {"a", "x"}),
        ("a = lambda b, c=d: b + e", {"d", "e"}, {"a"}),
        ("def a(b, *c, d=e, **f):\n    g = b + h\n    return g", {"e", "h"}, {"a"}),
        ("def a():\n    import b\n    try: c\n    except Error as d: d\n    return b", {"Error", "c"}, {"a"}),
        ("def a():\n    global b\n    b = c\n    return b", {"b", "c"}, {"a"}),
        ("class A(B):\n    c = d\n    def e(self): return f", {"B", "d", "f"}, {"A"}),
        ("@a\ndef b(): pass", {"a"}, {"b"}),
        ("async def a():\n    async with b as c: await c", {"b"}, {"a"}),
    ],
)
def test_names_that_code_reads_and_binds_are_found(code: str, reads: set[str], binds: set[str]) -> None:
    """Of the namespace; what belongs to a function, a class or a comprehension is its own affair."""
    assert (read(code), bound(code)) == (reads, binds)


def test_each_statement_is_told_by_itself() -> None:
    """So that what one makes is not thought to be made from what another one reads."""
    one, two = analyze_statements("a = b\nc = d")
    assert (one.reads, one.binds, two.reads, two.binds) == (("b",), ("a",), ("d",), ("c",))


def test_what_may_change_in_place_what_is_deleted_and_what_may_be_files_is_told() -> None:
    """The methods of a name may change it; short texts may name files."""
    [each] = analyze_statements("a.append(open('data.csv').read(b['x']))")
    assert each.calls == ("a",)
    assert set(each.texts) == {"data.csv", "x"}
    assert analyze_statements("del a, b.c")[0].deletes == ("a",)


@pytest.mark.parametrize("code", ["a = (", "", "\0", "x" * 300_000, "(" * 5_000 + ")" * 5_000, "-" * 100_000 + "1"])
def test_code_that_cannot_be_read_says_nothing(code: str) -> None:
    """Whether it is wrong, too much or too deep."""
    assert bound(code) == set()
