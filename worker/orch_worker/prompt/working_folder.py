"""Where an agent works, and when, in a few lines: its folder, the branch there, the files that it has changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.messages import Reply

from ..system.files import regular_open_regular

__all__ = ["branch_of", "current_day", "folder_text", "workspace_text"]

MOST_FILES: Final = 20
MOST_BYTES: Final = 4096
HEADING: Final = "# Workspace"
_BRANCH: Final = re.compile(r"ref: refs/heads/([\w./+@#-]{1,200})\s*")
_COMMIT: Final = re.compile(r"([0-9a-f]{40,64})\s*")
_ELSEWHERE: Final = re.compile(r"gitdir: (.+?)\s*")
_ODD: Final = re.compile(r"[^\w./+@#~ -]")


def current_day() -> str:
    """Return the day that it is here, as ISO 8601 has it."""
    return time.strftime("%Y-%m-%d")


def workspace_text(folder: str, replies: Iterable[Reply]) -> str:
    """Return what is said of `folder` to an agent whose finished turns came to `replies`. May wait for the disk."""
    changed = dict.fromkeys(file for reply in replies for file in reply.files_changed)
    return folder_text(folder, branch_of(folder), tuple(changed))


def folder_text(folder: str, branch: str, changed: Sequence[str]) -> str:
    """Return folder, branch ("" for none) and the files that were `changed`, the latest of them, as a block."""
    lines = [f"Folder: {_plain(folder)}"]
    if branch:
        lines.append(f"Branch: {branch}")
    if changed:
        shown = ", ".join(map(_plain, changed[-MOST_FILES:]))
        more = f", and {len(changed) - MOST_FILES} before these" if len(changed) > MOST_FILES else ""
        lines.append(f"Files you have changed: {shown}{more}")
    return f"{HEADING}\n\n" + "\n".join(lines)


def branch_of(folder: str) -> str:
    """Return the branch that is checked out around `folder`, a commit where none is; "" outside of a repository."""
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
        with regular_open_regular(path) as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _plain(name: str) -> str:
    """Return the name of a file as one that begins nothing new."""
    return _ODD.sub("?", name)
