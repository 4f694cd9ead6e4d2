"""What pruning does where lines are damaged, and when the disk fails on its way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent_history import DELETED, Life, steps
from orch.archival.store import prune
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import user
from orch_worker.session.log import atomic_rewrite
from orch_worker.session.log.append_log import load
from orchestrator.archival.store.prune_samples import EVER, file, later

pytestmark = pytest.mark.usefixtures("no_disk")


def _without_stub(collapse: Any) -> Any:
    return msgspec.structs.replace(collapse, messages=(user("x"),))


@pytest.mark.parametrize("was", [b"word0", b'{"type":"message","id":"'])
def test_what_a_damaged_line_holds_goes_too(long: Life, was: bytes) -> None:
    """It may be any of it. The line stays, as damaged as it was: others keep their numbers where it was theirs too."""
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


def test_damage_that_is_nobodys_stays(life: Life) -> None:
    """It is kept and told of as before, and the lines behind it are read as before."""
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


def test_a_damaged_archive_stays_damaged(life: Life) -> None:
    """What was not what had been archived does not become it because others are deleted."""
    life.turn(*steps(1, "needle"))
    life.archive()
    first = later(life)
    life.turn(*steps(1, "thorn"))
    [other] = life.archive()
    path = life.transcript.path
    life.transcript.close()
    path.write_bytes(path.read_bytes().replace(b'"path":"thorn0.txt"', b'"path":"thorn1.txt"'))
    life.transcript = life.opened()
    life.forget()
    with pytest.raises(DamagedError):
        life.read(other)
    life.prune(first)
    with pytest.raises(DamagedError):
        life.read(other)


@pytest.mark.parametrize("fault", ["open", "write", "fsync", "replace", "check"])
def test_a_fault_on_the_way_leaves_everything(life: Life, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A full disk, or a defect that would have changed the conversation: not a byte of the old file is touched."""
    life.turn(*steps(1))
    [holder] = life.archive()
    before = file(life)
    life.transcript.close()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    if fault == "check":
        monkeypatch.setattr(prune._Copy, "_forgotten", lambda _self, collapse, *_: _without_stub(collapse))
    else:
        monkeypatch.setattr(atomic_rewrite.os, fault, fail)
    with pytest.raises(StoreError, match="would not be the same" if fault == "check" else "disk full"):
        life.loop.run(life.archives.delete(life.spec, EVER, DELETED))
    monkeypatch.undo()
    assert file(life) == before
    assert not list(life.folder.glob("*.new"))
    life.restart()
    life.check()
    assert life.prune(EVER).archives == {holder: DELETED}
