"""An index of a session file: its branches, the current position, labels and the title.

Only the beginning of each entry is read. The content of messages is not decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import AmbiguousRefError, EntryNotFoundError
from orch_protocol.core.messages import ToolResult, text_of
from orch_protocol.services.sessions.sessions import Branch, EntryRow
from orch_protocol.session.entries import MessageEntry, SessionHeader

from ..conversation.framing import question_in
from ..conversation.stubs import deletion_marker
from .entry_codec import DECODE_ERRORS, HEADER_PREFIX, decode_entry, decode_link, line_prefixes
from .entry_tree import EntryTree
from .session_reader import read_lines

__all__ = ["ROOT_NAME", "SessionIndex", "read_prompt", "read_session_index"]

ROOT_NAME: Final = "root"
"""The name of the position before the first entry."""
MAX_HEAD_CHARS: Final = 80
MIN_PREFIX: Final = 2
PREAMBLE: Final = ("<project> ", '<context name="')
"""Beginnings of messages that contain the project description before the first prompt. See `framing`."""
TURN_NUMBER: Final = re.compile(r"turn:(-?\d{1,9})|(-?\d{1,3})")
"""`turn:12`, or up to three digits. More digits may be the prefix of an entry id."""
NON_CONVERSATION_TYPES: Final = frozenset(
    {"checkout", "label", "session_info", "model_change", "thinking_level_change", "custom"}
)
"""Types of entries that are not part of the conversation."""


class _ContentBlock(Struct):
    type: str = ""
    text: str = ""
    name: str = ""


class _MessageText(Struct):
    role: str = ""
    content: list[_ContentBlock] = []


class _Reply(Struct):
    text: str = ""


class _CompactionLine(Struct):
    task: str = ""
    holder: str = ""


class _IndexedLine(Struct, rename="camel"):
    id: str
    parent_id: str | None = None
    type: str = ""
    timestamp: str = ""
    turn: str = ""
    message: _MessageText | None = None
    content: list[_ContentBlock] = []
    summary: str = ""
    reply: _Reply | None = None
    collapse: _CompactionLine | None = None
    target_id: str = ""
    label: str | None = None
    name: str | None = None
    provider: str = ""
    model_id: str = ""
    thinking_level: str = ""
    own: bool = False
    custom_type: str = ""
    deleted: str = ""


MESSAGE_PREFIX: Final = line_prefixes(MessageEntry)
_line: msgspec.json.Decoder[_IndexedLine] = msgspec.json.Decoder(_IndexedLine)


class SessionIndex:
    """The tree of a session, computed from the lines of its file. Do not assign attributes."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.header: SessionHeader | None = None
        self.lineage = EntryTree()
        """The tree of entries, including entries on damaged lines."""
        self.labels: dict[str, str] = {}
        """The labels of entries. Keys are entry ids."""
        self.name = ""
        """The current title of the session."""
        self._rows: list[EntryRow] = []
        self._own: set[str] = set()
        for line in lines:
            self._take(line)

    @property
    def leaf(self) -> str | None:
        """Id of the last entry, after which the conversation continues. An empty session has the leaf None."""
        return self.lineage.leaf

    def rows(self) -> list[EntryRow]:
        """Return all entries, in file order."""
        path = self.lineage.path(len(self._rows) - 1)
        return [
            msgspec.structs.replace(row, on_path=bool(on), label=self.labels.get(row.id))
            if on or row.id in self.labels
            else row
            for row, on in zip(self._rows, path, strict=True)
        ]

    def branches(self) -> list[Branch]:
        """Return the branches, ordered by their last message. The current branch may end at any entry."""
        parents = self.lineage.parents
        last = len(self._rows) - 1
        path = self.lineage.path(last)
        followed = bytearray(len(parents))
        for parent in parents:
            if parent >= 0:
                followed[parent] = 1
        here = self._conversation_entry_at(last)
        tips = {here} if last >= 0 else set()
        inner = bytearray(len(parents))
        for end in (self._conversation_entry_at(place) for place in range(last, -1, -1) if not followed[place]):
            if end >= 0 and not inner[end]:
                tips.add(end)
                above = parents[end]
                while above >= 0 and not inner[above]:
                    inner[above] = 1
                    above = parents[above]
        # An entry that has later entries is not the end of a branch.
        return [self._branch(tip, path, current=tip == here) for tip in sorted(tips) if tip == here or not inner[tip]]

    def model_at(self, at: str | None) -> tuple[str, str]:
        """Return the agent's own model (`provider:name`) and the thinking level on the path to the entry `at`.

        A missing value is "".
        """
        model, level = "", ""
        for place in self.lineage.path_to_root(self.lineage.places[at] if at is not None else -1):
            row = self._rows[place]
            if row.id in self._own:
                model = model or row.head
            elif row.type == "thinking_level_change":
                level = level or row.head
            if model and level:
                break
        return model, level

    def turns(self) -> list[tuple[str, str]]:
        """Return the first and the last entry id of each turn of the current conversation, in order.

        A turn starts with its prompt. A steering message belongs to the turn that received the message. The project
        description before the first prompt belongs to no turn.
        """
        found: list[tuple[str, str]] = []
        turn = ""
        for row in (self._rows[place] for place in [*self.lineage.path_to_root(len(self._rows) - 1)][::-1]):
            if row.type == "message" and row.role == "user" and not row.turn and row.head.startswith(PREAMBLE):
                continue
            if row.type == "message" and row.role == "user" and (not found or not row.turn or row.turn != turn):
                found.append((row.id, row.id))
                turn = row.turn
            elif found and row.type not in NON_CONVERSATION_TYPES and row.turn == turn:
                found[-1] = (found[-1][0], row.id)
        return found

    def find(self, ref: str, *, prompt: bool = False) -> str | None:
        """Return the id of the entry named by `ref`. Return None for "root", the position before the first entry.

        `ref` is an entry id, a label, a turn number, or a unique prefix of an entry id. Turn 1 is the first turn of the
        current conversation, and turn -1 the last turn. A turn number means the last entry of the turn. If `prompt` is
        True, a turn number means the prompt of the turn. Raise EntryNotFoundError if no entry matches, and
        AmbiguousRefError if several entries match.
        """
        if self._exists(ref):
            return ref
        labeled = [id for id, label in self.labels.items() if label == ref]
        if labeled:
            return labeled[-1]
        if ref == ROOT_NAME:
            return None
        if number := TURN_NUMBER.fullmatch(ref):
            return self._turn(int(number[1] or number[2]))[0 if prompt else 1]
        found = [id for id in self.lineage.places if len(ref) >= MIN_PREFIX and id.startswith(ref)]
        if len(found) > 1:
            raise AmbiguousRefError(f"{ref!r} is a prefix of {len(found)} entry ids: {', '.join(found[:8])}")
        if not found or not self._exists(found[0]):
            raise EntryNotFoundError(
                f"the session has no entry {ref[:80]!r}: give an id or a unique prefix, a label, a turn number, or "
                f"{ROOT_NAME!r}; `orch session tree` shows them"
            )
        return found[0]

    def row(self, id: str) -> EntryRow:
        """Return the entry with this id, which must exist."""
        return self._rows[self.lineage.places[id]]

    def _turn(self, number: int) -> tuple[str, str]:
        turns = self.turns()
        if not 1 <= abs(number) <= len(turns):
            raise EntryNotFoundError(f"no turn {number}: the conversation has {len(turns)} turns, numbered from 1")
        return turns[number - 1 if number > 0 else number]

    def _exists(self, id: str) -> bool:
        place = self.lineage.places.get(id)
        return place is not None and self._rows[place].type != "lost"

    def _conversation_entry_at(self, place: int) -> int:
        """Return the position of the last conversation entry on the path to `place`, or -1."""
        return next(
            (each for each in self.lineage.path_to_root(place) if self._rows[each].type not in NON_CONVERSATION_TYPES),
            -1,
        )

    def _branch(self, tip: int, path: bytearray, *, current: bool) -> Branch:
        if tip < 0:
            return Branch(id=None, from_id=None, entries=0, head="", timestamp="", current=current)
        own: list[int] = []
        for place in self.lineage.path_to_root(tip):
            if path[place] and not current:
                break
            own.append(place)
        fork = self.lineage.parents[own[-1]] if own else tip
        asked = (self._rows[place] for place in own if self._rows[place].role == "user")
        row = self._rows[tip]
        return Branch(
            id=row.id,
            from_id=self._rows[fork].id if fork >= 0 else None,
            entries=len(own),
            head=next((each.head for each in asked), row.head),
            timestamp=row.timestamp,
            label=self.labels.get(row.id),
            current=current,
        )

    def _take(self, line: bytes) -> None:
        if line.startswith(HEADER_PREFIX):
            header = decode_entry(line)
            if self.header is None and isinstance(header, SessionHeader):
                self.header = header
            return
        entry = _decode(line)
        if entry is None:
            return
        lineage = self.lineage
        if entry.parent_id is not None and lineage.missing(entry.parent_id):
            self._rows.append(EntryRow(entry.parent_id, lineage.leaf, "lost"))
            lineage.add(entry.parent_id, lineage.leaf)
        lineage.add(entry.id, entry.parent_id)
        role, head = _shown(entry)
        self._rows.append(
            EntryRow(entry.id, entry.parent_id, entry.type, entry.timestamp, role, _clipped(head), entry.turn)
        )
        if entry.type == "label" and entry.label:
            self.labels[entry.target_id] = entry.label
        elif entry.type == "label":
            self.labels.pop(entry.target_id, None)
        elif entry.own:
            self._own.add(entry.id)
        elif entry.type == "session_info":
            self.name = entry.name or ""


def read_session_index(folder: Path) -> SessionIndex:
    """Return the index of the session in `folder`. The index is empty if there is no session.

    Raise ForeignFileError if the file is not a transcript. Raise StoreError if the file cannot be read.
    """
    return SessionIndex(read_lines(folder))


def read_prompt(folder: Path, id: str) -> str | None:
    """Return the question in the entry `id` of the session in `folder`. Return None if the entry contains no question.

    Raise the same errors as `read_session_index`.
    """
    wanted = b'"id":"%b"' % id.encode()
    for line in read_lines(folder):
        if wanted not in line[:64] or not line.startswith(MESSAGE_PREFIX):
            continue
        entry = decode_entry(line)
        if not isinstance(entry, MessageEntry):
            return None
        message = entry.message
        results = any(isinstance(block, ToolResult) for block in message.content)
        return question_in(text_of(message)) if message.role == "user" and not results else None
    return None


def _decode(line: bytes) -> _IndexedLine | None:
    """Return the fields that the index needs of the entry on `line`.

    Return None if the entry has no place in the tree.
    """
    try:
        return _line.decode(line)
    except DECODE_ERRORS:
        link = decode_link(line)
        return _IndexedLine(link.id, link.parent_id, link.type) if link is not None else None


def _shown(entry: _IndexedLine) -> tuple[str, str]:
    """Return the speaker and a short text of an entry."""
    match entry.type:
        case "message" if entry.message is not None:
            content = entry.message.content
            results = any(block.type == "tool_result" for block in content)
            return "tool" if results else entry.message.role, _words(content)
        case "custom_message":
            return "user", _words(entry.content)
        case "branch_summary":
            return "user", entry.summary
        case "compaction":
            return "", entry.summary
        case "turn_end" if entry.reply is not None:
            return "", entry.reply.text
        case "archive" if entry.collapse is not None:
            about = deletion_marker(entry.deleted) if entry.deleted else entry.collapse.task
            return "", f"{entry.collapse.holder}: {about}"
        case "label":
            return "", f"{entry.target_id}: {entry.label or ''}"
        case "session_info":
            return "", entry.name or ""
        case "model_change":
            return "", f"{entry.provider}:{entry.model_id}" if entry.model_id else entry.provider
        case "thinking_level_change":
            return "", entry.thinking_level
        case "custom":
            return "", entry.custom_type
    return "", ""


def _words(content: list[_ContentBlock]) -> str:
    texts: list[Any] = [block.text or block.name for block in content]
    return " ".join(filter(None, texts)) or ", ".join(block.type for block in content)


def _clipped(text: str) -> str:
    line = " ".join(text[: MAX_HEAD_CHARS * 4].split())
    return line if len(line) <= MAX_HEAD_CHARS else f"{line[: MAX_HEAD_CHARS - 3]}..."
