"""The command `orch archive` lists, searches, reads, queries, exports and deletes archives."""

from __future__ import annotations

import sys
from itertools import zip_longest

from ...client.connection import Connection
from ...client.failure import CommandError
from ...config import paths
from ...render import terminal
from ...render.archives import ARCHIVE_LIST, entry_range, numbered_entries, pages, search_hits, table
from .. import command
from ..agents.query import exit_code_of, query, query_arguments, stable_fields
from ..command import CliCommand, CommandGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from ...imports.catalog import ImportCatalog

__all__ = ["VERBS"]

IMPORT_LIST = "orch import --list"


def _optional_ref(parser: ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", nargs="?", help="archives of this agent and of agents below it")
    command.run_argument(parser)


def _ref_option(parser: ArgumentParser) -> None:
    help = "only archives of this agent and of agents below it"
    parser.add_argument("--in", dest="ref", metavar="REF", action=command.SetOnce, help=help)


def _list(arguments: Namespace) -> int:
    connection = Connection(run=arguments.run)
    rows = connection.call("list_archives", {"ref": arguments.ref})
    command.print_result(arguments, rows, table(rows) if rows else "")
    if not rows and not arguments.json:
        settings = connection.call("daemon_status").get("settings", {}) if arguments.run is None else {}
        hint = (
            "; archival.enabled in the configuration turns it on" if arguments.run is None else f" in {arguments.run}"
        )
        if settings.get("archival.enabled"):
            hint = f" yet; archival is on, with the profile {settings['archival.profile']!r}"
        if arguments.run is None and _imports() is not None:
            hint = f" of agents{hint}. To list the imported sessions: {IMPORT_LIST}"
        print(f"orch: no archives{hint}", file=sys.stderr)
    return 0


def _search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query", metavar="QUERY", help="text or regular expression to search for; - reads it from stdin"
    )
    _ref_option(parser)
    command.run_argument(parser)
    parser.add_argument(
        "--limit", type=command.positive_int, default=10, metavar="N", help="maximum number of results (10)"
    )


def _search(arguments: Namespace) -> int:
    query, limit = command.text(arguments.query), arguments.limit
    imports = _imports() if arguments.ref is None and arguments.run is None else None
    hits = [] if imports is None else _search_imports(imports, query, limit)
    if imports is None or _has_agents():
        params = {"query": query, "ref": arguments.ref, "limit": limit}
        hits = _merge(Connection(run=arguments.run).call("search_archive", params), hits)[:limit]
    command.print_result(arguments, hits, search_hits(hits))
    if hits and not arguments.json and sys.stdout.isatty():
        print(f"\nTo read a hit in full: {_read_command(hits[0], arguments.run)}")
    if not hits and not arguments.json:
        print("orch: no match in the archives", file=sys.stderr)
    return 0


def _read_command(hit: dict[str, Any], run: str | None) -> str:
    return f"orch archive read {hit['id']} {hit['entry']}" + (f" --run {run}" if run is not None else "")


def _imports() -> ImportCatalog | None:
    """Return the imported sessions. Return None if nothing was imported."""
    home = paths.home()
    if not paths.imports_dir(home).is_dir():
        return None
    from ...imports.catalog import ImportCatalog

    return ImportCatalog(home)


def _has_agents() -> bool:
    """Return whether a daemon has run here, so that there can be archives of agents."""
    return paths.run_dir(paths.home(), paths.DAEMON_RUN).exists()


def _search_imports(catalog: ImportCatalog, query: str, limit: int) -> list[dict[str, Any]]:
    import msgspec

    from ...imports.recall import search_sessions

    hits, unread = search_sessions(catalog, query, limit)
    for id, reason in unread.items():
        print(f"orch: imported session {id} is not searched completely: {terminal.safe(reason)}", file=sys.stderr)
    return [msgspec.to_builtins(hit) for hit in hits]


def _merge(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hits of both lists alternately. Exact hits come first."""
    pairs = zip_longest(first, second)
    return sorted((hit for pair in pairs for hit in pair if hit is not None), key=lambda hit: not hit["exact"])


def _read_arguments(parser: ArgumentParser) -> None:
    _id_argument(parser)
    parser.add_argument(
        "entries", metavar="FIRST[-LAST]", nargs="?", default="1-", help="entries to print: 3, 3-7 or 3- (default: all)"
    )


def _id_argument(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id or unique prefix of an archive")
    command.run_argument(parser)


def _read(arguments: Namespace) -> int:
    first, last = entry_range(arguments.entries)
    messages = _read_import(arguments.id, first, last) if arguments.run is None else None
    command_with_ids = IMPORT_LIST
    if messages is None:
        command_with_ids = ARCHIVE_LIST
        messages = _read_archive(arguments, first, last)
    entries = numbered_entries(messages, arguments.id, first, command_with_ids)
    command.print_result(arguments, entries, "" if arguments.json else pages(entries))
    return 0


def _read_archive(arguments: Namespace, first: int, last: int | None) -> list[dict[str, Any]]:
    """Return messages of an archive of an agent."""
    params = {"id": arguments.id, "first": first, "last": last}
    try:
        messages: list[dict[str, Any]] = Connection(run=arguments.run).call("read_archive", params)
    except CommandError as error:
        if error.kind == "AgentNotFoundError" and arguments.run is None and _imports() is not None:
            raise CommandError(
                error.kind, f"{error}, imported sessions with `{IMPORT_LIST}`", error.exit_code
            ) from None
        raise
    return messages


def _read_import(id: str, first: int, last: int | None) -> list[dict[str, Any]] | None:
    """Return messages of the imported session `id`. Return None if `id` belongs to an archive of an agent."""
    imports = _imports()
    if imports is None:
        return None
    import json

    import msgspec

    from orch_protocol.core.errors import AgentNotFoundError

    from ...imports.recall import read_session

    try:
        messages = read_session(imports, id, first, last)
    except AgentNotFoundError:
        if _has_agents():
            return None
        raise
    found: list[dict[str, Any]] = json.loads(msgspec.json.encode(messages))
    return found


def _ask_all_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the question; - reads it from stdin")
    parser.add_argument("ids", metavar="ID", nargs="*", help="ids of archives")
    _ref_option(parser)
    command.run_argument(parser)
    parser.add_argument("--timeout", type=command.seconds, metavar="S", help="wait at most S seconds for all answers")


def _ask_all(arguments: Namespace) -> int:
    if bool(arguments.ids) == (arguments.ref is not None):
        raise CommandError("UsageError", "no archive given: pass archive ids or --in REF; see: orch archive list", 2)
    connection = Connection(run=arguments.run)
    ids = arguments.ids or [row["id"] for row in connection.call("list_archives", {"ref": arguments.ref})]
    if not ids:
        raise CommandError("AgentNotFoundError", f"agent {arguments.ref} has no archives; see: orch archive list", 3)
    params = {"refs": ids, "prompt": command.text(arguments.prompt), "timeout": arguments.timeout}
    results = connection.call("ask_all", params)
    replies = [
        {"ref": each["ref"], "reply": stable_fields(each["reply"]) if each["reply"] else None, "error": each["error"]}
        for each in results
    ]
    command.print_result(arguments, replies, "\n\n".join(map(_answer, replies)))
    codes = {each["exit_code"] if each["reply"] is None else exit_code_of(each["reply"]) for each in results} - {0}
    return codes.pop() if len(codes) == 1 else int(bool(codes))


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

    connection = Connection(run=arguments.run)
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


def _delete_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", help="ids or unique prefixes of archives")
    command.run_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted; delete nothing")


def _delete(arguments: Namespace) -> int:
    params = {"ids": arguments.ids, "dry_run": arguments.dry_run}
    deleted = Connection(run=arguments.run).call("delete_archives", params)
    return command.print_deleted(arguments, deleted, deleted["archives"], "archive", table)


def _prune_arguments(parser: ArgumentParser) -> None:
    help = "archives older than this: 90m, 12h, 30d, 8w"
    parser.add_argument("--older-than", dest="older", metavar="AGE", required=True, action=command.SetOnce, help=help)
    _ref_option(parser)
    command.run_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted; delete nothing")


def _prune(arguments: Namespace) -> int:
    params = {"older": arguments.older, "ref": arguments.ref, "dry_run": arguments.dry_run}
    pruned = Connection(run=arguments.run).call("prune_archives", params)
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
            "Ask several archives, or all archives of an agent, the same question. Exits with the code of the "
            "failures, and with 1 if their codes differ.",
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
    "delete": (
        "delete archives by id permanently",
        CliCommand(
            "Permanently delete archives: messages, index rows, and questions to their holders. Records in"
            " conversations stay. Exit code 4 if an agent is running; then nothing is deleted.",
            "orch archive delete b0d9f3a81c55",
            _delete_arguments,
            _delete,
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
