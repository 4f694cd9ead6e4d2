"""Two hundred damaged files of each format: reading returns everything before the damage, or raises an OrchError."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from agent_doubles import assert_valid
from foreign_sessions import pi_tree, tree_rows
from message_shapes import Blocks, work
from orch.sessions.formats.conversation import ForeignEntry, ImportedSession
from orch.sessions.formats.detect import read_file
from orch.sessions.import_ import has_messages, write_session
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Block
from orch_protocol.session.entries import AnyMessageEntry, CompactionEntry
from orch_worker.session.entry_codec import UnknownEntry
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session import SessionState
from orch_worker.session.session_reader import read_session
from recordings import chat, pi

FILES = 200
PLANTED = 10
"""One file in this many is also imported as a session."""
PIECES = (b"\0" * 64, b'"', b"}", b"\n", b"{", b"\\ud800", b"\xff\xfe", b"[[[[", b"1e999")
BOM = b"\xef\xbb\xbf"


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))
    monkeypatch.setattr(AppendLog, "_sync_folder", staticmethod(lambda _: None))


def lines(rows: list[dict[str, object]]) -> bytes:
    """Return `rows` as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def orch_session(folder: Path) -> bytes:
    """Return a session file of orch, made from a session of pi with branches and a compaction."""
    path = folder / "pi.jsonl"
    path.write_bytes(lines(pi_tree()))
    write_session(folder / "ours", "a", "/", read_file(path)[0], path)
    return (folder / "ours" / "session.jsonl").read_bytes()


KINDS: dict[str, Callable[[Path], bytes]] = {
    "pi": lambda _: lines(pi_tree()),
    "pi, first version": lambda _: lines(pi(3, steps=2, size=40)),
    "rows": lambda _: lines(tree_rows()),
    "lines of messages": lambda _: lines(chat(4)),
    "a list of messages": lambda _: json.dumps(work(Blocks(), 3), indent=1).encode(),
    "ours": orch_session,
}


def cut(data: bytes, random: Random) -> bytes:
    """Cut the file at a random place."""
    return data[: random.randrange(len(data))]


def cut_lines(data: bytes, random: Random) -> bytes:
    """Cut the file at the end of a line, or up to two bytes off."""
    ends = [place for place, byte in enumerate(data) if byte == 10]
    return data[: max(1, random.choice(ends or [1]) + random.choice([-1, 0, 1, 2]))]


def flip(data: bytes, random: Random) -> bytes:
    """Flip one to three bits."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def put(data: bytes, random: Random) -> bytes:
    """Insert bytes, or replace bytes."""
    at = random.randrange(len(data))
    added = random.choice([*PIECES, random.randbytes(9)])
    return data[:at] + added + data[at + random.choice([0, 0, 1, 20]) :]


def drop(data: bytes, random: Random) -> bytes:
    """Remove bytes. Removing a line break joins two lines."""
    at = random.randrange(len(data))
    return data[:at] + data[at + random.choice([1, 5, 200]) :]


def of_lines(change: Callable[[list[bytes], int, int], None]) -> Callable[[bytes, Random], bytes]:
    """Return a function that calls `change` with the lines and two random positions."""

    def changed(data: bytes, random: Random) -> bytes:
        split = data.splitlines(keepends=True)
        change(split, random.randrange(len(split)), random.randrange(len(split)))
        return b"".join(split)

    return changed


def swap(split: list[bytes], one: int, other: int) -> None:
    """Exchange two lines."""
    split[one], split[other] = split[other], split[one]


DAMAGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "cut": cut,
    "cut at a line": cut_lines,
    "flipped": flip,
    "put in": put,
    "dropped": drop,
    "line twice": of_lines(lambda split, one, other: split.insert(other, split[one])),
    "line gone": of_lines(lambda split, one, _: split.pop(one) and None),
    "reordered": of_lines(swap),
    "byte order mark": lambda data, _: BOM + data,
    "other line ends": lambda data, _: data.replace(b"\n", b"\r\n"),
    "zeros at the end": lambda data, random: data + b"\0" * random.randint(1, 5000),
}
HARMLESS = frozenset({"byte order mark", "other line ends", "zeros at the end"})


def atoms(found: list[ImportedSession]) -> list[Block | str]:
    """Return the blocks and summaries of all conversations, in file order."""
    collected: list[Block | str] = []
    for each in found:
        for entry in each.entries:
            if isinstance(entry, AnyMessageEntry):
                collected += entry.message.content
            elif isinstance(entry, CompactionEntry) and entry.summary:
                collected.append(entry.summary)
    return collected


def is_within(part: list[Block | str], whole: list[Block | str]) -> bool:
    """Return whether `part` is a subsequence of `whole`."""
    rest = iter(whole)
    return all(any(each == other for other in rest) for each in part)


def common(one: bytes, other: bytes) -> int:
    """Return the length of the common beginning of two files."""
    minimum, limit = 0, min(len(one), len(other))
    while minimum < limit:
        middle = (minimum + limit + 1) // 2
        minimum, limit = (middle, limit) if one[:middle] == other[:middle] else (minimum, middle - 1)
    return minimum


def before(data: bytes, place: int, path: Path) -> list[Block | str]:
    """Return the content of the lines, or the list items, that end before `place`."""
    if not data.startswith(b"["):
        head = data[: data.rfind(b"\n", 0, place) + 1]
    else:
        ends = [end for end in range(place) if data.startswith(b"\n },\n", end) and end + 4 <= place]
        head = data[: ends[-1] + 3] + b"\n]" if ends else b""
    path.write_bytes(head)
    try:
        return atoms(read_file(path))
    except OrchError:
        return []  # a header alone or an empty file: no content precedes the damage


def check(found: list[ImportedSession], folder: Path, *, planted: bool) -> None:
    """Assert that each conversation is valid for an API and, if `planted`, reads the same as a session of orch."""
    for number, each in enumerate(found):
        entries = [
            UnknownEntry(one.id, one.parent_id) if isinstance(one, ForeignEntry) else one for one in each.entries
        ]
        messages = SessionState.fold(entries).messages
        assert_valid(messages)
        if planted and has_messages(each):
            write_session(folder.with_suffix(f".{number}"), "a", "/", each, folder)
            assert read_session(folder.with_suffix(f".{number}")).messages == messages


@pytest.mark.parametrize("kind", KINDS)
def test_any_damaged_file_is_read_up_to_the_damage(tmp_path: Path, kind: str) -> None:
    """Content before the damage is read, or an OrchError is raised. The file is not changed."""
    data = KINDS[kind](tmp_path)
    path, head = tmp_path / "file.jsonl", tmp_path / "head.jsonl"
    random = Random(f"{kind} 1")
    collected: dict[int, list[Block | str]] = {}
    read = {False: 0, True: 0}
    for number in range(FILES):
        names = random.sample(list(DAMAGES), k=random.choice([1, 1, 1, 2]))
        damaged = data
        for name in names:
            damaged = DAMAGES[name](damaged, random) if damaged else damaged
        whole = damaged.removeprefix(BOM).replace(b"\r\n", b"\n")
        place = len(data) if set(names) <= HARMLESS else common(data, whole)
        kept = place if data.startswith(b"[") else data.rfind(b"\n", 0, place) + 1
        if kept not in collected:
            collected[kept] = before(data, place, head)
        path.write_bytes(damaged)
        for repair in (False, True):
            try:
                found = read_file(path, repair=repair)
            except OrchError:
                assert not set(names) <= HARMLESS, names
                continue
            read[repair] += 1
            assert is_within(collected[kept], atoms(found)), (number, names, repair)
            check(found, tmp_path / f"{number}", planted=number % PLANTED == 0)
            assert _ends_whole(damaged) or any(each.repairs for each in found), names
            break  # the file can be read without a repair
        assert path.read_bytes() == damaged
    assert read[False] >= FILES // 10
    assert read[True] >= FILES // 100 or kind == "a list of messages"


def _ends_whole(damaged: bytes) -> bool:
    """Return whether the last line is complete, with or without a line break."""
    try:
        json.loads(damaged.rstrip(b"\0").rpartition(b"\n")[2] or b"{}")
    except ValueError:
        return damaged.removeprefix(BOM).startswith(b"[")
    return True
