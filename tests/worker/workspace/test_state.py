"""The workspace as a fold of its steps: artifacts are kept, used, stale, pinned and dropped."""

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
    """Return the step that keeps an artifact made from `deps`."""
    return KeepArtifact(Artifact(name, "int", deps=deps, **more))


def stale(workspace: Workspace) -> list[str]:
    """Return the names of stale artifacts."""
    return [each.name for each in workspace if each.stale]


def test_remade_artifact_replaces_the_old_one_and_stays_pinned() -> None:
    """The new artifact has the new origin and is the last one in the order."""
    there = Workspace([made("a", turn=1), made("b"), PinArtifacts(("a",)), made("a", turn=2)])
    assert [(each.name, each.turn, each.pinned) for each in there] == [("b", 0, False), ("a", 2, True)]


def test_rebound_name_makes_all_its_descendants_stale() -> None:
    """The reason names the direct source. The rebound name itself is not stale."""
    there = Workspace([made("a"), made("b", "a"), made("c", "b"), made("d", "x"), made("a")])
    assert stale(there) == ["b", "c"]
    assert there.artifacts["b"].stale == "made from a as it was before"
    assert there.artifacts["c"].stale == "made from b, which is stale"


def test_identical_artifact_makes_nothing_stale() -> None:
    """For example, an unchanged file is read again."""
    there = Workspace([made("a"), made("b", "a"), KeepArtifact(Artifact("a", "int", turn=9), same=True)])
    assert stale(there) == []
    assert there.artifacts["a"].turn == 9


def test_cyclic_dependencies_terminate() -> None:
    """Artifacts that were made from each other become stale together."""
    there = Workspace([made("a", "c"), made("b", "a"), KeepArtifact(Artifact("c", "int", deps=("b",)), same=True)])
    assert stale(there) == []
    assert set(there.dependents("a")) == {"b", "c"}
    there.apply(InvalidateArtifacts(("b",), "its file has changed"))
    assert stale(there) == ["a", "b", "c"]
    assert there.artifacts["b"].stale == "its file has changed"


def test_artifact_made_from_a_stale_one_is_stale() -> None:
    """The artifact is current after its source and the artifact itself are made again."""
    there = Workspace([made("a"), InvalidateArtifacts(("a",), "gone"), made("b", "a")])
    assert there.artifacts["b"].stale == "made from a, which is stale"
    for step in (made("a"), made("b", "a")):
        there.apply(step)
    assert stale(there) == []


def test_first_reason_for_staleness_is_kept() -> None:
    """Later reasons do not replace it."""
    there = Workspace([made("a"), InvalidateArtifacts(("a",), "one"), InvalidateArtifacts(("a",), "two")])
    assert there.artifacts["a"].stale == "one"


def test_events_about_unknown_artifacts_are_ignored() -> None:
    """The artifacts may have been removed with a deleted archive."""
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
def test_invalid_entry_is_ignored(data: Any) -> None:
    """The entry may be damaged, or come from another version or program."""
    there = Workspace([made("a")])
    there.apply_entry(data)
    assert list(there.artifacts) == ["a"]


def test_recorded_state_round_trips_through_json() -> None:
    """Artifacts and pins are the same after encoding and decoding."""
    keep = made("a", "b", summary="ü\n", arguments={"path": "x"}, untrusted=True, size=3, used=7)
    data = msgspec.json.decode(
        msgspec.json.encode(msgspec.to_builtins(WorkspaceSteps("q", (keep, PinArtifacts(("a",))))))
    )
    there, other = Workspace(), Workspace([keep, PinArtifacts(("a",))])
    there.apply_entry(data)
    assert there.artifacts == other.artifacts


def of(*rows: tuple[str, int, int], pinned: tuple[str, ...] = ()) -> Workspace:
    """Return a workspace of rows with name, turn of last use, and size."""
    return Workspace([made(name, used=used, size=size) for name, used, size in rows] + [PinArtifacts(pinned)])


def test_unused_artifacts_expire_after_some_turns() -> None:
    """Pinned artifacts stay."""
    there = of(("old", 1, 1), ("pinned", 1, 1), ("used", 1, 1), ("new", 9, 1), pinned=("pinned",))
    there.apply(TouchArtifacts(("used",), 8))
    assert artifacts_to_prune(there, 10, turns=50, bytes=100, count=9) == ()
    assert [step.names for step in artifacts_to_prune(there, 51, turns=50, bytes=100, count=9)] == [("old",)]


def test_largest_artifacts_are_dropped_above_the_size_limit() -> None:
    """Pinned artifacts and those used in this turn stay."""
    there = of(("large", 1, 60), ("small", 1, 5), ("middle", 1, 30), ("kept", 1, 90), ("now", 4, 99), pinned=("kept",))
    assert [step.names for step in artifacts_to_prune(there, 4, turns=50, bytes=230, count=9)] == [("large",)]
    [step] = artifacts_to_prune(there, 4, turns=50, bytes=1, count=9)
    assert step.names == ("large", "middle", "small")
    assert "among the largest" in step.why


def test_least_recently_used_artifacts_are_dropped_above_the_count_limit() -> None:
    """Above the limit, recently used artifacts are dropped, too."""
    there = of(("a", 3, 1), ("b", 1, 1), ("c", 2, 1), ("d", 1, 1), pinned=("d",))
    assert [step.names for step in artifacts_to_prune(there, 4, turns=50, bytes=99, count=2)] == [("b", "c")]


def test_artifact_is_found_by_a_unique_suffix() -> None:
    """A complete name has priority. An ambiguous suffix returns all matches."""
    there = Workspace([made("file:a.py"), made("value:a.py"), made("value:b")])
    assert resolve_names(there, "b") == ["value:b"]
    assert resolve_names(there, "file:a.py") == ["file:a.py"]
    assert resolve_names(there, "a.py") == ["file:a.py", "value:a.py"]
    assert resolve_names(there, "c") == []
