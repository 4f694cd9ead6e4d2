"""Finds and verifies the git repository of a folder. A `.git` file can point to any repository."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...system.files import open_regular_file
from ..api.base import ToolError

__all__ = ["SAFE", "GitRepository", "repository", "repository_root"]

# These options override repository settings that start programs or use the network.
SAFE: Final = (
    *("--no-pager", "--no-optional-locks", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"),
    *("-c", "log.showSignature=false", "-c", "core.quotePath=false", "-c", "color.ui=false"),
)
MAX_LINK: Final = 4096
MAX_CONFIG: Final = 1 << 20
_WORK_TREE: Final = re.compile(r"^\s*worktree\s*=\s*\"?(.*?)\"?\s*$", re.MULTILINE | re.IGNORECASE)


class GitRepository(Struct, frozen=True):
    """The repository of the work tree `top`. `part` belongs to this work tree only. All work trees share `common`."""

    top: str
    part: str
    common: str

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the repository that git reads."""
        return (self.top, self.part, self.common)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make git use exactly this repository, even if files change."""
        return {"GIT_DIR": self.part, "GIT_COMMON_DIR": self.common, "GIT_WORK_TREE": self.top}

    @property
    def is_own(self) -> bool:
        """Whether the current user owns the repository.

        Otherwise git itself decides whether to trust the repository.
        """
        return all(os.stat(folder).st_uid == os.geteuid() for folder in self.folders)


def repository_root(folder: str) -> str:
    """Return the folder that contains `.git`: `folder` or the nearest folder above `folder`.

    Return "" if there is none.
    """
    # This function is called for three tools of each new agent. Strings are ten times faster here than Path objects.
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return ""
        folder = parent
    return folder


def repository(folder: str) -> GitRepository:
    """Return the repository that contains `folder`.

    Raise ToolError if there is no repository, or if the repository belongs to another folder.

    An agent that may write to the folder could point `.git` to any repository. Therefore, a repository outside the
    folder must list the folder as its work tree, as linked work trees and submodules do.
    """
    top = os.path.realpath(repository_root(folder) or folder)
    link = os.path.join(top, ".git")
    link_target = _read_text(link).removeprefix("gitdir:").strip()
    part = os.path.realpath(os.path.join(top, link_target) if link_target else link)
    common_link = _read_text(os.path.join(part, "commondir")).strip()
    common = os.path.realpath(os.path.join(part, common_link)) if common_link else part
    if not os.path.isdir(common):
        raise ToolError(f"{top!r} is not a git repository: folder {common!r} does not exist.")
    if not (_is_below(common, top) and _is_below(part, top)) and not _lists_work_tree(part, common, top, link):
        raise ToolError(
            f"{link!r} points to {common!r}, a repository that does not list this folder as a work tree. If it "
            f"should, run `git worktree repair`, or `git config core.worktree {top}` there."
        )
    return GitRepository(top, part, common)


def _lists_work_tree(part: str, common: str, top: str, link: str) -> bool:
    """Return whether the repository itself lists `top` as its work tree."""
    # This is a linked work tree. Its part lies in the common folder and points back to the `.git` file.
    if part != common:
        backlink = os.path.join(part, _read_text(os.path.join(part, "gitdir")).strip())
        return os.path.dirname(part) == os.path.join(common, "worktrees") and os.path.realpath(backlink) == link
    found = _WORK_TREE.findall(_read_text(os.path.join(part, "config"), MAX_CONFIG))
    return bool(found) and os.path.realpath(os.path.join(part, found[-1])) == top


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _read_text(path: str, limit: int = MAX_LINK) -> str:
    """Return the content of the file `path`, or "" if it does not exist."""
    try:
        with open_regular_file(Path(path)) as file:
            return os.fsdecode(file.read(limit))
    except OSError:
        return ""
