"""What a program is told on stderr about its agents, each thing once."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

__all__ = ["Notices", "notice"]


def notice(text: str) -> None:
    """Say `text` on stderr, where there is one and it can be: nothing fails because nobody listens."""
    try:
        if sys.stderr is not None:  # else print would take stdout, which is the program's
            print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # such as a full disk, a reader that has left, a stream that was closed
        pass


class Notices:
    """`default` is to be said when the model of an agent was not chosen, `strange` of names that may be slips."""

    def __init__(self, default: str | None, strange: Iterable[str]) -> None:
        self._default, self._strange = default, tuple(strange)
        self._said: set[str] = set()

    def spawned(self, note: str, own: Collection[str], *, chosen: bool) -> None:
        """Say what is to be said of an agent whose spawn came with `note`, and which has the program's `own` tools."""
        if self._default is not None and not chosen:
            notice(self._default)
            self._default = None
        # Names in the policy; those of its own tools are no slips.
        notes = [each for each in self._strange if not any(repr(name) in each for name in own)]
        self._strange = ()
        for each in (*notes, *note.splitlines()):
            if each not in self._said:
                notice(f"orch: {each}")
                self._said.add(each)
