"""The command `orch fsck` checks all files and repairs them. The command exits with 1 when a problem remains."""

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
    parser.add_argument("--repair", action="store_true", help="make all repairs that lose no data")


def _fsck(arguments: Namespace) -> int:
    home = paths.home()
    found = list(findings.check_home(home, paths.sessions_of(home, load().config.session_dir)))
    if arguments.repair:
        found = [findings.repair(each) for each in found]
    if arguments.json:
        print(to_json(msgspec.to_builtins(found)))
    else:
        for each in found:
            print(terminal.safe(f"{each.path}: {each.what}\n    {each.repaired or each.do}"))
        if not found:
            print(f"{terminal.safe(str(home))}: no damage found")
    return 1 if any(not each.repaired for each in found) else 0


VERBS = {
    "fsck": CliCommand(
        "Check transcripts, journals and archives for damage and name a remedy. Exit code 1 if there is damage.",
        "orch fsck --repair",
        _arguments,
        _fsck,
    )
}
