"""This version reads every type of journal entry that an earlier version wrote."""

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
"""At least one entry of each type, with all its fields, under the first tag of that type."""


def test_each_old_tag_is_read_with_all_fields() -> None:
    """Each entry has the values of its line and a tag of this version."""
    for line in LINES:
        entry, fields = decode_entry(line), json.loads(line)
        assert entry is not None, fields["type"]
        del fields["type"]
        written = json.loads(msgspec.json.encode(entry))
        del written["type"]
        if "spec" in fields:  # specs have gained fields since
            written["spec"] = {key: written["spec"][key] for key in fields["spec"]}
        assert written == fields


def test_old_lines_have_every_entry_type() -> None:
    """The file of old lines contains every entry type."""
    assert {type(decode_entry(line)) for line in LINES} == set(get_args(Entry))


def test_old_snapshot_equals_the_entries_before_it() -> None:
    """The snapshots at the end of the file result in the same agents as the entries before them."""
    entries = [entry for line in LINES if (entry := decode_entry(line)) is not None]
    folded, restored = TreeState(entries[:-3]), TreeState(entries[-3:])
    assert list(restored) == list(folded)
    assert restored.names == folded.names


def test_journal_with_old_tags_opens(tmp_path: Path) -> None:
    """Reading a journal file with old lines skips no line."""
    log, _ = AppendLog.open(tmp_path / "journal.jsonl", header=HEADER)
    log.append(*LINES)
    log.close()
    assert len(read_entries(tmp_path / "journal.jsonl")) == len(LINES)
