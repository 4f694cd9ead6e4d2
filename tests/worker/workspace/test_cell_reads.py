"""The analysis of Python code: which names it reads and binds."""

from __future__ import annotations

import pytest

from orch_worker.workspace.python_cells import analyze_statements


def read(code: str) -> set[str]:
    """Return all global names that `code` reads."""
    return {name for each in analyze_statements(code) for name in each.reads}


def bound(code: str) -> set[str]:
    """Return all global names that `code` binds."""
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
def test_names_read_and_bound_by_code_are_found(code: str, reads: set[str], binds: set[str]) -> None:
    """Names that are local to functions and comprehensions do not count."""
    assert (read(code), bound(code)) == (reads, binds)


def test_reads_are_reported_per_statement() -> None:
    """The result of one statement does not include reads of another."""
    one, two = analyze_statements("a = b\nc = d")
    assert (one.reads, one.binds, two.reads, two.binds) == (("b",), ("a",), ("d",), ("c",))


def test_mutations_deletions_and_possible_file_names_are_reported() -> None:
    """A method call may change its object, and a short text may be a file name."""
    [each] = analyze_statements("a.append(open('data.csv').read(b['x']))")
    assert each.calls == ("a",)
    assert set(each.texts) == {"data.csv", "x"}
    assert analyze_statements("del a, b.c")[0].deletes == ("a",)


@pytest.mark.parametrize("code", ["a = (", "", "\0", "x" * 300_000, "(" * 5_000 + ")" * 5_000, "-" * 100_000 + "1"])
def test_unparsable_code_reports_nothing(code: str) -> None:
    """The code is invalid, too long or nested too deeply."""
    assert bound(code) == set()
