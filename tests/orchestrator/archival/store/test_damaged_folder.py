"""A damaged line in the folder of an Archiver: only its entry is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_shapes import SHAPES, Shape, work
from orch import ArchivalConfig, Archiver
from orch_protocol.core.errors import DamagedError


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_other_entries_of_a_damaged_archive_are_found_and_read(tmp_path: Path, shape: Shape) -> None:
    """The note names the file. Reading the damaged entry raises DamagedError."""
    turn = work(shape, 1, steps=6, size=900)
    with Archiver(tmp_path, shape.name, config=ArchivalConfig(profile="seed")) as archiver:
        archiver.fold(turn)
        [record] = archiver.archives()
    path = tmp_path / "archive-000001.jsonl"
    [lost] = [number for number, message in enumerate(turn, 1) if "needle_1_2 took" in str(message)]
    path.write_bytes(path.read_bytes().replace(b"needle_1_2 took", b"needle_1_2 xook"))
    with Archiver(tmp_path, shape.name) as archiver:
        assert path.name in archiver.notes[0]
        assert archiver.read_archive(record.id, 1, lost - 1) == turn[: lost - 1]
        assert archiver.read_archive(record.id, lost + 1) == turn[lost:]
        for last in (lost, None):
            with pytest.raises(DamagedError, match=record.id):
                archiver.read_archive(record.id, lost, last)
        [hit, *_] = archiver.search("needle_1_3 took")
        assert "needle_1_3 took" in archiver.call("read_archive", {"id": hit.id, "first": hit.entry, "last": hit.entry})
        assert all(each.entry != lost for each in archiver.search("needle_1_2"))
