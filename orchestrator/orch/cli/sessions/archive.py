"""The command `orch archive` lists, searches, reads, queries, exports and deletes archives."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ...render.archives import entry_range, numbered_entries, pages, search_hits, table
from .. import command
from ..agents.query import exit_code_of, query, query_arguments, stable_fields
from ..command import CliCommand, CommandGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]


def _optional_ref(parser: ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", nargs="?", help="archives of this agent and of agents below it")


def _ref_option(parser: ArgumentParser) -> None:
    help = "only archives of this agent and of agents below it"
    parser.add_argument("--in", dest="ref", metavar="REF", action=command.SetOnce, help=help)


def _list(arguments: Namespace) -> int:
    connection = Connection()
    rows = connection.call("list_archives", {"ref": arguments.ref})
    command.print_result(arguments, rows, table(rows) if rows else "")
    if not rows and not arguments.json:
        settings = connection.call("daemon_status").get("settings", {})
        hint = "; archival.enabled in the configuration turns it on"
        if settings.get("archival.enabled"):
            hint = f" yet; archival is on, with the profile {settings['archival.profile']!r}"
        print(f"orch: no archives{hint}", file=sys.stderr)
    return 0


def _search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="text to search for; - reads it from stdin")
    _ref_option(parser)
    parser.add_argument(
        "--limit", type=command.positive_int, default=10, metavar="N", help="maximum number of results (10)"
    )


def _search(arguments: Namespace) -> int:
    params = {"query": command.text(arguments.query), "ref": arguments.ref, "limit": arguments.limit}
    hits = Connection().call("search_archive", params)
    command.print_result(arguments, hits, search_hits(hits))
    if not hits and not arguments.json:
        print("orch: no match in the archives", file=sys.stderr)
    return 0


def _read_arguments(parser: ArgumentParser) -> None:
    _id_argument(parser)
    parser.add_argument(
        "entries", metavar="FIRST[-LAST]", nargs="?", default="1-", help="entries to print: 3, 3-7 or 3- (default: all)"
    )


def _id_argument(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id or unique prefix of an archive")


def _read(arguments: Namespace) -> int:
    first, last = entry_range(arguments.entries)
    params = {"id": arguments.id, "first": first, "last": last}
    entries = numbered_entries(Connection().call("read_archive", params), arguments.id, first)
    command.print_result(arguments, entries, "" if arguments.json else pages(entries))
    return 0


def _ask_all_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the question; - reads it from stdin")
    parser.add_argument("ids", metavar="ID", nargs="*", help="ids of archives")
    _ref_option(parser)
    parser.add_argument("--timeout", type=command.seconds, metavar="S", help="wait at most S seconds for all answers")


def _ask_all(arguments: Namespace) -> int:
    if bool(arguments.ids) == (arguments.ref is not None):
        raise CommandError("UsageError", "no archive given: pass archive ids or --in REF; see: orch archive list", 2)
    connection = Connection()
    ids = arguments.ids or _leaf_ids(connection.call("list_archives", {"ref": arguments.ref}))
    if not ids:
        raise CommandError("AgentNotFoundError", f"agent {arguments.ref} has no archives; see: orch archive list", 3)
    params = {"refs": ids, "prompt": command.text(arguments.prompt), "timeout": arguments.timeout}
    results = connection.call("ask_all", params)
    replies = [each | {"reply": stable_fields(each["reply"]) if each["reply"] else None} for each in results]
    command.print_result(arguments, replies, "\n\n".join(map(_answer, replies)))
    codes = {1 if each["error"] is not None else exit_code_of(each["reply"]) for each in replies}
    return 1 if 1 in codes else max(codes, default=0)


def _leaf_ids(rows: list[dict[str, Any]]) -> list[str]:
    """Return ids of archives that together contain each message once.

    Turns are preferred, because eras are large.
    """
    turns = [row for row in rows if row["kind"] != "era" or not row["members"]]
    member_ids = {member for row in turns for member in row["members"]}
    return [row["id"] for row in turns if row["id"] not in member_ids]


def _answer(result: dict[str, Any]) -> str:
    text = (
        terminal.safe_for_stdout(result["reply"]["text"])
        if result["reply"]
        else f"error: {terminal.safe(result['error'])}"
    )
    return f"{result['ref']}:\n{text}"


def _export_arguments(parser: ArgumentParser) -> None:
    _optional_ref(parser)
    command.output_argument(parser)
    parser.add_argument("--format", choices=["jsonl", "md"], default="jsonl", help="JSON lines (default) or Markdown")


def _export(arguments: Namespace) -> int:
    from .export import export

    connection = Connection()
    rows = connection.call("list_archives", {"ref": arguments.ref})
    result = export(connection, rows, arguments.output, arguments.format)
    if arguments.output != "-":
        amount = (
            f"{terminal.pluralize(result['archives'], 'archive')}, {terminal.pluralize(result['messages'], 'message')}"
        )
        text = f"{amount}: {terminal.safe(arguments.output)}"
        command.print_result(arguments, result, text)
    for id, reason in result["unread"].items():
        print(f"orch: archive {id} is left out: {terminal.safe(reason)}", file=sys.stderr)
    return int(bool(result["unread"]))


def _prune_arguments(parser: ArgumentParser) -> None:
    help = "archives older than this: 90m, 12h, 30d, 8w"
    parser.add_argument("--older-than", dest="older", metavar="AGE", required=True, action=command.SetOnce, help=help)
    _ref_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted; delete nothing")


def _prune(arguments: Namespace) -> int:
    params = {"older": arguments.older, "ref": arguments.ref, "dry_run": arguments.dry_run}
    pruned = Connection().call("prune_archives", params)
    rows = pruned["archives"]
    return command.print_deleted(arguments, pruned, rows, "archive", table)


ACTIONS = {
    "list": (
        "list archives by agent, oldest first",
        CliCommand("List the archives of agents.", "orch archive list reader", _optional_ref, _list),
    ),
    "search": (
        "find text in archives, without a model",
        CliCommand(
            "Find text in archives: words, paths, numbers, errors. Prints archive id, entry and passage. "
            "Uses no model.",
            "orch archive search 'pressure 4.2 bar' --in reader",
            _search_arguments,
            _search,
        ),
    ),
    "read": (
        "print entries of an archive unchanged",
        CliCommand("Print entries of an archive unchanged.", "orch archive read b0d9f3 3-7", _read_arguments, _read),
    ),
    "query": (
        "ask one archive a question",
        CliCommand(
            "Ask an archive a question. Its holder answers from the archived messages and cites entries. "
            "Same as `orch query`.",
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
        "write archives as JSON lines or Markdown",
        CliCommand(
            "Write archives with their messages: one JSON object per line, or Markdown.",
            "orch archive export reader --output reader.jsonl",
            _export_arguments,
            _export,
        ),
    ),
    "prune": (
        "delete old archives permanently",
        CliCommand(
            "Permanently delete old archives: messages, index rows, and questions to their holders. Records"
            " in conversations stay. Exit code 4 if archives stay because their agent is running.",
            "orch archive prune --older-than 30d --dry-run",
            _prune_arguments,
            _prune,
        ),
    ),
}

VERBS = {
    "archive": CommandGroup(
        "List, search, read, query, export and delete archived turns.",
        "orch archive search 'pressure 4.2 bar'",
        ACTIONS,
    )
}
