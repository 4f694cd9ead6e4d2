"""The command `orch version` prints the version."""

from __future__ import annotations

import platform
from argparse import ArgumentParser, Namespace

from ...config.version import __version__
from ..command import CliCommand, print_result


def _arguments(parser: ArgumentParser) -> None:
    """The command has only the common arguments."""


def _version(arguments: Namespace) -> int:
    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    print_result(arguments, facts, f"orch {__version__}")
    return 0


VERBS = {"version": CliCommand("Print the version.", "orch version --json", _arguments, _version)}
