"""`orch session import`, `export`, `to-test`: conversations from files to agents, and from agents to files."""

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

    from orch_protocol.services.requests import AgentRow

__all__ = ["ACTIONS"]


def _import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="sessions of ours or pi's, rows of transcripts, plain messages"
    )
    parser.add_argument("--repair", action="store_true", help="set right what is damaged, and say what that was")
    parser.add_argument(
        "--which", type=command.positive_int, metavar="N", help="of several conversations in a file this one"
    )
    agent_options(parser)


def _import(arguments: Namespace) -> int:
    if arguments.name is not None and len(arguments.files) > 1:
        raise CommandError("UsageError", "--name names one agent: import one file at a time with it", 2)
    arguments.dry_run = False
    params, says = agent_option_params(arguments)
    asked = {"here": os.getcwd(), "repair": arguments.repair, "which": arguments.which}
    asked["agent"] = params if arguments.cwd is not None else params | {"cwd": None}  # the file may say
    connection = Connection()
    imported = []
    try:
        for file in arguments.files:
            path = {"path": os.path.abspath(file)}
            imported.append(connection.call("import", asked | path))
            if not arguments.json:
                print(imported[-1]["id"], flush=True)
            _remark(file, imported[-1], json=arguments.json)
    finally:
        if imported:  # these are there, whatever becomes of the others
            command.print_result(arguments, imported if len(arguments.files) > 1 else imported[0], "")
    if says is not None and sys.stderr.isatty():
        print(says, file=sys.stderr)
    return 0


def _remark(file: str, imported: dict[str, Any], *, json: bool) -> None:
    """Say on stderr what a person should know; as JSON it is in the data."""
    if json:
        return
    name = terminal.safe(os.path.basename(file))
    much = f"{terminal.pluralize(imported['messages'], 'message')}, {imported['shape']}"
    if imported["branches"]:
        much += f", {imported['branches']} other ends of it"
    if imported["below"]:
        much += f", {terminal.pluralize(len(imported['below']), 'subagent')}: {', '.join(imported['below'])}"
    print(f"orch: {name}: {much}", file=sys.stderr)
    for repair in imported["repairs"]:
        print(f"orch: {name}: {terminal.safe(repair)}", file=sys.stderr)
    for note in imported["notes"]:
        print(f"orch: {name}: {terminal.safe(note)}", file=sys.stderr)


def _export_arguments(parser: ArgumentParser) -> None:
    from ...sessions.export import CHOICES

    key_argument(parser)
    parser.add_argument(
        "--format", choices=CHOICES, default="pi", help="pi (the default); a page; messages for an API; or as it is"
    )
    command.output_argument(parser)


def _export(arguments: Namespace) -> int:
    from ...sessions.export import export_pages

    row = _agent(arguments.key)
    pages, notes = export_pages(row, arguments.format)
    _write(arguments, row.id, pages, notes)
    return 0


def _agent(key: str) -> AgentRow:
    """Return the agent whose session is meant."""
    import msgspec

    from orch_protocol.services.requests import AgentRow

    connection = Connection()
    id = connection.call("session", {"ref": key, "most": 0})["id"]
    return msgspec.convert(connection.call("state", {"ref": id}), AgentRow)


def _write(arguments: Namespace, id: str, pages: Iterable[str], notes: list[str]) -> None:
    """Write `pages` where they are to go, then say what there is to know of them."""
    from ...config.output_file import write_out

    if arguments.output == "-":
        sys.stdout.writelines(pages)
    else:
        try:
            write_out(arguments.output, pages)
        except OSError as error:
            said = f"{arguments.output} cannot be written: {error.strerror or error}"
            raise CommandError("OSError", said) from error
        told = {"id": id, "output": arguments.output, "notes": notes}
        command.print_result(arguments, told, terminal.safe(arguments.output))
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

    row = _agent(arguments.key)
    spec = msgspec.convert(Connection().call("spec", {"ref": row.id}), AgentSpec)
    found = read_agent_conversation(row)
    story = replay_session(found, spec, make_memory(spec.memory).notes() if spec.memory is not None else ())
    notes = ["what a function of the program decided is not asked again"] if spec.policy.asks_root else []
    if any(isinstance(entry, ArchiveEntry | CompactionEntry) for entry in found.entries) and "shortened" not in story:
        notes.append("nothing gives way in the test: what was archived or compacted is told whole")
    _write(arguments, row.id, [source_of(row.name, story)], notes)
    return 0


ACTIONS = {
    "import": (
        "an agent that goes on with a conversation from a file",
        CliCommand(
            "Make agents of conversations in files, and print their ids: sessions of pi and of ours, transcripts of "
            "coding assistants, lists of messages. The files are only read.",
            "orch session import talk.jsonl --name talk",
            _import_arguments,
            _import,
        ),
    ),
    "export": (
        "a conversation for other programs, or as a page",
        CliCommand(
            "Write an agent's conversation out, whole: for pi, as Markdown or HTML, as messages for an API.",
            "orch session export reader --format html --output reader.html",
            _export_arguments,
            _export,
        ),
    ),
    "to-test": (
        "a conversation as a test that tells it again",
        CliCommand(
            "Write a pytest module that tells a conversation again: model and tools answer as recorded, and what a "
            "model would be sent is compared.",
            "orch session to-test reader --output test_reader.py",
            _test_arguments,
            _to_test,
        ),
    ),
}
