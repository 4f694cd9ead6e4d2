"""`orch session fsck`: what is wrong with one session, an agent's or a file, and a mended copy of it."""

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
    parser.add_argument("key", metavar="KEY|FILE", help="number, id, beginning of one, or name of an agent; or a file")
    parser.add_argument("--repair", action="store_true", help="write a mended copy; the damaged file is kept")
    told = "where the mended copy of a file goes (FILE.mended)"
    parser.add_argument("--output", metavar="FILE", type=command.file, action=command.SetOnce, help=told)


def _fsck(arguments: Namespace) -> int:
    file, output = command.is_file(arguments.key), arguments.output is not None
    if output and not (arguments.repair and (file or os.path.isfile(arguments.key))):
        raise CommandError("UsageError", "--output goes with --repair and a file: a session has its place", 2)
    try:
        checked = _of_file(arguments) if file or output else _of_agent(arguments)
    except CommandError as failure:
        if failure.kind != "AgentNotFoundError" or not os.path.isfile(arguments.key):
            raise
        checked = _of_file(arguments)  # whatever it is called: no agent is
    command.print_result(arguments, checked, page(checked))
    return 1 if checked["found"] and not checked["kept"] else 0


def _of_agent(arguments: Namespace) -> dict[str, Any]:
    asked = {"ref": arguments.key, "repair": arguments.repair}
    checked: dict[str, Any] = Connection().call("check_session", asked)
    return checked | {"mended": checked["path"] if checked["kept"] else ""}


def _of_file(arguments: Namespace) -> dict[str, Any]:
    from pathlib import Path

    import msgspec

    from ...sessions.repair import findings_of, mended_copy

    path = Path(os.path.abspath(arguments.key))
    found = findings_of(path)
    target = Path(os.path.abspath(arguments.output or f"{path}.mended"))
    mending = bool(found) and arguments.repair
    done = mended_copy(path, target) if mending else []
    return {
        "id": None,
        "path": str(path),
        "found": msgspec.to_builtins(found),
        "repaired": done,
        "kept": str(path) if mending else "",
        "mended": str(target) if mending else "",
    }


def page(checked: dict[str, Any]) -> str:
    """Return what was found, and what was done about it, as lines."""
    path = terminal.safe(checked["path"])
    if not checked["found"]:
        return f"{path}: nothing is wrong"
    lines = [path]
    for each in checked["found"]:
        lines.append(f"  {terminal.safe(each['what'])}")
        if not checked["kept"]:
            lines.append(f"      {terminal.safe(each['do'])}")
    if checked["kept"]:
        lines += ["set right:", *(f"  {terminal.safe(each)}" for each in checked["repaired"])]
        lines += [f"mended:  {terminal.safe(checked['mended'])}", f"damaged: {terminal.safe(checked['kept'])}"]
    return "\n".join(lines)


ACTIONS = {
    "fsck": (
        "what is wrong with one session, and a mended copy",
        CliCommand(
            "Look for damage in a session: an agent's, or a file of whichever program. With --repair a mended copy is "
            "written and the damaged file kept; exits with 1 when something is wrong and stays so.",
            "orch session fsck reader --repair",
            _arguments,
            _fsck,
        ),
    ),
}
