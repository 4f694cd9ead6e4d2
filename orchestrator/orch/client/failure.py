"""What the CLI gives up with."""

from __future__ import annotations

import os

__all__ = ["STILL_RUNNING", "CommandError", "describe_os_error"]

STILL_RUNNING = 4
"""What it exits with when something stays for now, since somebody is at work."""


class CommandError(Exception):
    """What the daemon, or the way to it, says went wrong. `kind` is the error's class name, `outcome` how a query ended
    with it, where that has a name of its own."""

    def __init__(self, kind: str, message: str, exit_code: int = 1, outcome: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code
        self.outcome = outcome


def describe_os_error(error: OSError) -> str:
    """Return in a sentence what of our surroundings failed, and what to do."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {why}"
    try:
        os.getcwd()
    except OSError:
        return "the folder you are in is gone: cd to one that is there"
    return (
        f"the output cannot be written ({why}). What was asked for is done: make room, and look again with orch list, "
        "orch show REF, orch collect REF --again"
    )
