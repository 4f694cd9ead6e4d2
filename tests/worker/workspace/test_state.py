"""A workspace is the fold of its steps: what is kept, used, stale, pinned and forgotten."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orch_protocol.core.workspace import (
    Artifact,
    DropArtifacts,
    InvalidateArtifacts,
    KeepArtifact,
    PinArtifacts,
    TouchArtifacts,
    WorkspaceSteps,
)
from orch_worker.workspace.state import Workspace, artifacts_to_prune, resolve_names


def made(name: str, *deps: str, **more: Any) -> KeepArtifact:
    """Return that there is an artifact of that name, made from `deps`."""
    return KeepArtifact(Artifact(name, "int", deps=deps, **more))


def stale(workspace: Workspace) -> list[str]:
    """Return the names of what is not to be relied on."""
    return [each.name for each in workspace if each.stale]


def test_one_that_is_made_anew_takes_the_place_of_the_old_one_and_stays_pinned() -> None:
    """With where it is from now; it is the last of all then."""
    there = Workspace([made("a", turn=1), made("b"), PinArtifacts(("a",)), made("a", turn=2)])
    assert [(each.name, each.turn, each.pinned) for each in there] == [("b", 0, False), ("a", 2, True)]


def test_what_was_made_from_a_name_is_stale_when_that_is_bound_anew_however_far_below() -> None:
    """The one below the name says which, those further down say through what; the name itself is not."""
    there = Workspace([made("a"), made("b", "a"), made("c", "b"), made("d", "x"), made("a")])
    assert stale(there) == ["b", "c"]
    assert there.artifacts["b"].stale == "made from a as it was before"
    assert there.artifacts["c"].stale == "made from b, which is stale"


def test_one_that_is_the_same_as_before_makes_nothing_stale() -> None:
    """A file that is read again and has not changed."""
    there = Workspace([made("a"), made("b", "a"), KeepArtifact(Artifact("a", "int", turn=9), same=True)])
    assert stale(there) == []
    assert there.artifacts["a"].turn == 9


def test_circles_end() -> None:
    """Two that were made from each other are stale together, and nothing goes round for ever."""
    there = Workspace([made("a", "c"), made("b", "a"), KeepArtifact(Artifact("c", "int", deps=("b",)), same=True)])
    assert stale(there) == []
    assert set(there.below("a")) == {"b", "c"}
    there.apply(InvalidateArtifacts(("b",), "its file has changed"))
    assert stale(there) == ["a", "b", "c"]
    assert there.artifacts["b"].stale == "its file has changed"


def test_what_is_made_from_something_stale_is_stale_from_the_start_and_made_anew_it_is_not() -> None:
    """Until what it is made from is made anew too."""
    there = Workspace([made("a"), InvalidateArtifacts(("a",), "gone"), made("b", "a")])
    assert there.artifacts["b"].stale == "made from a, which is stale"
    for step in (made("a"), made("b", "a")):
        there.apply(step)
    assert stale(there) == []


def test_the_first_reason_stays() -> None:
    """Why it was stale at first is what is told."""
    there = Workspace([made("a"), InvalidateArtifacts(("a",), "one"), InvalidateArtifacts(("a",), "two")])
    assert there.artifacts["a"].stale == "one"


def test_steps_about_what_is_not_there_do_nothing() -> None:
    """An archive that was deleted may have taken it along."""
    there = Workspace(
        [
            PinArtifacts(("x",)),
            TouchArtifacts(("x",), 3),
            InvalidateArtifacts(("x",), "why"),
            DropArtifacts(("x",)),
            made("a", used=5),
        ]
    )
    there.apply(TouchArtifacts(("a",), 4))
    assert [(each.name, each.used) for each in there] == [("a", 5)]


@pytest.mark.parametrize("data", [None, 3, "x", {"steps": 3}, {"steps": [{"type": "of a later version"}]}, []])
def test_an_entry_that_cannot_be_read_says_nothing(data: Any) -> None:
    """It is damaged, of a later version, or of somebody who calls other things so."""
    there = Workspace([made("a")])
    there.take(data)
    assert list(there.artifacts) == ["a"]


def test_what_was_recorded_is_taken_in_as_it_was() -> None:
    """All of it, through JSON."""
    keep = made("a", "b", summary="ü\n", arguments={"path": "x"}, untrusted=True, size=3, used=7)
    data = msgspec.json.decode(
        msgspec.json.encode(msgspec.to_builtins(WorkspaceSteps("q", (keep, PinArtifacts(("a",))))))
    )
    there, other = Workspace(), Workspace([keep, PinArtifacts(("a",))])
    there.take(data)
    assert there.artifacts == other.artifacts


def of(*rows: tuple[str, int, int], pinned: tuple[str, ...] = ()) -> Workspace:
    """Return a workspace of rows of name, last turn of use, and size."""
    return Workspace([made(name, used=used, size=size) for name, used, size in rows] + [PinArtifacts(pinned)])


def test_what_is_out_of_use_for_long_is_forgotten_but_not_what_is_pinned() -> None:
    """By the turn that it is now: one that was used since is young."""
    there = of(("old", 1, 1), ("pinned", 1, 1), ("used", 1, 1), ("new", 9, 1), pinned=("pinned",))
    there.apply(TouchArtifacts(("used",), 8))
    assert artifacts_to_prune(there, 10, turns=50, bytes=100, count=9) == ()
    assert [step.names for step in artifacts_to_prune(there, 51, turns=50, bytes=100, count=9)] == [("old",)]


def test_above_a_size_the_largest_is_forgotten_first() -> None:
    """Until it is enough; what is pinned or was used just now stays, however large."""
    there = of(("large", 1, 60), ("small", 1, 5), ("middle", 1, 30), ("kept", 1, 90), ("now", 4, 99), pinned=("kept",))
    assert [step.names for step in artifacts_to_prune(there, 4, turns=50, bytes=230, count=9)] == [("large",)]
    [step] = artifacts_to_prune(there, 4, turns=50, bytes=1, count=9)
    assert step.names == ("large", "middle", "small")
    assert "among the largest" in step.why


def test_above_a_number_what_was_not_used_for_longest_is_forgotten() -> None:
    """However young all of it is."""
    there = of(("a", 3, 1), ("b", 1, 1), ("c", 2, 1), ("d", 1, 1), pinned=("d",))
    assert [step.names for step in artifacts_to_prune(there, 4, turns=50, bytes=99, count=2)] == [("b", "c")]


def test_a_name_is_found_by_its_end_too() -> None:
    """As long as only one ends so; a whole name is that one."""
    there = Workspace([made("file:a.py"), made("value:a.py"), made("value:b")])
    assert resolve_names(there, "b") == ["value:b"]
    assert resolve_names(there, "file:a.py") == ["file:a.py"]
    assert resolve_names(there, "a.py") == ["file:a.py", "value:a.py"]
    assert resolve_names(there, "c") == []
