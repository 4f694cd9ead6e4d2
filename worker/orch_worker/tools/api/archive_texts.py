"""The folder with the texts of an agent's own archives, which the agent's tools may read."""

from __future__ import annotations

import os
from typing import Final

from orch_protocol.policy.sandbox import RUN_CODE

from .base import ToolContext

__all__ = ["INDEX_FILE", "TEXT_FOLDER", "TEXT_READERS", "archive_texts"]

TEXT_FOLDER: Final = "archives"
"""The folder in an agent's session that contains its archives as text files."""
INDEX_FILE: Final = "index.txt"
TEXT_READERS: Final = frozenset({"read_file", "grep_files"}) | RUN_CODE
"""Tools that can read these files."""


def archive_texts(context: ToolContext) -> tuple[str, ...]:
    """Return the real path of the folder with the texts of the agent's own archives, if the folder exists.

    A link in its place is ignored, because a command could have made it.
    """
    folder = None if context.folder is None else context.folder / TEXT_FOLDER
    if folder is None or folder.is_symlink() or not folder.is_dir():
        return ()
    return (os.path.realpath(folder),)
