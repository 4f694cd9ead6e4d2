"""Pruning of files with damaged lines, and pruning while the disk fails."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent_history import DELETED, Life, steps
from orch.archival.store import prune
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import user
from orch_worker.session.log import atomic_rewrite
from orch_worker.session.log.log_reader import load
from orchestrator.archival.store.prune_samples import EVER, file, later

pytestmark = pytest.mark.usefixtures("no_disk")


def _without_stub(collapse: Any) -> Any:
    return msgspec.structs.replace(collapse, messages=(user("x"),))


@pytest.mark.parametrize("was", [b"word0", b'{"type":"message","id":"'])
def test_damaged_line_is_blanked(long: Life, was: bytes) -> None:
    """The damaged line may contain deleted content. It stays damaged, and the entry numbers stay valid."""
    for number in range(12):
        long.turn(*steps(1, f"t{number}.", 60))
        long.archive()
    records = long.records()
    era = next(record for record in reversed(records) if record.kind == "era")
    first = next(record for record in records if record.kind == "turn")
    whole = long.read(era.id)
    line = long.transcript.path.read_bytes()[first.own[0][0] :].split(b"\n")[2]
    assert b"word0" in line
    long.spoil(line, line.replace(was, b"{" * len(was), 1))
    long.restart()
    long.forget()
    before = long.transcript.session.messages
    long.prune(first.timestamp)
    assert line[30:-30] not in long.transcript.path.read_bytes()
    assert long.transcript.session.messages == before
    assert "checksum does not match" in load(long.transcript.path).report
    with pytest.raises(DamagedError, match=r"entry 3, in .* is damaged"):
        long.read(era.id, 3, 3)
    assert long.read(era.id, len(whole)) == whole[-1:]
    assert not long.prune(first.timestamp).going.due


def test_unrelated_damage_is_kept_and_reported(life: Life) -> None:
    """Damaged lines outside the deleted archives stay in the file, and later entries are read as before."""
    life.turn(*steps(1, "needle"))
    life.archive()
    life.begin("what of it?")
    life.say(*steps(1, "thorn"))
    life.spoil(b"what of it?", b"what of it!")
    life.restart()
    life.forget()
    life.turn(*steps(1, "rose"))
    *_, other = life.archive()
    before, held = life.transcript.session.messages, life.read(other)
    life.prune(life.records()[0].timestamp)
    assert "what of it!" in file(life)
    assert life.transcript.session.messages == before
    assert life.read(other) == held


def test_damaged_archive_stays_damaged_after_pruning_others(life: Life) -> None:
    """Pruning does not recompute the hash of a damaged archive."""
    life.turn(*steps(1, "needle"))
    life.archive()
    first = later(life)
    life.turn(*steps(1, "thorn"))
    [other] = life.archive()
    path = life.transcript.path
    life.transcript.close()
    path.write_bytes(path.read_bytes().replace(b'"path":"thorn0.txt"', b'"path":"thorn1.txt"', 1))
    life.transcript = life.opened()
    life.forget()
    with pytest.raises(DamagedError):
        life.read(other)
    life.prune(first)
    with pytest.raises(DamagedError):
        life.read(other)


@pytest.mark.parametrize("fault", ["open", "write", "fsync", "replace", "check"])
def test_failure_during_pruning_keeps_the_old_file(life: Life, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The file stays unchanged when an operation of the disk fails or the new file does not pass its check."""
    life.turn(*steps(1))
    [holder] = life.archive()
    before = file(life)
    life.transcript.close()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    if fault == "check":
        monkeypatch.setattr(prune._FileCopy, "_remove_content", lambda _self, collapse, *_: _without_stub(collapse))
    else:
        monkeypatch.setattr(atomic_rewrite.os, fault, fail)
    with pytest.raises(StoreError, match="would not contain the same" if fault == "check" else "disk full"):
        life.loop.run(life.archives.delete(life.spec, EVER, DELETED))
    monkeypatch.undo()
    assert file(life) == before
    assert not list(life.folder.glob("*.new"))
    life.restart()
    life.check()
    assert life.prune(EVER).archives == {holder: DELETED}
