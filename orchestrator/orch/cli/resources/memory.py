"""`orch memory list`, `show`, `add`, `forget`: what agents remember of a folder from one conversation to the next."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from orch_protocol.core.errors import EntryNotFoundError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.resources.memory import MemorySpec, Note
from orch_worker.memory.notes import Memory, checked, folder_of, make_memory, relevant

from ...config import paths
from ...config.config import load
from ...daemon.failure import Failure
from ...render import terminal
from .. import command
from ..command import Group, Verb

__all__ = ["VERBS", "chosen", "noted", "opened", "plain", "table"]

HEAD = ("ID", "DAY", "BY", "NOTE")
MARKED = "in a conversation with "


def _cwd(parser: ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="DIR", default=".", help="the folder that it is about (this one)")


def _opened(arguments: Namespace) -> tuple[Memory, MemorySpec]:
    return opened(Path(arguments.cwd).expanduser().absolute(), paths.home())


def opened(cwd: Path, home: Path) -> tuple[Memory, MemorySpec]:
    """Return the notes about the folder `cwd`, and what bounds them. Raises ConfigError."""
    said = load(cwd, home=home).config.memory
    spec = MemorySpec(str(folder_of(home, cwd)), said.provider, total_chars=said.total_chars)
    return make_memory(spec), msgspec.structs.replace(spec, note_chars=said.note_chars)


def _list_arguments(parser: ArgumentParser) -> None:
    _cwd(parser)
    parser.add_argument("--about", metavar="TEXT", help="those first that say most about this")


def _list(arguments: Namespace) -> int:
    notes = _opened(arguments)[0].notes()
    if arguments.about is not None:
        notes = relevant(notes, command.clean(arguments.about))
    command.say(arguments, plain(notes), table(notes) if notes else "")
    if not notes and not arguments.json:
        print("orch: nothing is noted about this folder; memory.enabled lets agents do so", file=sys.stderr)
    return 0


def table(notes: list[Note]) -> str:
    """Return notes as a table, one a line."""
    rows = [[note.id, note.at[:10], _by(note), terminal.line(note.text)] for note in notes]
    return terminal.columns([list(HEAD), *rows], frozenset())


def _id_arguments(parser: ArgumentParser) -> None:
    _cwd(parser)
    parser.add_argument("ids", metavar="ID", nargs="+", help="id of a note")


def _show(arguments: Namespace) -> int:
    notes = chosen(_opened(arguments)[0].notes(), arguments.ids)
    pages = []
    for note in notes:
        facts = {"by": _by(note), "agent": note.agent, "query": note.turn, "at": note.at}
        facts["noted"] = MARKED + ", ".join(f"{mark.bit} ({mark.by})" for mark in note.marks) if note.marks else ""
        lines = [f"  {name + ':':8}{terminal.safe(value)}" for name, value in facts.items() if value]
        pages.append("\n".join([note.id, *lines, "", terminal.safe(note.text)]))
    command.say(arguments, plain(notes), "\n\n".join(pages))
    return 0


def _add_arguments(parser: ArgumentParser) -> None:
    _cwd(parser)
    parser.add_argument("text", metavar="TEXT", help="what is to be remembered; - reads it from standard input")


def _add(arguments: Namespace) -> int:
    note = noted(*_opened(arguments), command.clean(command.text(arguments.text)))
    command.say(arguments, plain([note])[0], note.id)
    return 0


def noted(memory: Memory, spec: MemorySpec, text: str) -> Note:
    """Note `text`, by a person, and return the note. Raises Failure."""
    try:
        text = checked(text, spec.note_chars)
    except ValueError as error:
        raise Failure("ConfigError", f"that cannot be noted: {error}", 2) from error
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return memory.add(Note(new_entry_id(()), text, now, "user"))


def _forget(arguments: Namespace) -> int:
    memory = _opened(arguments)[0]
    gone = memory.forget(note.id for note in chosen(memory.notes(), arguments.ids))
    command.say(arguments, plain(gone), "\n".join(note.id for note in gone))
    return 0


def chosen(notes: list[Note], ids: list[str]) -> list[Note]:
    """Return the notes with these ids. Raises EntryNotFoundError."""
    known = {note.id: note for note in notes}
    for id in ids:
        if id not in known:
            raise EntryNotFoundError(f"there is no note {id[:40]!r} about this folder; `orch memory list` shows them")
    return [known[id] for id in dict.fromkeys(ids)]


def _by(note: Note) -> str:
    return {"agent": "an agent", "compaction": "a summary", "user": "a person"}[note.source]


def plain(notes: list[Note]) -> Any:
    """Return notes as JSON data."""
    return [{**msgspec.to_builtins(note), "source": note.source} for note in notes]


ACTIONS = {
    "list": ("what is noted about a folder", Verb("List notes.", "orch memory list", _list_arguments, _list)),
    "show": ("one note whole", Verb("Show notes.", "orch memory show 1f22a6cc", _id_arguments, _show)),
    "add": (
        "note something",
        Verb("Note something for agents, and print its id.", "orch memory add TEXT", _add_arguments, _add),
    ),
    "forget": (
        "delete notes",
        Verb("Delete notes for good, and print their ids.", "orch memory forget 1f22a6cc", _id_arguments, _forget),
    ),
}
VERBS = {"memory": Group("What agents remember of a folder.", "orch memory list", ACTIONS)}
