"""The mount namespace of a worker that runs its agent's code: orch's folders and denied paths are hidden from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

from ..system import linux
from . import landlock
from .launcher import Cover, hide

__all__ = ["NOT_OFFERED", "enter", "mark_failed", "state"]

CAP_SETFCAP: Final = 31
"""Needed to map the superuser into the namespaces of commands. It has no effect on files outside the namespace."""
NOT_OFFERED: Final = "run_python is not offered: orch's folders and denied paths cannot be hidden from it: {}"

_failure: str | None = None


def enter(covers: Iterable[Cover], staging: str) -> None:
    """Hide `covers` from this process for good, and give up the capabilities with which it could undo that.

    `staging` is an existing folder. This process must have one thread. Raises OSError; some covers may be in place.
    """
    global _failure
    with linux.keep_parent_death_signal():
        hide(covers, staging)
        landlock.give_up(keep=CAP_SETFCAP if os.geteuid() == 0 else None)
    _failure = ""


def mark_failed(why: str) -> None:
    """Record that hiding failed: code of the agent must not run in this process."""
    global _failure
    _failure = why
    print(NOT_OFFERED.format(why), file=sys.stderr)


def state() -> str | None:
    """Return "" when paths are hidden from this process, why not when that failed, None when it was not tried."""
    return _failure
