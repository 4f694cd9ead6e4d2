"""The command `orch doctor` checks this machine's requirements and prints one line per check.

The command exits with 1 when a check fails.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...diagnostics.checks import clean_up, findings, run_check
from ...render.doctor import data, page
from ...render.terminal import to_json
from ..command import CliCommand


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--clean", action="store_true", help="end processes and delete files left behind by killed programs"
    )


def _doctor(arguments: Namespace) -> int:
    found = {"cleaned": run_check(clean_up)} if arguments.clean else {}
    found |= findings()
    print(to_json(data(found)) if arguments.json else page(found))
    return 1 if any(finding.level == "fail" for finding in found.values()) else 0


VERBS = {
    "doctor": CliCommand(
        "Check whether this machine meets orch's requirements. Exit code 1 if something is missing.",
        "orch doctor --json",
        _arguments,
        _doctor,
    )
}
