"""`orch archive`: what agents have archived, listed, found, read, asked, taken along and deleted."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ...render.archives import entry_range, numbered_entries, pages, search_hits, table
from .. import command
from ..agents.query import agreed, code_of, query, query_arguments
from ..command import CliCommand, CommandGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]


def _optional_ref(parser: ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", nargs="?", help="an agent: its archives, and those of agents below it")


def _in(parser: ArgumentParser) -> None:
    told = "only those of an agent and of agents below it"
    parser.add_argument("--in", dest="ref", metavar="REF", action=command.SetOnce, help=told)


def _list(arguments: Namespace) -> int:
    connection = Connection()
    rows = connection.call("list_archives", {"ref": arguments.ref})
    command.print_result(arguments, rows, table(rows) if rows else "")
    if not rows and not arguments.json:
        settings = connection.call("daemon_status").get("settings", {})
        hint = "; archival.enabled in the configuration turns it on"
        if settings.get("archival.enabled"):
            hint = f" yet; archival is on, with the profile {settings['archival.profile']!r}"
        print(f"orch: nothing is archived{hint}", file=sys.stderr)
    return 0


def _search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="what to look for; - reads it from stdin")
    _in(parser)
    parser.add_argument(
        "--limit", type=command.positive_int, default=10, metavar="N", help="at most so many places (10)"
    )


def _search(arguments: Namespace) -> int:
    params = {"query": command.text(arguments.query), "ref": arguments.ref, "limit": arguments.limit}
    hits = Connection().call("search_archive", params)
    command.print_result(arguments, hits, search_hits(hits))
    if not hits and not arguments.json:
        print("orch: nothing in the archives resembles that", file=sys.stderr)
    return 0


def _read_arguments(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument(
        "entries", metavar="FIRST[-LAST]", nargs="?", default="1-", help="which entries: 3, 3-7, or 3- (all)"
    )


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of an archive, or the beginning of one")


def _read(arguments: Namespace) -> int:
    first, last = entry_range(arguments.entries)
    params = {"id": arguments.id, "first": first, "last": last}
    entries = numbered_entries(Connection().call("read_archive", params), arguments.id, first)
    command.print_result(arguments, entries, "" if arguments.json else pages(entries))
    return 0


def _ask_all_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="what to ask; - reads it from stdin")
    parser.add_argument("ids", metavar="ID", nargs="*", help="archives to ask")
    _in(parser)
    parser.add_argument("--timeout", type=command.seconds, metavar="S", help="wait at most so many seconds for all")


def _ask_all(arguments: Namespace) -> int:
    if bool(arguments.ids) == (arguments.ref is not None):
        raise CommandError("UsageError", "say whom to ask: ids of archives, or --in REF; see: orch archive list", 2)
    connection = Connection()
    ids = arguments.ids or _parts(connection.call("list_archives", {"ref": arguments.ref}))
    if not ids:
        raise CommandError(
            "AgentNotFoundError", f"agent {arguments.ref} has archived nothing; see: orch archive list", 3
        )
    params = {"refs": ids, "prompt": command.text(arguments.prompt), "timeout": arguments.timeout}
    mapped = connection.call("ask_all", params)
    replies = [each | {"reply": agreed(each["reply"]) if each["reply"] else None} for each in mapped]
    command.print_result(arguments, replies, "\n\n".join(map(_answer, replies)))
    codes = {1 if each["error"] is not None else code_of(each["reply"]) for each in replies}
    return 1 if 1 in codes else max(codes, default=0)


def _parts(rows: list[dict[str, Any]]) -> list[str]:
    """Return the archives that together hold everything once: turns rather than eras, for an era is large."""
    turns = [row for row in rows if row["kind"] != "era" or not row["members"]]
    inside = {member for row in turns for member in row["members"]}
    return [row["id"] for row in turns if row["id"] not in inside]


def _answer(mapped: dict[str, Any]) -> str:
    said = (
        terminal.safe_for_stdout(mapped["reply"]["text"])
        if mapped["reply"]
        else f"error: {terminal.safe(mapped['error'])}"
    )
    return f"{mapped['ref']}:\n{said}"


def _export_arguments(parser: ArgumentParser) -> None:
    _optional_ref(parser)
    command.output_argument(parser)
    parser.add_argument(
        "--format", choices=["jsonl", "md"], default="jsonl", help="JSON lines (the default), or Markdown to be read"
    )


def _export(arguments: Namespace) -> int:
    from .export import export

    connection = Connection()
    rows = connection.call("list_archives", {"ref": arguments.ref})
    told = export(connection, rows, arguments.output, arguments.format)
    if arguments.output != "-":
        much = f"{terminal.pluralize(told['archives'], 'archive')}, {terminal.pluralize(told['messages'], 'message')}"
        said = f"{much}: {terminal.safe(arguments.output)}"
        command.print_result(arguments, told, said)
    for id, why in told["unread"].items():
        print(f"orch: archive {id} is left out: {terminal.safe(why)}", file=sys.stderr)
    return int(bool(told["unread"]))


def _prune_arguments(parser: ArgumentParser) -> None:
    told = "what was archived longer ago: 90m, 12h, 30d, 8w"
    parser.add_argument("--older-than", dest="older", metavar="AGE", required=True, action=command.SetOnce, help=told)
    _in(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")


def _prune(arguments: Namespace) -> int:
    params = {"older": arguments.older, "ref": arguments.ref, "dry_run": arguments.dry_run}
    pruned = Connection().call("prune_archives", params)
    rows = pruned["archives"]
    return command.print_deleted(arguments, pruned, rows, "archive", table)


ACTIONS = {
    "list": (
        "archives, by agent, oldest first",
        CliCommand("List what agents have archived.", "orch archive list reader", _optional_ref, _list),
    ),
    "search": (
        "places where something stands, for nothing",
        CliCommand(
            "Find text in archives: words, paths, figures, errors. Prints id, entry, passage; asks no model.",
            "orch archive search 'pressure 4.2 bar' --in reader",
            _search_arguments,
            _search,
        ),
    ),
    "read": (
        "entries of an archive, exactly as they were",
        CliCommand(
            "Print entries of an archive, exactly as they were.", "orch archive read b0d9f3 3-7", _read_arguments, _read
        ),
    ),
    "query": (
        "ask what holds an archive",
        CliCommand(
            "Ask what holds an archive: it answers from that, with entries. The same as orch query.",
            'orch archive query b0d9f3 "Which port was open?"',
            query_arguments,
            query,
        ),
    ),
    "ask-all": (
        "ask several archives the same question",
        CliCommand(
            "Ask several archives, or all archives of an agent, the same question. Exits with 1 when one fails.",
            'orch archive ask-all "Which ports were open?" --in reader',
            _ask_all_arguments,
            _ask_all,
        ),
    ),
    "export": (
        "everything that is archived, for other tools",
        CliCommand(
            "Write all archives out, whole: a line of JSON for each, its row with its messages; or as Markdown.",
            "orch archive export reader --output reader.jsonl",
            _export_arguments,
            _export,
        ),
    ),
    "prune": (
        "delete old ones for good",
        CliCommand(
            "Delete for good what was archived long ago: messages, words of the index, what holders were asked. What a "
            "conversation shows stays. Exits with 4 when an agent is at work: then its archives stay.",
            "orch archive prune --older-than 30d --dry-run",
            _prune_arguments,
            _prune,
        ),
    ),
}

VERBS = {
    "archive": CommandGroup(
        "What agents have archived: list it, find it, read it, ask it, take it along, delete it.",
        "orch archive search 'pressure 4.2 bar'",
        ACTIONS,
    )
}
