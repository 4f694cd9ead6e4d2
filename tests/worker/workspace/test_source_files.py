"""Source files of artifacts: detection of changes."""

from __future__ import annotations

import os
from pathlib import Path

from orch_protocol.core.workspace import Artifact, InvalidateArtifacts
from orch_worker.workspace.source_files import artifact_path, changed_artifacts, read_file_state


def test_changed_or_deleted_file_makes_derived_artifacts_stale(tmp_path: Path) -> None:
    """Each artifact gets the reason. An artifact that is already stale gets no second reason."""
    for name in ("same", "longer", "gone"):
        (tmp_path / name).write_text("one")
    marks = {name: read_file_state(tmp_path, name) for name in ("same", "longer", "gone")}
    there = [Artifact(name, "file", files=(mark,)) for name, mark in marks.items() if mark is not None]
    there.append(Artifact("stale", "file", files=there[1].files, stale="why"))
    assert changed_artifacts(tmp_path, there) == []
    (tmp_path / "longer").write_text("one and two")
    (tmp_path / "gone").unlink()
    assert changed_artifacts(tmp_path, there) == [
        InvalidateArtifacts(("longer",), "longer has changed since"),
        InvalidateArtifacts(("gone",), "gone no longer exists"),
    ]


def test_touched_but_unchanged_file_is_not_stale(tmp_path: Path) -> None:
    """A small file is compared by content."""
    file = tmp_path / "a"
    file.write_text("one")
    mark = read_file_state(tmp_path, "a")
    assert mark is not None
    there = [Artifact("a", "file", files=(mark,))]
    os.utime(file, ns=(1, 1))
    assert changed_artifacts(tmp_path, there) == []
    file.write_text("two")
    os.utime(file, ns=(2, 2))
    assert len(changed_artifacts(tmp_path, there)) == 1


def test_large_file_is_compared_by_time_and_size(tmp_path: Path) -> None:
    """The state of a large file has no content hash."""
    (tmp_path / "a").write_bytes(bytes(300_000))
    mark = read_file_state(tmp_path, "a")
    assert mark is not None
    assert mark.sha256 == ""


def test_only_regular_files_have_a_fingerprint(tmp_path: Path) -> None:
    """A folder, a pipe, a missing file and an invalid path have none."""
    os.mkfifo(tmp_path / "pipe")
    assert [read_file_state(tmp_path, path) for path in (".", "pipe", "none", "a\0b")] == [None] * 4


def test_paths_below_the_folder_are_shown_relative(tmp_path: Path) -> None:
    """All spellings of a path result in one name."""
    assert [artifact_path(tmp_path, path) for path in ("./a/../b", f"{tmp_path}/b", "b")] == ["b"] * 3
    assert artifact_path(tmp_path, "../x") == str(tmp_path.parent / "x")
