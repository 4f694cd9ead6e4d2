"""`orch doctor`: is everything there that orch needs? One line a check, exit 1 when one fails."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...diagnostics.checks import clean_up, findings, run_check
from ...render.doctor import data, page
from ...render.terminal import to_json
from ..command import CliCommand


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--clean", action="store_true", help="end and remove what programs left behind that were killed"
    )


def _doctor(arguments: Namespace) -> int:
    found = {"cleaned": run_check(clean_up)} if arguments.clean else {}
    found |= findings()
    print(to_json(data(found)) if arguments.json else page(found))
    return 1 if any(finding.level == "fail" for finding in found.values()) else 0


VERBS = {
    "doctor": CliCommand(
        "Check what orch needs of this machine. Exits with 1 when something is missing.",
        "orch doctor --json",
        _arguments,
        _doctor,
    )
}
