"""Archives in the folder of an Archiver are deleted by id: their text is in no file, and everything else stays."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from message_shapes import SHAPES, Shape, work
from orch import ArchivalConfig, Archiver
from orch.archival.store import folder_deletion, store
from orch_protocol.agent.config import SummaryConfig, TriggerConfig
from orch_protocol.core.errors import AgentNotFoundError, ArchiveDeletedError, ConfigError, StoreError

MARK = "[deleted on "
ANY = TriggerConfig(token_threshold=1, tool_call_threshold=1)
CONFIGS = {
    "turns": ArchivalConfig(profile="seed"),
    "eras": ArchivalConfig(profile="economy", high_tokens=1500, low_tokens=400, rollup_tokens=500),
    "turns with phases": ArchivalConfig(profile="economy", high_tokens=600, low_tokens=100, gate=False, trigger=ANY),
    "phases": ArchivalConfig(profile="economy", turns=False, high_tokens=600, low_tokens=100, gate=False),
}


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message shape in turn."""
    given_shape: Shape = request.param
    return given_shape


def conversation(archiver: Archiver, shape: Shape) -> tuple[list[Any], list[Any]]:
    """Return a whole conversation of twelve turns, and the folded one."""
    whole: list[Any] = []
    live: list[Any] = []
    for number in range(12):
        for message in work(shape, number, steps=6, size=300):
            whole.append(message)
            live = archiver.fold([*live, message])
    return whole, live


def texts(folder: Path) -> str:
    """Return the content of all files in `folder`."""
    return "".join(path.read_bytes().decode(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


def needles(messages: list[Any]) -> set[str]:
    """Return the texts in `messages` that no other message contains."""
    return {word for word in str(messages).replace("'", " ").split() if word.startswith("needle_")}


@pytest.mark.parametrize(("config", "segment"), [("turns", 1 << 25), ("eras", 3000), ("phases", 1 << 25)])
def test_deleted_archives_are_in_no_file(
    shape: Shape, tmp_path: Path, config: str, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries keep their numbers. Other archives and the conversation are unchanged, also after reopening."""
    monkeypatch.setattr(store, "SEGMENT_BYTES", segment)
    with Archiver(tmp_path, shape.name, config=CONFIGS[config]) as archiver:
        whole, live = conversation(archiver, shape)
        before = {record.id: archiver._pieces.original_messages(record) for record in archiver.archives(merged=True)}
        chosen = archiver.archives(merged=True)[3]
        archiver.search("needle_3_1")
        deleted = {record.id for record in archiver.delete(chosen.id[:9])}
        assert chosen.id in deleted
        gone = {needle for id in deleted for needle in needles(before[id])}
        kept = needles([before[id] for id in before.keys() - deleted])
        assert gone - kept
        assert not {needle for needle in gone - kept if f"{needle} " in texts(tmp_path)}
    with Archiver(tmp_path, shape.name, config=CONFIGS[config]) as archiver:
        assert archiver.notes == []
        for id in before.keys() - deleted:
            record = archiver._archive.records[id]
            assert len(archiver._pieces.original_messages(record)) == len(before[id])
            assert needles(archiver._pieces.original_messages(record)) == needles(before[id])
        for id in deleted:
            with pytest.raises(ArchiveDeletedError, match=f"the content of archive {id} was deleted on 20"):
                archiver.read_archive(id)
        assert archiver.fold(live) == live
        for needle in sorted(gone - kept)[:3]:
            assert all(needle not in hit.text for hit in archiver.search(needle))
        unfolded = archiver.unfold(live)
        assert needles(unfolded) == needles(whole) - (gone - kept)
        same = [message for message in unfolded if MARK not in str(message)]
        assert [message for message in whole if message in same] == same
        assert all(id not in archiver.block(live) for id in deleted)


@pytest.mark.parametrize("config", ["eras", "turns with phases"])
def test_unfold_shows_a_marker_for_each_deleted_message(shape: Shape, tmp_path: Path, config: str) -> None:
    """The messages of merged archives have markers too, so all other messages keep their positions."""
    with Archiver(tmp_path, shape.name, config=CONFIGS[config]) as archiver:
        whole, live = conversation(archiver, shape)
        merged = next(record for record in archiver.archives() if record.members)
        assert len(archiver.delete(merged.id)) > 1
        unfolded = archiver.unfold(live)
        changed = [index for index, message in enumerate(unfolded) if MARK in str(message)]
        assert len(changed) > 4
        assert [each for index, each in enumerate(unfolded) if index not in changed] == [
            each for index, each in enumerate(whole) if index not in changed
        ]
        assert len(unfolded) == len(whole)


def test_ids_are_checked_before_the_deletion(shape: Shape, tmp_path: Path) -> None:
    """An unknown id, an archive that was deleted, and no id are errors, and nothing is deleted."""
    with Archiver(tmp_path, shape.name, config=CONFIGS["turns"]) as archiver:
        conversation(archiver, shape)
        first, second, *_ = [record.id for record in archiver.archives()]
        for ids, error in (((first, "ffffffff"), AgentNotFoundError), ((), ConfigError), ((first, ""), ConfigError)):
            with pytest.raises(error):
                archiver.delete(*ids)
        assert [record.id for record in archiver.delete(first)] == [first]
        with pytest.raises(ArchiveDeletedError):
            archiver.delete(second, first)
        with pytest.raises(ArchiveDeletedError):
            archiver.query(first, "What?")
        assert second in {record.id for record in archiver.archives()}


def test_deleted_turn_can_be_archived_again(shape: Shape, tmp_path: Path) -> None:
    """A caller that still has the messages gets a new archive of them."""
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, config=CONFIGS["turns"]) as archiver:
        archiver.fold(turn)
        [old] = archiver.archives()
        archiver.delete(old.id)
        folded = archiver.fold(turn)
        [new] = archiver.archives()
        assert new.id != old.id
        assert archiver.unfold(folded) == turn


def test_summary_that_arrives_after_the_deletion_is_discarded(shape: Shape, tmp_path: Path) -> None:
    """The summary of a deleted archive is not stored."""
    go = threading.Event()

    def summarize(_: Any) -> str:
        assert go.wait(20)
        return "A quaxifrage was found."

    config = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph", timeout_seconds=0.01))
    with Archiver(tmp_path, shape.name, summarize=summarize, config=config) as archiver:
        archiver.fold(work(shape, 1, steps=6, size=900))
        archiver.delete(archiver.archives()[0].id)
        go.set()
        for thread in threading.enumerate():
            if thread.name == "orch-summary":
                thread.join(20)
    assert "quaxifrage" not in texts(tmp_path)


def test_failed_rewrite_keeps_the_folder_usable(shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of the disk, the archive is still there, and a second deletion succeeds."""
    with Archiver(tmp_path, shape.name, config=CONFIGS["turns"]) as archiver:
        conversation(archiver, shape)
        [first, *_] = archiver.archives()
        whole = archiver.read_archive(first.id)
        with monkeypatch.context() as patched:
            patched.setattr(folder_deletion, "encode_json", _fail)
            with pytest.raises(StoreError, match="disk full"):
                archiver.delete(first.id)
        assert archiver.read_archive(first.id) == whole
        archiver.delete(first.id)
        with pytest.raises(ArchiveDeletedError):
            archiver.read_archive(first.id)


def _fail(_: Any) -> bytes:
    raise OSError(28, "No space left on device")
