"""Notices about agents, printed once each on stderr of the program."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

__all__ = ["Notices", "notice"]


def notice(text: str) -> None:
    """Print `text` on stderr. Errors are ignored."""
    try:
        if sys.stderr is not None:  # without stderr, print would use stdout, which belongs to the program
            print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # the disk is full, or stderr is closed
        pass


class Notices:
    """Prints notices.

    `default` is for agents whose model was not chosen; `tool_name_warnings` contains warnings about tool names.
    """

    def __init__(self, default: str | None, tool_name_warnings: Iterable[str]) -> None:
        self._default, self._tool_name_warnings = default, tuple(tool_name_warnings)
        self._printed: set[str] = set()

    def print_for_agent(self, note: str, program_tools: Collection[str], *, model_chosen: bool) -> None:
        """Print the notices for a new agent.

        `note` comes from its spawn. `program_tools` contains the names of the program's tools.
        """
        if self._default is not None and not model_chosen:
            notice(self._default)
            self._default = None
        # Warnings about names of the program's own tools are skipped.
        notes = [each for each in self._tool_name_warnings if not any(repr(name) in each for name in program_tools)]
        self._tool_name_warnings = ()
        for each in (*notes, *note.splitlines()):
            if each not in self._printed:
                notice(f"orch: {each}")
                self._printed.add(each)
