"""The mount namespace of a tool host that runs Python code of its agent.

The namespace hides orch's folders and denied paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

from ..system import linux
from . import landlock
from .launcher import Cover, hide

__all__ = ["enter", "mark_failed", "state"]

CAP_SETFCAP: Final = 31
"""This capability is needed to map root into the namespaces of commands.

The capability has no effect on files outside the namespace.
"""

_failure: str | None = None


def enter(covers: Iterable[Cover], staging: str) -> None:
    """Permanently hide `covers` from this process, and drop the capabilities that could undo this.

    `staging` is an existing folder. This process must have only one thread. Raise OSError if a step fails; in this
    case, some paths may already be hidden.
    """
    global _failure
    with linux.keep_parent_death_signal():
        hide(covers, staging)
        landlock.drop_capabilities(keep=CAP_SETFCAP if os.geteuid() == 0 else None)
    _failure = ""


def mark_failed(why: str) -> None:
    """Record that hiding failed, so that this process must not run code of the agent."""
    global _failure
    _failure = why
    print(f"run_python cannot run: paths cannot be hidden from it: {why}", file=sys.stderr)


def state() -> str | None:
    """Return "" if paths are hidden from this process.

    Return the reason if hiding failed, and None if hiding was not tried.
    """
    return _failure
