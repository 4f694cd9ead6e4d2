"""The workspace block of the prompt: folder, git branch, and the files that the agent changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.messages import Reply

from ..system.files import open_regular_file

__all__ = ["branch_of", "current_day", "folder_text", "workspace_text"]

MAX_FILES: Final = 20
MAX_BYTES: Final = 4096
HEADING: Final = "# Workspace"
_BRANCH: Final = re.compile(r"ref: refs/heads/([\w./+@#-]{1,200})\s*")
_COMMIT: Final = re.compile(r"([0-9a-f]{40,64})\s*")
_ELSEWHERE: Final = re.compile(r"gitdir: (.+?)\s*")
_ODD: Final = re.compile(r"[^\w./+@#~ -]")


def current_day() -> str:
    """Return the local date in ISO 8601 format."""
    return time.strftime("%Y-%m-%d")


def workspace_text(folder: str, replies: Iterable[Reply]) -> str:
    """Return the workspace block for `folder`. `replies` are the replies of the agent's finished turns.

    This function may wait for the disk.
    """
    changed = dict.fromkeys(file for reply in replies for file in reply.files_changed)
    return folder_text(folder, branch_of(folder), tuple(changed))


def folder_text(folder: str, branch: str, changed: Sequence[str]) -> str:
    """Return a block with the folder, the branch (unless it is "") and the last files in `changed`."""
    lines = [f"Folder: {_plain(folder)}"]
    if branch:
        lines.append(f"Branch: {branch}")
    if changed:
        shown = ", ".join(map(_plain, changed[-MAX_FILES:]))
        more = f", and {len(changed) - MAX_FILES} before these" if len(changed) > MAX_FILES else ""
        lines.append(f"Files you have changed: {shown}{more}")
    return f"{HEADING}\n\n" + "\n".join(lines)


def branch_of(folder: str) -> str:
    """Return the branch that is checked out in the repository that contains `folder`.

    Return a short commit hash if HEAD is detached. Return "" outside a repository.
    """
    while not os.path.lexists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    there = Path(folder, ".git")
    if not there.is_dir():
        found = _ELSEWHERE.fullmatch(_read(there))
        there = Path(folder, found[1]) if found else there
    head = _read(there / "HEAD")
    if branch := _BRANCH.fullmatch(head):
        return branch[1]
    commit = _COMMIT.fullmatch(head)
    return commit[1][:12] if commit else ""


def _read(path: Path) -> str:
    try:
        with open_regular_file(path) as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _plain(name: str) -> str:
    """Return the name of a file with unusual characters replaced, so that the name cannot start new text."""
    return _ODD.sub("?", name)
