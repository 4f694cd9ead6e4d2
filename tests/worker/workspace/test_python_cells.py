"""What cells leave behind: values, each with what it was made from."""

from __future__ import annotations

from typing import Any

from orch_protocol.core.workspace import Artifact, DropArtifacts, FileState, InvalidateArtifacts, TouchArtifacts
from orch_worker.workspace.describe_value import describe_value, is_ours
from orch_worker.workspace.python_cells import BoundName, PythonCell, invalidate_unbound, steps_of
from orch_worker.workspace.state import Workspace

FILES = {"data.csv": FileState("data.csv", 1, 2), "rate.txt": FileState("rate.txt", 3, 4)}


class Notebook:
    """Runs cells, and keeps track of what they leave."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.before: dict[str, BoundName] = {}
        self.workspace = Workspace()
        self.turn = 0

    def run(self, *codes: str) -> list[Any]:
        """Run cells in one step and return what became of the workspace."""
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
        after = {name: BoundName(id(value), describe_value(value), is_ours(value)) for name, value in seen}
        steps = steps_of(cells, self.before, after, self.workspace, FILES.get, most=100)
        for step in steps:
            self.workspace.apply(step)
        self.before = after
        return steps

    def __getitem__(self, name: str) -> Artifact:
        return self.workspace.artifacts[f"value:{name}"]


def test_a_value_is_kept_with_what_it_was_made_from() -> None:
    """Names and files that its own statement reads, and nothing that another one does."""
    book = Notebook()
    book.run("rows = [1, 2]; text = 'data.csv'\nrate = 3\ntotal = sum(rows) * rate\nother = len('rate.txt')")
    assert book["total"].deps == ("value:rate", "value:rows")
    assert (book["total"].kind, book["total"].summary, book["total"].turn) == ("int", "9", 1)
    assert book["text"].files == (FILES["data.csv"],)
    assert (book["other"].deps, book["other"].files) == ((), (FILES["rate.txt"],))


def test_binding_a_name_anew_makes_what_was_made_from_it_stale() -> None:
    """Also when it is equal; and running the cells below again makes it right again."""
    book = Notebook()
    book.run("a = 1", "b = a + 1", "c = b + 1")
    book.run("a = 1")
    assert [bool(book[name].stale) for name in "abc"] == [False, True, True]
    book.run("b = a + 1\nc = b + 1")
    assert [bool(book[name].stale) for name in "abc"] == [False, False, False]


def test_a_name_that_is_bound_anew_below_in_the_same_step_counts() -> None:
    """What was made from it before that is of the old one."""
    book = Notebook()
    book.run("a = 1\nb = a\na = 2")
    assert (bool(book["a"].stale), bool(book["b"].stale)) == (False, True)


def test_what_a_name_was_goes_into_what_it_is() -> None:
    """`x = f(x)` is still from the files and names that x was from, within a cell and over several."""
    book = Notebook()
    book.run("rate = 2\nx = ['data.csv']\nx = x * rate")
    book.run("x += ['rate.txt']")
    assert book["x"].deps == ("value:rate",)
    assert {mark.path for mark in book["x"].files} == {"data.csv", "rate.txt"}


def test_a_function_hands_on_what_it_reads() -> None:
    """What it returns is stale when a name is bound anew that it reads."""
    book = Notebook()
    book.run("rate = 2\ndef times(x): return x * rate", "y = times(3)", "rate = 5")
    assert book["times"].kind == "function"
    assert [bool(book[name].stale) for name in ("rate", "times", "y")] == [False, True, True]


def test_a_value_that_a_method_changed_is_kept_anew_and_one_that_it_did_not_is_only_used() -> None:
    """By what it looks like."""
    book = Notebook()
    book.run("a = [1]\nb = len(a)")
    steps = book.run("a.copy()")
    assert steps == [TouchArtifacts(("value:a",), 2)]
    book.run("a.append(2)")
    assert book["a"].summary == "2 long: 1, 2"
    assert book["b"].stale == "made from value:a as it was before"


def test_what_is_deleted_or_bound_to_a_module_is_not_kept() -> None:
    """Nor is what was imported: it is somebody else's."""
    book = Notebook()
    book.run("import json\nfrom json import dumps\na = 1\nb = 2")
    assert list(book.workspace.artifacts) == ["value:a", "value:b"]
    steps = book.run("del a\nimport json as b")
    assert isinstance(steps[0], DropArtifacts)
    assert len(book.workspace) == 0


def test_of_a_cell_that_failed_what_it_had_bound_by_then_is_kept() -> None:
    """And what it would have bound is as it was."""
    book = Notebook()
    book.run("a = 1\nb = [a]\nc = [b]")
    book.run("b = [2]\n1 / 0\nc = [3]")
    assert (book["b"].turn, book["c"].turn) == (2, 1)
    assert bool(book["c"].stale)


def test_what_is_bound_together_is_not_made_from_itself() -> None:
    """A loop's names, and what a `with` opens."""
    book = Notebook()
    book.run("xs = [1, 2]\nfor x in xs: y = x\n")
    assert book["y"].deps == ("value:xs",)


def test_values_of_a_process_that_has_ended_are_stale() -> None:
    """Those that are bound still are not; files and pages are not values."""
    there = Notebook()
    there.run("a = 1", "b = 2")
    left = {"a": there.before["a"]}
    [step] = invalidate_unbound(there.workspace, left, 100)
    assert isinstance(step, InvalidateArtifacts)
    assert step.names == ("value:b",)
    there.workspace.apply(step)
    assert invalidate_unbound(there.workspace, left, 100) == []


def test_values_that_were_bound_anew_on_another_branch_are_stale() -> None:
    """The conversation went back, the process did not; what is the same there as here is not."""
    here, there = Notebook(), Notebook()
    here.run("rows = [1, 2]", "same = 'x' * 300", "text = 'a'")
    there.run("rows = [1, 2, 3]", "same = 'x' * 300", "text = 4")
    [step] = invalidate_unbound(here.workspace, there.before, 100)
    assert step.names == ("value:rows", "value:text")
    assert "another value" in step.why
