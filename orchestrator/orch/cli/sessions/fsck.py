"""The command `orch session fsck` checks one session and writes a repaired copy.

The session is an agent's session or a file.
"""

from __future__ import annotations

import os

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY|FILE", help="agent number, id or unique prefix, or name; or a file")
    command.run_argument(parser)
    parser.add_argument("--repair", action="store_true", help="write a repaired copy; the damaged file is kept")
    help = "file for the repaired copy (FILE.repaired)"
    parser.add_argument("--output", metavar="FILE", type=command.file, action=command.SetOnce, help=help)


def _fsck(arguments: Namespace) -> int:
    is_path, has_output = command.is_file(arguments.key), arguments.output is not None
    if has_output and not (arguments.repair and (is_path or os.path.isfile(arguments.key))):
        raise CommandError(
            "UsageError", "--output needs --repair and a FILE argument; a session is repaired in place", 2
        )
    try:
        result = _of_file(arguments) if is_path or has_output else _of_agent(arguments)
    except CommandError as failure:
        if failure.kind != "AgentNotFoundError" or not os.path.isfile(arguments.key):
            raise
        result = _of_file(arguments)  # no agent has this name, but a file with this name exists
    command.print_result(arguments, result, page(result))
    return 1 if result["found"] and not result["kept"] else 0


def _of_agent(arguments: Namespace) -> dict[str, Any]:
    params = {"ref": arguments.key, "repair": arguments.repair}
    result: dict[str, Any] = Connection(run=arguments.run).call("check_session", params)
    return result | {"repaired_file": result["path"] if result["kept"] else ""}


def _of_file(arguments: Namespace) -> dict[str, Any]:
    from pathlib import Path

    import msgspec

    from ...sessions.repair import findings_of, write_repaired_copy

    path = Path(os.path.abspath(arguments.key))
    found = findings_of(path)
    target = Path(os.path.abspath(arguments.output or f"{path}.repaired"))
    writes_copy = bool(found) and arguments.repair
    repairs = write_repaired_copy(path, target) if writes_copy else []
    return {
        "id": None,
        "path": str(path),
        "found": msgspec.to_builtins(found),
        "repaired": repairs,
        "kept": str(path) if writes_copy else "",
        "repaired_file": str(target) if writes_copy else "",
    }


def page(result: dict[str, Any]) -> str:
    """Return the findings and repairs as lines."""
    path = terminal.safe(result["path"])
    if not result["found"]:
        return f"{path}: no damage found"
    lines = [path]
    for each in result["found"]:
        lines.append(f"  {terminal.safe(each['what'])}")
        if not result["kept"]:
            lines.append(f"      {terminal.safe(each['do'])}")
    if result["kept"]:
        lines += ["repairs:", *(f"  {terminal.safe(each)}" for each in result["repaired"])]
        lines.append(f"repaired file: {terminal.safe(result['repaired_file'])}")
        lines.append(f"damaged file:  {terminal.safe(result['kept'])}")
    return "\n".join(lines)


ACTIONS = {
    "fsck": (
        "find damage in a session, and write a repaired copy",
        CliCommand(
            "Check a session, or any session file, for damage. With --repair: write a repaired copy and "
            "keep the damaged file. Exit code 1 if damage remains.",
            "orch session fsck reader --repair",
            _arguments,
            _fsck,
        ),
    ),
}
