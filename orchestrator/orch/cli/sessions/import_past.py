"""The command `orch import` copies the sessions of other programs to archives, lists the copies and removes them.

It needs no daemon.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...client.failure import CommandError
from ...config import paths
from ...imports.catalog import ImportCatalog, ImportRecord
from ...imports.importer import ImportResult, import_sessions
from ...render import terminal
from ...render.columns import escape, format_columns
from ...sessions.formats.conversation import EXPECTED
from .. import command
from ..command import CliCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["VERBS"]

INTERRUPTED: Final = 130
MAX_LISTED: Final = 20
BAR_WIDTH: Final = 24
HEAD: Final = ("ID", "LAST", "TURNS", "MESSAGES", "SIZE", "TITLE", "SOURCE")
RIGHT: Final = frozenset({2, 3, 4})


def _arguments(parser: ArgumentParser) -> None:
    help = "folders and files with sessions, for example ~/.claude or ~/.codex; a folder stands for all files in it"
    parser.add_argument("paths", metavar="PATH", nargs="*", help=help)
    parser.add_argument("--list", action="store_true", help="list the imported sessions, the latest first")
    parser.add_argument(
        "--forget",
        metavar="ID",
        action=command.SetOnce,
        help="remove the copy of a session. It is imported again only if its file is named",
    )


def _import(arguments: Namespace) -> int:
    if (bool(arguments.paths), arguments.list, arguments.forget is not None).count(True) != 1:
        raise CommandError("UsageError", "pass the folders or files to import, or --list, or --forget ID", 2)
    home = paths.home()
    catalog = ImportCatalog(home)
    if arguments.list:
        return _list(arguments, catalog)
    if arguments.forget is not None:
        return _forget(arguments, catalog)
    gc.enable()  # the command line runs without it, but an import runs for minutes
    paths.private_dir(home)
    paths.write_gitignore(home)
    try:
        with _progress() as progress:
            result = import_sessions(catalog, [Path(each).expanduser() for each in arguments.paths], progress)
    except KeyboardInterrupt:
        text = "interrupted: the finished sessions are imported; the same command imports the others"
        raise CommandError("Interrupted", text, INTERRUPTED) from None
    command.print_result(arguments, msgspec.to_builtins(result), _summary(result))
    if not arguments.json:
        for line in _warnings(result):
            print(escape(line), file=sys.stderr)
    return int(bool(result.unread))


def _summary(result: ImportResult) -> str:
    counts = [("new", result.new), ("grown", result.grown), ("replaced", result.replaced)]
    changed = ", ".join(f"{count} {name}" for name, count in counts if count) or "nothing new"
    parts = [
        f"{terminal.pluralize(result.sessions, 'session')} in {terminal.pluralize(result.files, 'file')}: {changed}",
        f"{terminal.pluralize(result.turns, 'turn')} with {terminal.pluralize(result.messages, 'message')} imported",
    ]
    parts += [f"{result.unchanged} unchanged"] * bool(result.unchanged)
    parts += [f"{result.forgotten} forgotten earlier"] * bool(result.forgotten)
    parts += [f"{terminal.pluralize(len(result.other_files), 'other file')}"] * bool(result.other_files)
    parts += [f"{terminal.pluralize(result.left_out, 'damaged place')}"] * bool(result.left_out)
    return f"{'; '.join(parts)}; {_size(result.bytes)} on disk"


def _warnings(result: ImportResult) -> Iterator[str]:
    """Yield lines about the files that were not imported, and about the damaged places of the others."""
    yield from _listed([[f"orch: not imported: {reason}"] for reason in result.unread.values()], "orch: ")
    if result.other_files:
        yield f"orch: files that are not readable sessions: {len(result.other_files)}"
        # A file with another reason may be a session.
        reasons = sorted(result.other_files.values(), key=lambda reason: reason.endswith(EXPECTED))
        yield from _listed([[f"  {reason}"] for reason in reasons], "  ")
    places = [[f"orch: {file} is damaged:", *(f"  {each}" for each in found)] for file, found in result.damaged.items()]
    yield from _listed(places, "orch: ")


def _listed(files: Sequence[Sequence[str]], indent: str) -> Iterator[str]:
    """Yield the lines about the first of `files`, and the number of the others."""
    for lines in files[:MAX_LISTED]:
        yield from lines
    if len(files) > MAX_LISTED:
        yield f"{indent}and {len(files) - MAX_LISTED} more files (--json lists all)"


def _list(arguments: Namespace, catalog: ImportCatalog) -> int:
    records = catalog.records()
    rows = [_row(record, catalog.bytes_of(record)) for record in records]
    text = ""
    if rows:
        total = sum(row["bytes"] for row in rows)
        text = f"{_table(rows)}\n{terminal.pluralize(len(rows), 'session')}, {_size(total)} on disk"
    command.print_result(arguments, rows, text)
    if not rows and not arguments.json:
        print("orch: no imported sessions: orch import ~/.claude", file=sys.stderr)
    for folder in catalog.unreadable:
        text = f"orch: the record of an imported session in {folder} is damaged: import its source again"
        print(terminal.safe(text), file=sys.stderr)
    return 0


def _row(record: ImportRecord, size: int) -> dict[str, Any]:
    kept = {name: getattr(record, name) for name in record.__struct_fields__ if name not in ("store", "sha256")}
    return kept | {"bytes": size, "source_exists": os.path.exists(record.source)}


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            *(row["id"], row["ended"][:10], str(row["turns"]), str(row["messages"]), _size(row["bytes"])),
            *(terminal.one_line(row["title"]), _source(row)),
        ]
        for row in rows
    ]
    return format_columns([list(HEAD), *cells], RIGHT, text={5}, paths={6})


def _source(row: dict[str, Any]) -> str:
    return terminal.safe(row["source"]) + ("" if row["source_exists"] else " (removed)")


def _forget(arguments: Namespace, catalog: ImportCatalog) -> int:
    record = catalog.find(arguments.forget)
    size = catalog.exclude(record)
    result = {"id": record.id, "source": record.source, "title": record.title, "bytes": size}
    text = f"removed {record.id} ({terminal.truncate_line(record.title)}), {_size(size)}"
    command.print_result(arguments, result, terminal.safe(text))
    return 0


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that draws a bar on a terminal. The bar is erased at the end."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _path: None
        return
    shown = ""

    def show(done: int, total: int, path: str) -> None:
        nonlocal shown
        line = bar(done, total, path)
        if line != shown:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            shown = line

    try:
        yield show
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(done: int, total: int, path: str) -> str:
    """Return the progress of an import as one line of less than 80 characters."""
    share = done / total if total else 1.0
    filled = int(BAR_WIDTH * share)
    name = terminal.truncate_line(os.path.basename(path), 24)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {100 * share:3.0f} % of {_size(total)}, {name}"


VERBS = {
    "import": CliCommand(
        "Copy sessions of other programs to archives, to search them with `orch archive search`. Copies only new and "
        "changed sessions. Needs no key, no daemon and no agent. The files are not changed.",
        "orch import ~/.claude",
        _arguments,
        _import,
    )
}
