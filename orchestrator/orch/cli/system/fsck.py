"""`orch fsck`: what is wrong with the files, and what to do. Exit 1 when something is and was not mended."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import msgspec

from ...config import paths
from ...config.config import load
from ...render import terminal
from ...render.terminal import to_json
from ...sessions import findings
from ..command import CliCommand

__all__ = ["VERBS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="do what can be done without losing a byte")


def _fsck(arguments: Namespace) -> int:
    home = paths.home()
    found = list(findings.examine(home, paths.sessions_of(home, load().config.session_dir)))
    if arguments.repair:
        found = [findings.repair(each) for each in found]
    if arguments.json:
        print(to_json(msgspec.to_builtins(found)))
    else:
        for each in found:
            print(terminal.safe(f"{each.path}: {each.what}\n    {each.mended or each.do}"))
        if not found:
            print(f"{terminal.safe(str(home))}: nothing is wrong")
    return 1 if any(not each.mended for each in found) else 0


VERBS = {
    "fsck": CliCommand(
        "Look through transcripts, journals and archives for damage; say what to do. Exits with 1 when there is some.",
        "orch fsck --repair",
        _arguments,
        _fsck,
    )
}
