"""The command `orch memory` lists, shows, adds and deletes notes that agents keep about a folder across sessions."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from orch_protocol.resources.memory import MemorySpec
from orch_worker.memory.notes import MemoryStore, rank_notes

from ...client.connection import replace_invalid_utf8
from ...config import paths
from ...render import terminal
from ...render.resources.memory import author, data, table
from ...resources.memory import add_note, open_memory, select_notes
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["VERBS"]

MARKED = "in a conversation with "


def _folder_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="DIR", default=".", help="project folder (default: current folder)")


def _open_memory(arguments: Namespace) -> tuple[MemoryStore, MemorySpec]:
    return open_memory(Path(arguments.cwd).expanduser().absolute(), paths.home())


def _list_arguments(parser: ArgumentParser) -> None:
    _folder_argument(parser)
    parser.add_argument("--about", metavar="TEXT", help="sort by relevance to this text")


def _list(arguments: Namespace) -> int:
    notes = _open_memory(arguments)[0].notes()
    if arguments.about is not None:
        notes = rank_notes(notes, replace_invalid_utf8(arguments.about))
    command.print_result(arguments, data(notes), table(notes) if notes else "")
    if not notes and not arguments.json:
        print("orch: no notes about this folder; agents take notes when memory.enabled is true", file=sys.stderr)
    return 0


def _id_arguments(parser: ArgumentParser) -> None:
    _folder_argument(parser)
    parser.add_argument("ids", metavar="ID", nargs="+", help="id of a note")


def _show(arguments: Namespace) -> int:
    notes = select_notes(_open_memory(arguments)[0].notes(), arguments.ids)
    pages = []
    for note in notes:
        facts = {"by": author(note), "agent": note.agent, "query": note.turn, "at": note.at}
        facts["noted"] = MARKED + ", ".join(f"{mark.bit} ({mark.by})" for mark in note.marks) if note.marks else ""
        lines = [f"  {name + ':':8}{terminal.safe(value)}" for name, value in facts.items() if value]
        pages.append("\n".join([note.id, *lines, "", terminal.safe(note.text)]))
    command.print_result(arguments, data(notes), "\n\n".join(pages))
    return 0


def _add_arguments(parser: ArgumentParser) -> None:
    _folder_argument(parser)
    parser.add_argument("text", metavar="TEXT", help="text of the note; - reads it from stdin")


def _add(arguments: Namespace) -> int:
    note = add_note(*_open_memory(arguments), replace_invalid_utf8(command.text(arguments.text)))
    command.print_result(arguments, data([note])[0], note.id)
    return 0


def _forget(arguments: Namespace) -> int:
    memory = _open_memory(arguments)[0]
    removed = memory.forget(note.id for note in select_notes(memory.notes(), arguments.ids))
    command.print_result(arguments, data(removed), "\n".join(note.id for note in removed))
    return 0


ACTIONS = {
    "list": ("list the notes about a folder", CliCommand("List notes.", "orch memory list", _list_arguments, _list)),
    "show": ("print one note", CliCommand("Show notes.", "orch memory show 1f22a6cc", _id_arguments, _show)),
    "add": (
        "note something",
        CliCommand("Add a note for agents and print its id.", "orch memory add TEXT", _add_arguments, _add),
    ),
    "forget": (
        "delete notes",
        CliCommand("Delete notes and print their ids.", "orch memory forget 1f22a6cc", _id_arguments, _forget),
    ),
}
VERBS = {"memory": CommandGroup("Notes that agents keep about a folder.", "orch memory list", ACTIONS)}
