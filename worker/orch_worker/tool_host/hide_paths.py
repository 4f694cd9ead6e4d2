"""Hides orch's folders and denied paths from a tool host before it runs code of its agent."""

from __future__ import annotations

import os
import sys

from ..sandbox import own_namespace
from ..system.files import error_text
from ..tools.api.base import ToolContext
from ..tools.shell.path_covers import SCRATCH, WRITABLE, PathCovers

__all__ = ["hide_paths"]


def hide_paths(context: ToolContext) -> None:
    """Enter a mount namespace in which the paths are hidden. If hiding fails, this process offers no run_python.

    This process must have only one thread.
    """
    assert context.folder is not None
    try:
        for name in WRITABLE:
            os.makedirs(context.folder / name, 0o700, exist_ok=True)
        found = PathCovers(context).find_for_tool_host(filter(os.path.isabs, sys.path))
        if found.problem:
            raise OSError(0, found.problem)
        own_namespace.enter(found.covers, os.fspath(context.folder / SCRATCH))
    except OSError as error:
        own_namespace.mark_failed(f"{error_text(error)}: {error.filename}" if error.filename else error_text(error))
