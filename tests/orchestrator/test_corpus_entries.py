"""Stored entries of journals and sessions (tests/corpus/README.md): each is read with all its fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from orch.archival.store.catalog import ArchiveRecord
from orch.tree.agents.state import TreeState
from orch.tree.journal.entries import Entry, decode_entry, encode_entry
from orch.tree.journal.journal import HEADER, read_entries
from orch_protocol.session import entries as session_entries
from orch_worker.conversation.receipt import Receipt
from orch_worker.session import entry_codec
from orch_worker.session.log.append_log import AppendLog

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
JOURNAL = (CORPUS / "journal_entries.jsonl").read_bytes().splitlines()
SESSION = (CORPUS / "session_entries.jsonl").read_bytes().splitlines()


def read_again(line: bytes) -> dict[str, Any]:
    """Return what a reader understands of `line`, a line of a journal or a session."""
    if line in JOURNAL:
        entry = decode_entry(line)
        assert entry is not None
        found: dict[str, Any] = json.loads(encode_entry(entry))
    else:
        found = json.loads(entry_codec.encode_json(entry_codec.read_entry(line)))
    return found


@pytest.mark.parametrize("line", [*JOURNAL, *SESSION], ids=lambda line: json.loads(line)["type"])
def test_stored_entry_is_read_with_all_its_fields(line: bytes) -> None:
    """Later versions may add fields, but they read each stored one."""
    fields, found = json.loads(line), read_again(line)
    for key in ("spec", "reply", "state"):  # structs that may gain fields
        if isinstance(fields.get(key), dict):
            assert found[key].items() >= fields[key].items()
            del fields[key]
    assert found.items() >= fields.items()


@pytest.mark.parametrize(
    ("lines", "types"), [(JOURNAL, Entry), (SESSION, session_entries.Entry)], ids=["journal", "session"]
)
def test_stored_entries_have_every_type_and_field(lines: list[bytes], types: Any) -> None:
    """A new type or field is added to the files, so that later versions have to read it."""
    stored: dict[str, set[str]] = {}
    for line in map(json.loads, lines):
        stored.setdefault(line["type"], set()).update(line)
    fields = {
        each.__struct_config__.tag: {"type", *(field.encode_name for field in msgspec.structs.fields(each))}
        for each in get_args(types)
    }
    assert stored == fields


def test_record_of_a_stored_archive_is_read_with_all_its_fields() -> None:
    """The metadata of the archive, and its receipt, have each field of their structs."""
    (entry,) = [each for line in SESSION if (each := json.loads(line))["type"] == "archive"]
    stored = entry["collapse"]["record"]
    assert json.loads(msgspec.json.encode(msgspec.convert(stored, ArchiveRecord))) == stored
    for values, type in ((stored, ArchiveRecord), (stored["receipt"], Receipt)):
        assert set(values) == {field.encode_name for field in msgspec.structs.fields(type)}


def test_stored_snapshot_equals_the_entries_before_it() -> None:
    """The snapshots at the end of the file result in the same agents as the entries before them."""
    entries = [entry for line in JOURNAL if (entry := decode_entry(line)) is not None]
    folded, restored = TreeState(entries[:-3]), TreeState(entries[-3:])
    assert list(restored) == list(folded)
    assert restored.names == folded.names


def test_journal_of_stored_entries_opens(tmp_path: Path) -> None:
    """Reading a journal file with these lines skips no line."""
    log, _ = AppendLog.open(tmp_path / "journal.jsonl", header=HEADER)
    log.append(*JOURNAL)
    log.close()
    assert len(read_entries(tmp_path / "journal.jsonl")) == len(JOURNAL)
