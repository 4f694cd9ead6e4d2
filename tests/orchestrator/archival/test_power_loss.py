"""The power fails while a turn is archived: what somebody was told of is there, and what is there is whole.

And that these tests can fail: each way of doing it wrong is found out by them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_history import EAGER, Life, steps
from orch.archival.engine import ArchiveDraft
from orch.archival.store import session_archives as ledger_module
from orch.archival.store.session_archives import SessionArchives
from orch_protocol.agent.spec import Durability
from orch_protocol.core.errors import DamagedError, OrchError, StoreError
from orch_protocol.core.messages import Message, assistant, user
from orch_worker.session.log import append_log, record_format
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.transcript import Transcript, read_session
from power_loss import Disk, Outage


def lived(
    folder: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> tuple[Disk, dict[str, list[Message]]]:
    """Live through turns, archives, a full disk and the death of a process; return what was told and what is held."""
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
        life.summarise(next(iter(held)), "a summary")
        life.turn(*steps(1, "d", 9))
        disk.tell(f"q{life.queries}")
        archive()
    return disk, held


def half_a_write(descriptor: int, data: Any) -> int:
    """Write some of it before there is no room left."""
    os.write(descriptor, bytes(data)[: len(data) // 2])
    raise OSError(errno.ENOSPC, "no space left")


def check(folder: Path, outage: Outage, held: dict[str, list[Message]], durability: Durability) -> None:
    """Hold what must be so after an outage. Raises AssertionError or OrchError when it is not."""
    told = {id for id in outage.done if id in held}
    if outage.content is None:
        assert not outage.done, "what somebody was told of is gone with its file's name"
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
    assert told <= set(ledger.records), "an archive that was told of is not there"
    for id in ledger.records:
        found = None
        with contextlib.suppress(DamagedError):
            found = ledger.read(id)
        assert found is not None or id not in told, "an archive that was told of is damaged"
        assert found is not None or durability == "process", "an archive is there, and not what it holds"
        assert found in (None, held[id]), "an archive reads otherwise"
    if durability == "power":
        assert {id for id in outage.done if id not in held} <= set(session.replies), "a reply is gone"


def agree(folder: Path) -> SessionArchives:
    """Hold that both sides see the same, and return what the root's sees."""
    ledger = SessionArchives(folder)
    ledger.catch_up()
    shown = [(item.message, item.first, item.last) for item in read_session(folder).view.items]
    assert [(item.message, item.first, item.last) for item in ledger.view.items] == shown, "the two sides differ"
    return ledger


def ordeal(folder: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability) -> int:
    """Live, let the power fail in every way at every moment, and return how many ways there were."""
    with monkeypatch.context() as watched:
        disk, held = lived(folder / "life", watched, durability)
    count = 0
    for count, outage in enumerate(disk.outages(), 1):
        check(folder / f"{count}", outage, held, durability)
    return count


@pytest.mark.parametrize("durability", ["process", "power"])
def test_what_was_told_of_is_there(durability: Durability, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives always; with durability "power" replies too, and no archive without what it holds."""
    assert ordeal(tmp_path, monkeypatch, durability) > 200


# Ways of doing it wrong.


def not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is told of before it is on the disk."""
    append = AppendLog.append
    monkeypatch.setattr(AppendLog, "append", lambda self, *objects, **_: append(self, *objects))


def synced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is synced, and then written."""
    append = AppendLog.append

    def wrong(self: AppendLog, *objects: bytes, sync: bool = False) -> None:
        if sync:
            self.sync()
        append(self, *objects)

    monkeypatch.setattr(AppendLog, "append", wrong)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives that belong together are written one after the other, and told of when the first is on the disk."""
    append = AppendLog.append

    def wrong(self: AppendLog, *objects: bytes, sync: bool = False) -> None:
        append(self, *objects[:1], sync=sync)
        for object in objects[1:]:
            append(self, object)

    monkeypatch.setattr(AppendLog, "append", wrong)


def name_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's bytes are on the disk, its name is not."""
    init = AppendLog.__init__

    def wrong(self: AppendLog, *args: Any) -> None:
        init(self, *args)
        self._named = True

    monkeypatch.setattr(AppendLog, "__init__", wrong)


def torn_tail_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was half written stays, and the next line is glued to it."""
    load = append_log.load
    monkeypatch.setattr(append_log, "load", lambda *args, **named: replace(load(*args, **named), torn=b""))


def nothing_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk left of a write stays."""
    monkeypatch.setattr(AppendLog, "_roll_back", lambda _: None)


def half_an_append_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one of the two who read it."""

    def wrong(line: bytes) -> record_format.UncheckedLine | None:
        sealed = record_format.unseal_line(line)
        return replace(sealed, more=False) if sealed else None

    monkeypatch.setattr(ledger_module, "unseal_line", wrong)


def memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has changed before that is on record."""
    append = Transcript.append

    def wrong(self: Transcript, *entries: Any, sync: bool = False) -> Any:
        with monkeypatch.context() as patch:
            for entry in entries:
                self.session.apply(entry)
            patch.setattr(type(self.session), "apply", lambda *_: None)
            return append(self, *entries, sync=sync)

    monkeypatch.setattr(Transcript, "append", wrong)


def a_line_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an archive refers to ends before its last line."""
    spans = ArchiveDraft._spans

    def wrong(draft: ArchiveDraft, *args: Any) -> Any:
        *others, (start, length) = spans(draft, *args)
        data = draft._ledger.path.read_bytes()[start : start + length]
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
def test_doing_it_wrong_is_found_out(
    wrong: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these tests would say nothing."""
    wrong(monkeypatch)
    with pytest.raises((AssertionError, OrchError)):
        ordeal(tmp_path, monkeypatch, "power")
