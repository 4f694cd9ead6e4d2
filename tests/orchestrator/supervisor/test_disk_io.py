"""Slow file operations do not delay the event loop or the journal."""

from __future__ import annotations

import threading
from pathlib import Path

from orch.supervisor.disk_io import THREADS, DiskWriter
from orch.tree.journal.entries import RunStarted
from orch.tree.journal.journal import Journal


async def test_journal_is_synced_while_large_files_are_read(tmp_path: Path) -> None:
    """The journal has its own thread, so other file operations cannot block it."""
    journal = Journal.open(tmp_path / "journal.jsonl")
    disk = DiskWriter(journal)
    read = threading.Event()
    reading = [disk.do(read.wait) for _ in range(THREADS + 1)]
    try:
        journal.append([RunStarted(at=0.0, pid=1)])
        assert journal.log.dirty
        disk._sync()
        assert disk._syncing is not None
        await disk._syncing
        assert not journal.log.dirty
    finally:
        read.set()
        for each in reading:
            await each
        await disk.close(1.0)
        journal.close()
