"""The commands `orch session import`, `export` and `to-test` convert files to agents, and conversations to files."""

from __future__ import annotations

import os
import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from .. import command
from ..agents.spawn import agent_option_params, agent_options
from ..command import CliCommand, key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable
    from typing import Any

    from orch_protocol.services.agents.status import AgentRow

__all__ = ["ACTIONS"]


def _import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="session file of orch or pi, transcript of a coding assistant, or list of messages",
    )
    parser.add_argument("--repair", action="store_true", help="repair damage and report it")
    parser.add_argument(
        "--which", type=command.positive_int, metavar="N", help="which conversation, if the file holds several"
    )
    agent_options(parser)


def _import(arguments: Namespace) -> int:
    if arguments.name is not None and len(arguments.files) > 1:
        raise CommandError("UsageError", "--name can be used with one file only", 2)
    arguments.dry_run = False
    params, model_note = agent_option_params(arguments)
    request = {"here": os.getcwd(), "repair": arguments.repair, "which": arguments.which}
    request["agent"] = params if arguments.cwd is not None else params | {"cwd": None}  # the file may name a folder
    connection = Connection()
    imported = []
    try:
        for file in arguments.files:
            path = {"path": os.path.abspath(file)}
            imported.append(connection.call("import", request | path))
            if not arguments.json:
                print(imported[-1]["id"], flush=True)
            _print_remarks(file, imported[-1], json=arguments.json)
    finally:
        if imported:  # prints the successful imports even if a later import fails
            command.print_result(arguments, imported if len(arguments.files) > 1 else imported[0], "")
    if model_note is not None and sys.stderr.isatty():
        print(model_note, file=sys.stderr)
    return 0


def _print_remarks(file: str, imported: dict[str, Any], *, json: bool) -> None:
    """Print remarks about an import on stderr. With JSON, the remarks are part of the data instead."""
    if json:
        return
    name = terminal.safe(os.path.basename(file))
    summary_text = f"{terminal.pluralize(imported['messages'], 'message')}, {imported['shape']}"
    if imported["branches"]:
        summary_text += f", {imported['branches']} other ends of it"
    if imported["below"]:
        summary_text += f", {terminal.pluralize(len(imported['below']), 'subagent')}: {', '.join(imported['below'])}"
    print(f"orch: {name}: {summary_text}", file=sys.stderr)
    for repair in imported["repairs"]:
        print(f"orch: {name}: {terminal.safe(repair)}", file=sys.stderr)
    for note in imported["notes"]:
        print(f"orch: {name}: {terminal.safe(note)}", file=sys.stderr)


def _export_arguments(parser: ArgumentParser) -> None:
    from ...sessions.export import CHOICES

    key_argument(parser)
    parser.add_argument(
        "--format",
        choices=CHOICES,
        default="pi",
        help="pi (default), page (html, markdown), messages for an API, or native",
    )
    command.output_argument(parser)


def _export(arguments: Namespace) -> int:
    from ...sessions.export import export_pages

    row = _agent(arguments)
    pages, notes = export_pages(row, arguments.format)
    _write(arguments, row.id, pages, notes)
    return 0


def _agent(arguments: Namespace) -> AgentRow:
    """Return the agent whose session is `arguments.key`."""
    import msgspec

    from orch_protocol.services.agents.status import AgentRow

    connection = Connection(run=arguments.run)
    id = connection.call("session", {"ref": arguments.key, "limit": 0})["id"]
    return msgspec.convert(connection.call("state", {"ref": id}), AgentRow)


def _write(arguments: Namespace, id: str, pages: Iterable[str], notes: list[str]) -> None:
    from ...config.output_file import write_output_file

    if arguments.output == "-":
        sys.stdout.writelines(pages)
    else:
        try:
            write_output_file(arguments.output, pages)
        except OSError as error:
            text = f"cannot write {arguments.output}: {error.strerror or error}"
            raise CommandError("OSError", text) from error
        result = {"id": id, "output": arguments.output, "notes": notes}
        command.print_result(arguments, result, terminal.safe(arguments.output))
    for note in notes:
        print(f"orch: {terminal.safe(note)}", file=sys.stderr)


def _test_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    command.output_argument(parser)


def _to_test(arguments: Namespace) -> int:
    import msgspec

    from orch_protocol.agent.spec import AgentSpec
    from orch_protocol.session.entries import ArchiveEntry, CompactionEntry
    from orch_worker.memory.notes import make_memory

    from ...regression.generate_test import source_of
    from ...regression.replay_agent import replay_session
    from ...sessions.export import read_agent_conversation

    row = _agent(arguments)
    spec = msgspec.convert(Connection(run=arguments.run).call("spec", {"ref": row.id}), AgentSpec)
    found = read_agent_conversation(row)
    scenario = replay_session(found, spec, make_memory(spec.memory).notes() if spec.memory is not None else ())
    notes = ["do not call policy functions of the program again"] if spec.policy.asks_root else []
    if (
        any(isinstance(entry, ArchiveEntry | CompactionEntry) for entry in found.entries)
        and "shortened" not in scenario
    ):
        notes.append("use the full conversation, without archiving and compaction")
    _write(arguments, row.id, [source_of(row.name, scenario)], notes)
    return 0


ACTIONS = {
    "import": (
        "create an agent that continues a conversation from a file",
        CliCommand(
            "Create agents from conversations in files and print their ids. Reads sessions of orch and pi, "
            "transcripts of coding assistants, and lists of messages. The files are not changed.",
            "orch session import talk.jsonl --name talk",
            _import_arguments,
            _import,
        ),
    ),
    "export": (
        "export a conversation for other programs, or as a page",
        CliCommand(
            "Export the whole conversation of an agent: for pi, as Markdown or HTML, or as messages for an API.",
            "orch session export reader --format html --output reader.html",
            _export_arguments,
            _export,
        ),
    ),
    "to-test": (
        "write a pytest module that replays a conversation",
        CliCommand(
            "Write a pytest module that replays a conversation: model and tools answer as recorded, and the"
            " requests to the model are compared.",
            "orch session to-test reader --output test_reader.py",
            _test_arguments,
            _to_test,
        ),
    ),
}
