"""Export sessions to formats of other programs, Markdown and HTML.

An export contains archived messages in their places.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.messages import Block, Image, Message, Opaque, Thinking, ToolResult
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.session.entries import AnyMessageEntry, BranchSummary, CustomMessage, Label, MessageEntry
from orch_worker.session.log.log_reader import load
from orch_worker.session.session import SessionState
from orch_worker.session.session_reader import NAME

from ..archival.adapters import FORMATS, ORCH_FORMAT, convert_message, format_named
from ..config import paths
from ..config.output_file import write_output_file
from .formats.conversation import ImportedSession, Reading, path_to_leaf
from .formats.json_lines import text_of_file
from .formats.native import read_orch_session
from .formats.pi import DefaultOrigin, pi_lines
from .html_page import html_page, markdown_page

__all__ = [
    "CHOICES",
    "MESSAGE_ENTRIES",
    "ExportedConversation",
    "export_conversation",
    "export_pages",
    "read_agent_conversation",
]

LISTS: Final = tuple(name for name in FORMATS if name != ORCH_FORMAT)
CHOICES: Final = ("pi", "md", "html", *LISTS, "jsonl")
MESSAGE_ENTRIES: Final = (MessageEntry, CustomMessage, BranchSummary)


class ExportedConversation(NamedTuple):
    """An exported conversation in parts, with notes about differences from the session.

    The notes are complete after the last part was read.
    """

    pages: Iterator[str]
    notes: list[str]


def export_pages(agent: AgentRow, format: str) -> ExportedConversation:
    """Return the conversation of `agent` in the format `format`, which is one of CHOICES.

    The result contains the branches of the conversation if the format supports branches. The file is read without a
    lock, up to the last complete line. Raises ConfigError, StoreError, ForeignFileError.
    """
    if format not in CHOICES:
        raise ConfigError(f"unknown format {format!r}: choose one of {', '.join(CHOICES)}")
    data, found, notes = _read(agent)
    if format == "jsonl":
        sound = data[: load(Path(agent.folder) / NAME).end]
        return ExportedConversation(iter([sound.decode("utf-8", "replace")]), notes)
    if format == "pi":
        lines = pi_lines(found, agent.id, _default_origin(agent), notes)
        return ExportedConversation(
            (json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines), notes
        )
    if format in LISTS:
        return ExportedConversation(_list(found, format, notes), notes)
    page = markdown_page if format == "md" else html_page
    about = f"{agent.id}, {agent.model}, {agent.cwd}"
    return ExportedConversation(page(found.title or agent.task, about, _entries(found)), notes)


def read_agent_conversation(agent: AgentRow) -> ImportedSession:
    """Return the conversation of `agent`, read from the session file.

    Raises ConfigError, StoreError, ForeignFileError.
    """
    return _read(agent)[1]


def _read(agent: AgentRow) -> tuple[bytes, ImportedSession, list[str]]:
    path = Path(agent.folder) / NAME
    reading = Reading(path, repair=True)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"agent {agent.name!r} was never queried, so there is nothing to export") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    found = read_orch_session(text_of_file(data, reading), reading)
    return data, found, list(reading.repairs)


def export_conversation(agent: AgentRow, format: str, output: str | os.PathLike[str] | None = None) -> str:
    """Return the conversation of `agent` in the format `format`. If `output` is set, also write the conversation to
    this file.

    Raises the errors of `export_pages`. Raises StoreError if the file cannot be written.
    """
    file = paths.checked_path("output", output)
    text = "".join(export_pages(agent, format).pages)
    if file is not None:
        try:
            write_output_file(file, [text])
        except OSError as error:
            raise StoreError(f"{file} cannot be written: {error.strerror or error}") from error
    return text


def _default_origin(agent: AgentRow) -> DefaultOrigin:
    provider, _, model = agent.model.partition(":")
    return DefaultOrigin(provider, provider, model)


def _entries(found: ImportedSession) -> Iterator[dict[str, Any]]:
    """Yield the messages of the conversation for a page."""
    labels = {entry.target_id: entry.label for entry in found.entries if isinstance(entry, Label)}
    for entry in path_to_leaf(found):
        if isinstance(entry, MESSAGE_ENTRIES) and entry.message.content:
            yield {"timestamp": entry.timestamp, "label": labels.get(entry.id)} | msgspec.to_builtins(entry.message)


def _list(found: ImportedSession, format: str, notes: list[str]) -> Iterator[str]:
    """Yield the conversation as a JSON array of messages. The array has the form that the provider's API expects."""
    parent: str | None = None
    entries: list[AnyMessageEntry] = []
    for entry in path_to_leaf(found):
        if isinstance(entry, MESSAGE_ENTRIES):
            entries.append(msgspec.structs.replace(entry, parent_id=parent))
            parent = entry.id
    shape, unsupported = format_named(format), _UnsupportedBlocks(format)
    rows = [
        row
        for message in SessionState.fold(entries).messages
        for row in convert_message(shape, Message(message.role, tuple(unsupported.supported_blocks(message.content))))
    ]
    notes += unsupported.notes()
    yield "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


class _UnsupportedBlocks:
    """Counts the blocks that the export format does not support."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._plain = format_named(format).separate_blocks != ()
        self._count: dict[str, int] = {}

    def supported_blocks(self, blocks: Sequence[Block]) -> Iterator[Block]:
        """Yield those of `blocks` that the format supports."""
        for block in blocks:
            if isinstance(block, Thinking) and self._plain:
                self._add("thinking")
            elif isinstance(block, Opaque) and block.provider != format_named(self._format).provider:
                self._add("blocks of another provider")
            elif isinstance(block, ToolResult) and self._plain:
                if block.is_error:
                    self._add("error flags of results")
                if any(isinstance(part, Image) for part in block.content):
                    self._add("images in results")
                yield block
            else:
                yield block

    def _add(self, what: str) -> None:
        self._count[what] = self._count.get(what, 0) + 1

    def notes(self) -> list[str]:
        """Return a note about the blocks that were left out."""
        counted = ", ".join(f"{count} {what}" for what, count in self._count.items())
        return [f"left out, because {self._format} messages cannot contain it: {counted}"] if counted else []
