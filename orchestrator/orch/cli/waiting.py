"""Waiting for an answer: who works on what meanwhile, and Ctrl-C."""

from __future__ import annotations

import os
import sys

from . import render
from .failure import Failure
from .words import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .connection import Connection, OnEvent

__all__ = ["INTERRUPTED", "StatusLine", "wait"]

INTERRUPTED = "Interrupted"
NARROW = 80


def wait(
    connection: Connection,
    method: str,
    params: dict[str, Any],
    *,
    on_event: OnEvent | None = None,
    quiet: bool = False,
) -> Any:
    """Ask and wait, with a StatusLine unless `quiet`. Ctrl-C ends the waiting, never the agent. Raises Failure."""
    ref = params["ref"]
    line = StatusLine(connection.sibling(), ref) if sys.stderr.isatty() and not quiet else None
    try:
        return connection.call(method, clean(params), on_event=on_event, on_silence=line.update if line else None)
    except KeyboardInterrupt:
        connection.close()
        message = f"stopped waiting; agent {ref} works on. Its answer: orch collect {ref}. To end it: orch cancel {ref}"
        raise Failure(INTERRUPTED, message, 130) from None
    finally:
        if line is not None:
            line.close()


class StatusLine:
    """One line on stderr that says what the agent `ref`, and those below it, do just now."""

    def __init__(self, connection: Connection, ref: str) -> None:
        self._connection: Connection | None = connection
        self._ref = ref
        self._id: str | None = None
        self._shown = False

    def update(self) -> None:
        """Ask, and show. What goes wrong is for whoever waits to find out; then there is no line."""
        if self._connection is None:
            return
        try:
            self._id = self._id or self._connection.call("state", clean({"ref": self._ref}))["id"]
            said = render.at_work(self._connection.call("list"), self._id)
        except Failure:
            self.close()
            return
        sys.stderr.write(f"\r{said[: _width() - 1]}\x1b[K")
        sys.stderr.flush()
        self._shown = True

    def close(self) -> None:
        """Take the line away."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or NARROW
    except (OSError, ValueError):
        return NARROW
