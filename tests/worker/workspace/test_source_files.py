"""Files that artifacts were made from: whether they are what they were."""

from __future__ import annotations

import os
from pathlib import Path

from orch_protocol.core.workspace import Artifact, InvalidateArtifacts
from orch_worker.workspace.source_files import artifact_path, changed_artifacts, mark_of


def test_a_file_that_changed_or_went_away_makes_stale_what_was_made_from_it(tmp_path: Path) -> None:
    """Each with the reason; what is stale already is not looked at."""
    for name in ("same", "longer", "gone"):
        (tmp_path / name).write_text("one")
    marks = {name: mark_of(tmp_path, name) for name in ("same", "longer", "gone")}
    there = [Artifact(name, "file", files=(mark,)) for name, mark in marks.items() if mark is not None]
    there.append(Artifact("stale", "file", files=there[1].files, stale="why"))
    assert changed_artifacts(tmp_path, there) == []
    (tmp_path / "longer").write_text("one and two")
    (tmp_path / "gone").unlink()
    assert changed_artifacts(tmp_path, there) == [
        InvalidateArtifacts(("longer",), "longer has changed since"),
        InvalidateArtifacts(("gone",), "gone is not there any more"),
    ]


def test_a_file_that_was_only_touched_is_what_it_was(tmp_path: Path) -> None:
    """A small one is read to know that; of another text of the same length it is known too."""
    file = tmp_path / "a"
    file.write_text("one")
    mark = mark_of(tmp_path, "a")
    assert mark is not None
    there = [Artifact("a", "file", files=(mark,))]
    os.utime(file, ns=(1, 1))
    assert changed_artifacts(tmp_path, there) == []
    file.write_text("two")
    os.utime(file, ns=(2, 2))
    assert len(changed_artifacts(tmp_path, there)) == 1


def test_of_a_large_file_time_and_size_are_enough(tmp_path: Path) -> None:
    """It is not read."""
    (tmp_path / "a").write_bytes(bytes(300_000))
    mark = mark_of(tmp_path, "a")
    assert mark is not None
    assert mark.sha256 == ""


def test_what_is_no_file_has_no_mark(tmp_path: Path) -> None:
    """A folder, a pipe, nothing, no path at all."""
    os.mkfifo(tmp_path / "pipe")
    assert [mark_of(tmp_path, path) for path in (".", "pipe", "none", "a\0b")] == [None] * 4


def test_paths_are_told_relative_to_the_folder_when_they_are_below_it(tmp_path: Path) -> None:
    """However they are spelled: the same file has one name."""
    assert [artifact_path(tmp_path, path) for path in ("./a/../b", f"{tmp_path}/b", "b")] == ["b"] * 3
    assert artifact_path(tmp_path, "../x") == str(tmp_path.parent / "x")
