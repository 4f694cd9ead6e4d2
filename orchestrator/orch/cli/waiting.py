"""Waiting for an answer: who works on what meanwhile, and Ctrl-C, once and twice."""

from __future__ import annotations

import os
import sys
import time

from ..interrupts import Presses
from . import render
from .failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .connection import Connection, OnEvent

__all__ = ["INTERRUPTED", "StatusLine", "wait"]

INTERRUPTED = "Interrupted"
AGAIN_SECONDS = 2.0
NARROW = 80


def wait(
    connection: Connection,
    method: str,
    params: dict[str, Any],
    *,
    on_event: OnEvent | None = None,
    quiet: bool = False,
    ends: bool = False,
) -> Any:
    """Ask and wait, with a StatusLine unless `quiet`. Raises Failure.

    Ctrl-C ends the waiting, never the agent; at a terminal a second one within 2 s cancels what the agent does. With
    `ends` the caller ends the agent itself, and that is not offered.
    """
    ref, terminal = params["ref"], sys.stderr.isatty()
    line = StatusLine(connection.sibling(), ref) if terminal and not quiet else None
    update = line.update if line is not None else None
    offered = terminal and not ends
    message = f"stopped waiting; agent {ref} works on. Its answer: orch collect {ref}. To end it: orch cancel {ref}"
    with Presses(2 if offered else 1):
        try:
            try:
                return connection.call(method, params, on_event=on_event, on_silence=update)
            except KeyboardInterrupt:
                connection.close()
                if line is not None:
                    line.close()
                if offered:
                    again = f"Ctrl-C again within {AGAIN_SECONDS:g} s cancels what it does"
                    print(f"\norch: agent {ref} works on; {again}", file=sys.stderr, flush=True)
                    time.sleep(AGAIN_SECONDS)
        except KeyboardInterrupt:
            message = _cancelled(connection.sibling(), ref)
        finally:
            if line is not None:
                line.close()
    raise Failure(INTERRUPTED, message, 130)


def _cancelled(connection: Connection, ref: str) -> str:
    """Cancel what the agent does; return what is to be said of that."""
    collect = f"orch collect {ref}"
    try:
        row = connection.call("cancel", {"ref": ref})
    except Failure as failure:
        return f"agent {ref} could not be cancelled: {failure}"
    finally:
        connection.close()
    if row["pending"] is None:
        return f"agent {ref} was done already. Its answer: {collect}"
    return f"what agent {ref} did was cancelled. What it had by then: {collect}"


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
            self._id = self._id or self._connection.call("state", {"ref": self._ref})["id"]
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
