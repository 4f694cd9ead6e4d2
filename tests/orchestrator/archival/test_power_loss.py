"""A power loss while a turn is archived: acknowledged data is present, and present data is complete.

Mutants of the code verify that these tests detect errors.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from msgspec.structs import replace

from agent_history import EAGER, Life, steps
from orch.archival.engine import ArchiveDraft
from orch.archival.store.session_archives import SessionArchives
from orch_protocol.agent.spec import Durability
from orch_protocol.core.errors import DamagedError, OrchError, StoreError
from orch_protocol.core.messages import Message, assistant, user
from orch_worker.session.log import append_log, log_reader
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.log_reader import LogCursor, LogLine
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript
from power_loss import Disk, Outage


def lived(
    folder: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> tuple[Disk, dict[str, list[Message]]]:
    """Run turns, archives, a full disk and the death of a process. Return the disk and the messages of each archive."""
    disk = Disk(folder / "session.jsonl", monkeypatch)
    held: dict[str, list[Message]] = {}
    with contextlib.closing(Life(folder, EAGER, durability=durability)) as life:

        def archive() -> None:
            plan = life.plan()
            life.transcript.archive(plan.collapses)
            for collapse in plan.collapses:
                held[collapse.holder] = life.read(collapse.holder)
                disk.tell(collapse.holder)
            life.check()

        life.turn(*steps(1, "a", 9))
        life.die()
        archive()
        life.begin("two")
        life.say(*steps(1, "b", 9), assistant("two"), user("three"), *steps(1, "c", 9), assistant("three"))
        life.end()
        disk.tell(f"q{life.queries}")
        with monkeypatch.context() as full:
            full.setattr(AppendLog, "_write", staticmethod(half_a_write))
            with pytest.raises(StoreError, match="disk full"):
                life.archive()
        life.check()
        archive()
        life.summarize(next(iter(held)), "a summary")
        life.turn(*steps(1, "d", 9))
        disk.tell(f"q{life.queries}")
        archive()
    return disk, held


def half_a_write(descriptor: int, data: Any) -> int:
    """Write half of the data, and then fail with a full disk."""
    os.write(descriptor, bytes(data)[: len(data) // 2])
    raise OSError(errno.ENOSPC, "no space left")


def check(folder: Path, outage: Outage, held: dict[str, list[Message]], durability: Durability) -> None:
    """Check the invariants after an outage. Raise AssertionError or OrchError if one is violated."""
    kept_ids = {id for id in outage.done if id in held}
    if outage.content is None:
        assert not outage.done, "an acknowledged file is lost with its name"
        return
    folder.mkdir()
    path = folder / "session.jsonl"
    path.write_bytes(outage.content)
    agree(folder)
    Transcript.open(folder, agent="agent", cwd="/").close()
    mended = path.read_bytes()
    Transcript.open(folder, agent="agent", cwd="/").close()
    assert path.read_bytes() == mended, "mending it again changes it"
    ledger, session = agree(folder), read_session(folder)
    assert kept_ids <= set(ledger.records), "an archive that was told of is not there"
    for id in ledger.records:
        found = None
        with contextlib.suppress(DamagedError):
            found = ledger.read(id)
        assert found is not None or id not in kept_ids, "an archive that was told of is damaged"
        assert found is not None or durability == "process", "an archive is there, and not what it holds"
        assert found in (None, held[id]), "an archive reads otherwise"
    if durability == "power":
        assert {id for id in outage.done if id not in held} <= set(session.replies), "a reply is gone"


def agree(folder: Path) -> SessionArchives:
    """Check that root and worker show the same conversation. Return the root's archives."""
    ledger = SessionArchives(folder)
    ledger.catch_up()
    shown = [(item.message, item.first, item.last) for item in read_session(folder).view.items]
    assert [(item.message, item.first, item.last) for item in ledger.view.items] == shown, "the two sides differ"
    return ledger


def ordeal(folder: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability) -> int:
    """Run a life, check it after every possible outage, and return the number of outages."""
    with monkeypatch.context() as watched:
        disk, held = lived(folder / "life", watched, durability)
    count = 0
    for count, outage in enumerate(disk.outages(), 1):
        check(folder / f"{count}", outage, held, durability)
    return count


@pytest.mark.parametrize("durability", ["process", "power"])
def test_acknowledged_data_survives_power_loss(
    durability: Durability, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archives survive with each durability setting, and replies survive with durability `power`."""
    assert ordeal(tmp_path, monkeypatch, durability) > 200


# Mutants: wrong implementations that the check must detect.


def not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledge the archive before it is on the disk."""
    append = AppendLog.append
    monkeypatch.setattr(AppendLog, "append", lambda self, *objects, **_: append(self, *objects))


def synced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync before the write instead of after it."""
    append = AppendLog.append

    def wrong(self: AppendLog, *objects: bytes, sync: bool = False) -> None:
        if sync:
            self.sync()
        append(self, *objects)

    monkeypatch.setattr(AppendLog, "append", wrong)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the archives of one append separately, and acknowledge them when the first one is on the disk."""
    append = AppendLog.append

    def wrong(self: AppendLog, *objects: bytes, sync: bool = False) -> None:
        append(self, *objects[:1], sync=sync)
        for object in objects[1:]:
            append(self, object)

    monkeypatch.setattr(AppendLog, "append", wrong)


def name_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync the content of the file, but not its directory entry."""
    init = AppendLog.__init__

    def wrong(self: AppendLog, *args: Any) -> None:
        init(self, *args)
        self._folder_synced = True

    monkeypatch.setattr(AppendLog, "__init__", wrong)


def torn_tail_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a half-written line, so that the next line is appended to it."""
    load = append_log.load
    monkeypatch.setattr(append_log, "load", lambda *args, **named: replace(load(*args, **named), torn=b""))


def nothing_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the bytes of a write that failed on a full disk."""
    monkeypatch.setattr(AppendLog, "_roll_back", lambda _: None)


def half_an_append_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count half an append in the reader of archives, but not in the session."""
    read = LogCursor.read

    def wrong(self: LogCursor, file: BinaryIO) -> Iterator[LogLine]:
        with monkeypatch.context() as patch:
            patch.setattr(log_reader, "group_appends", lambda lines: (([line], bool(line.sealed)) for line in lines))
            return iter(list(read(self, file)))

    monkeypatch.setattr(LogCursor, "read", wrong)


def memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the session before the entry is on the disk."""
    append = Transcript.append

    def wrong(self: Transcript, *entries: Any, sync: bool = False) -> Any:
        with monkeypatch.context() as patch:
            for entry in entries:
                self.session.apply(entry)
            patch.setattr(type(self.session), "apply", lambda *_: None)
            return append(self, *entries, sync=sync)

    monkeypatch.setattr(Transcript, "append", wrong)


def a_line_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the span of an archive before its last line."""
    spans = ArchiveDraft._spans

    def wrong(draft: ArchiveDraft, *args: Any) -> Any:
        *others, (start, length) = spans(draft, *args)
        data = draft._archives.path.read_bytes()[start : start + length]
        return (*others, (start, data.rstrip(b"\n").rfind(b"\n") + 1))

    monkeypatch.setattr(ArchiveDraft, "_spans", wrong)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    not_synced,
    synced_first,
    one_by_one,
    name_not_synced,
    torn_tail_kept,
    nothing_taken_back,
    half_an_append_counts,
    memory_first,
    a_line_short,
]


@pytest.mark.parametrize("wrong", MUTANTS, ids=lambda wrong: wrong.__name__)
def test_power_loss_check_detects_missing_syncs(
    wrong: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mutant makes the check fail."""
    wrong(monkeypatch)
    with pytest.raises((AssertionError, OrchError)):
        ordeal(tmp_path, monkeypatch, "power")
