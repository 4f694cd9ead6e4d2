"""Values that Python cells leave, and the sources of each value."""

from __future__ import annotations

from typing import Any

from orch_protocol.core.workspace import Artifact, DropArtifacts, FileState, InvalidateArtifacts, TouchArtifacts
from orch_worker.tools.python.describe_value import created_by_agent, describe_value
from orch_worker.workspace.python_cells import BoundName, PythonCell, invalidate_unbound, steps_of
from orch_worker.workspace.state import Workspace

FILES = {"data.csv": FileState("data.csv", 1, 2), "rate.txt": FileState("rate.txt", 3, 4)}


class Notebook:
    """A namespace in which cells run, and the workspace with their values."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.before: dict[str, BoundName] = {}
        self.workspace = Workspace()
        self.turn = 0

    def run(self, *codes: str) -> list[Any]:
        """Run cells in one step and return the changes of the workspace."""
        self.turn += 1
        cells = []
        for code in codes:
            try:
                exec(code, self.names)
                whole = True
            except ZeroDivisionError:
                whole = False
            cells.append(PythonCell(code, Artifact("", "", tool="run_python", turn=self.turn, used=self.turn), whole))
        seen = [(name, value) for name, value in self.names.items() if name[:1] != "_"]
        after = {name: BoundName(id(value), describe_value(value), created_by_agent(value)) for name, value in seen}
        steps = steps_of(cells, self.before, after, self.workspace, FILES.get, limit=100)
        for step in steps:
            self.workspace.apply(step)
        self.before = after
        return steps

    def __getitem__(self, name: str) -> Artifact:
        return self.workspace.artifacts[f"value:{name}"]


def test_value_records_the_names_and_files_it_was_made_from() -> None:
    """Only the sources of the value's own statement count."""
    book = Notebook()
    book.run("rows = [1, 2]; text = 'data.csv'\nrate = 3\ntotal = sum(rows) * rate\nother = len('rate.txt')")
    assert book["total"].deps == ("value:rate", "value:rows")
    assert (book["total"].kind, book["total"].summary, book["total"].turn) == ("int", "9", 1)
    assert book["text"].files == (FILES["data.csv"],)
    assert (book["other"].deps, book["other"].files) == ((), (FILES["rate.txt"],))


def test_rebinding_a_name_makes_derived_values_stale() -> None:
    """Derived values become stale even if the new value is equal. Running the later cells again refreshes them."""
    book = Notebook()
    book.run("a = 1", "b = a + 1", "c = b + 1")
    book.run("a = 1")
    assert [bool(book[name].stale) for name in "abc"] == [False, True, True]
    book.run("b = a + 1\nc = b + 1")
    assert [bool(book[name].stale) for name in "abc"] == [False, False, False]


def test_rebinding_a_name_later_in_the_same_step_counts() -> None:
    """The derived value was made from the old value."""
    book = Notebook()
    book.run("a = 1\nb = a\na = 2")
    assert (bool(book["a"].stale), bool(book["b"].stale)) == (False, True)


def test_rebinding_a_name_from_itself_keeps_its_sources() -> None:
    """`x = f(x)` keeps the sources of `x`, within a cell and across cells."""
    book = Notebook()
    book.run("rate = 2\nx = ['data.csv']\nx = x * rate")
    book.run("x += ['rate.txt']")
    assert book["x"].deps == ("value:rate",)
    assert {mark.path for mark in book["x"].files} == {"data.csv", "rate.txt"}


def test_function_passes_on_its_global_reads() -> None:
    """A result of the function is stale when such a name is rebound."""
    book = Notebook()
    book.run("rate = 2\ndef times(x): return x * rate", "y = times(3)", "rate = 5")
    assert book["times"].kind == "function"
    assert [bool(book[name].stale) for name in ("rate", "times", "y")] == [False, True, True]


def test_value_mutated_by_a_method_is_recorded_again() -> None:
    """The change is found by comparing descriptions. An unchanged value counts as used."""
    book = Notebook()
    book.run("a = [1]\nb = len(a)")
    steps = book.run("a.copy()")
    assert steps == [TouchArtifacts(("value:a",), 2)]
    book.run("a.append(2)")
    assert book["a"].summary == "2 long: 1, 2"
    assert book["b"].stale == "made from value:a as it was before"


def test_deleted_names_and_imports_are_not_kept() -> None:
    """Only values that the code defines are artifacts."""
    book = Notebook()
    book.run("import json\nfrom json import dumps\na = 1\nb = 2")
    assert list(book.workspace.artifacts) == ["value:a", "value:b"]
    steps = book.run("del a\nimport json as b")
    assert isinstance(steps[0], DropArtifacts)
    assert len(book.workspace) == 0


def test_failed_cell_keeps_the_names_it_had_bound() -> None:
    """Names after the failed statement keep their old values."""
    book = Notebook()
    book.run("a = 1\nb = [a]\nc = [b]")
    book.run("b = [2]\n1 / 0\nc = [3]")
    assert (book["b"].turn, book["c"].turn) == (2, 1)
    assert bool(book["c"].stale)


def test_jointly_bound_names_are_not_their_own_source() -> None:
    """For example, the target of a loop is not a source of names in its body."""
    book = Notebook()
    book.run("xs = [1, 2]\nfor x in xs: y = x\n")
    assert book["y"].deps == ("value:xs",)


def test_values_of_an_ended_process_are_stale() -> None:
    """Values that are still bound are not."""
    there = Notebook()
    there.run("a = 1", "b = 2")
    left = {"a": there.before["a"]}
    [step] = invalidate_unbound(there.workspace, left, 100)
    assert isinstance(step, InvalidateArtifacts)
    assert step.names == ("value:b",)
    there.workspace.apply(step)
    assert invalidate_unbound(there.workspace, left, 100) == []


def test_values_rebound_on_another_branch_are_stale() -> None:
    """Going back does not restore the process's namespace."""
    here, there = Notebook(), Notebook()
    here.run("rows = [1, 2]", "same = 'x' * 300", "text = 'a'")
    there.run("rows = [1, 2, 3]", "same = 'x' * 300", "text = 4")
    [step] = invalidate_unbound(here.workspace, there.before, 100)
    assert step.names == ("value:rows", "value:text")
    assert "another value" in step.why
