"""Errors of the CLI."""

from __future__ import annotations

import os

__all__ = ["STILL_RUNNING", "CommandError", "describe_os_error"]

STILL_RUNNING = 4
"""Exit code when something was kept because an agent is working."""


class CommandError(Exception):
    """An error of the daemon, or of the connection to the daemon.

    `kind` is the name of the error's class. `outcome` is the name of a failed query's outcome, or "" if it has no name.
    """

    def __init__(self, kind: str, message: str, exit_code: int = 1, outcome: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code
        self.outcome = outcome


def describe_os_error(error: OSError) -> str:
    """Return a sentence with the error and the remedy."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {why}"
    try:
        os.getcwd()
    except OSError:
        return "the current folder no longer exists; cd to an existing one"
    return (
        f"the output cannot be written ({why}). The request is done: free some space, then check with orch list, "
        "orch show REF, orch collect REF --again"
    )
