"""Sessions of ours for other programs and for people: the whole conversation, archived parts in their places."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.messages import Block, Image, Message, Opaque, Thinking, ToolResult
from orch_protocol.services.requests import AgentRow
from orch_protocol.session.entries import BranchSummary, CustomMessage, Label, MessageEntry, Telling
from orch_worker.session.log.append_log import load
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import NAME

from ..archival.adapters import FORMATS, OWN, convert_message, format_named
from ..config import paths
from ..config.output_file import write_out
from .formats.conversation import ImportedSession, Reading, path_of
from .formats.json_lines import text_of_file
from .formats.native import read_own
from .formats.pi import Author, pi_lines
from .html_page import html_page, markdown_page

__all__ = [
    "CHOICES",
    "MESSAGE_ENTRIES",
    "ExportedConversation",
    "export_conversation",
    "export_pages",
    "read_agent_conversation",
]

LISTS: Final = tuple(name for name in FORMATS if name != OWN)
CHOICES: Final = ("pi", "md", "html", *LISTS, "jsonl")
MESSAGE_ENTRIES: Final = (MessageEntry, CustomMessage, BranchSummary)


class ExportedConversation(NamedTuple):
    """A conversation in another form, in parts; and what is not in it as it was, once these are gone through."""

    pages: Iterator[str]
    notes: list[str]


def export_pages(agent: AgentRow, format: str) -> ExportedConversation:
    """Return the conversation of `agent` in a format of CHOICES: its branches too where that has them.

    Its file is read, without lock, up to its last whole line. Raises ConfigError, StoreError, ForeignFileError.
    """
    if format not in CHOICES:
        raise ConfigError(f"unknown format {format!r}: choose one of {', '.join(CHOICES)}")
    data, found, notes = _read(agent)
    if format == "jsonl":
        sound = data[: load(Path(agent.folder) / NAME).end]
        return ExportedConversation(iter([sound.decode("utf-8", "replace")]), notes)
    if format == "pi":
        lines = pi_lines(found, agent.id, _author(agent), notes)
        return ExportedConversation(
            (json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines), notes
        )
    if format in LISTS:
        return ExportedConversation(_list(found, format, notes), notes)
    page = markdown_page if format == "md" else html_page
    about = f"{agent.id}, {agent.model}, {agent.cwd}"
    return ExportedConversation(page(found.title or agent.task, about, _entries(found)), notes)


def read_agent_conversation(agent: AgentRow) -> ImportedSession:
    """Return the conversation of `agent`, read from its file. Raises ConfigError, StoreError, ForeignFileError."""
    return _read(agent)[1]


def _read(agent: AgentRow) -> tuple[bytes, ImportedSession, list[str]]:
    path = Path(agent.folder) / NAME
    reading = Reading(path, repair=True)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"agent {agent.name!r} was never asked: there is nothing to export") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    found = read_own(text_of_file(data, reading), reading)
    return data, found, list(reading.repairs)


def export_conversation(agent: AgentRow, format: str, output: str | os.PathLike[str] | None = None) -> str:
    """Return the conversation of `agent` in a format, and write it to the file `output` if there is one.

    Raises what `export_pages` does, and StoreError when the file cannot be written.
    """
    file = paths.path_of("output", output)
    text = "".join(export_pages(agent, format).pages)
    if file is not None:
        try:
            write_out(file, [text])
        except OSError as error:
            raise StoreError(f"{file} cannot be written: {error.strerror or error}") from error
    return text


def _author(agent: AgentRow) -> Author:
    provider, _, model = agent.model.partition(":")
    return Author(provider, provider, model)


def _entries(found: ImportedSession) -> Iterator[dict[str, Any]]:
    """Yield the messages of the conversation for a page."""
    labels = {entry.target_id: entry.label for entry in found.entries if isinstance(entry, Label)}
    for entry in path_of(found):
        if isinstance(entry, MESSAGE_ENTRIES) and entry.message.content:
            yield {"timestamp": entry.timestamp, "label": labels.get(entry.id)} | msgspec.to_builtins(entry.message)


def _list(found: ImportedSession, format: str, notes: list[str]) -> Iterator[str]:
    """Yield a list of messages as `format` has them, one a line: such as the API takes."""
    parent: str | None = None
    told: list[Telling] = []
    for entry in path_of(found):
        if isinstance(entry, MESSAGE_ENTRIES):
            told.append(msgspec.structs.replace(entry, parent_id=parent))
            parent = entry.id
    shape, lost = format_named(format), _Lost(format)
    rows = [
        row
        for message in SessionState.fold(told).messages
        for row in convert_message(shape, Message(message.role, tuple(lost.fit(message.content))))
    ]
    notes += lost.notes()
    yield "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


class _Lost:
    """What of our messages a format has no place for."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._plain = format_named(format).alone != ()
        self._count: dict[str, int] = {}

    def fit(self, blocks: Sequence[Block]) -> Iterator[Block]:
        """Yield the blocks that have one."""
        for block in blocks:
            if isinstance(block, Thinking) and self._plain:
                self._add("thinking")
            elif isinstance(block, Opaque) and block.provider != format_named(self._format).provider:
                self._add("blocks of another provider")
            elif isinstance(block, ToolResult) and self._plain:
                if block.is_error:
                    self._add("marks of results as errors")
                if any(isinstance(part, Image) for part in block.content):
                    self._add("images in results")
                yield block
            else:
                yield block

    def _add(self, what: str) -> None:
        self._count[what] = self._count.get(what, 0) + 1

    def notes(self) -> list[str]:
        """Return what was left out."""
        counted = ", ".join(f"{count} {what}" for what, count in self._count.items())
        return [f"left out, for {self._format} messages have no place for it: {counted}"] if counted else []
