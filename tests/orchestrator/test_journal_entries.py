"""Each type of journal entry that an earlier version wrote is still read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import msgspec

from orch.tree.agents.state import TreeState
from orch.tree.journal.entries import Entry, decode_entry
from orch.tree.journal.journal import HEADER, read_entries
from orch_worker.session.log.append_log import AppendLog

LINES = (Path(__file__).resolve().parents[1] / "corpus" / "journal_entries.jsonl").read_bytes().splitlines()
"""At least one entry of each type, with all fields, under the tag that was written first."""


def test_each_old_tag_is_read_with_all_fields() -> None:
    """An entry has the same fields as its line, whatever its type is called now."""
    for line in LINES:
        entry, fields = decode_entry(line), json.loads(line)
        assert entry is not None, fields["type"]
        del fields["type"]
        written = json.loads(msgspec.json.encode(entry))
        del written["type"]
        assert written == fields


def test_old_lines_have_every_entry_type() -> None:
    """No entry type is missing in the file of old lines."""
    assert {type(decode_entry(line)) for line in LINES} == set(get_args(Entry))


def test_old_snapshot_equals_the_entries_before_it() -> None:
    """The snapshots at the end of the file make the same agents as the entries before them."""
    entries = [entry for line in LINES if (entry := decode_entry(line)) is not None]
    folded, restored = TreeState(entries[:-3]), TreeState(entries[-3:])
    assert list(restored) == list(folded)
    assert restored.names == folded.names


def test_journal_with_old_tags_opens(tmp_path: Path) -> None:
    """A journal file with old lines is read without skipping any."""
    log, _ = AppendLog.open(tmp_path / "journal.jsonl", header=HEADER)
    log.append(*LINES)
    log.close()
    assert len(read_entries(tmp_path / "journal.jsonl")) == len(LINES)
