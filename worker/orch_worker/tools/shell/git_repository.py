"""Which Git repository is that of a folder, and that it is: a file `.git` may name anybody's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...system.files import regular_open_regular
from ..api.base import ToolError

__all__ = ["GitRepository", "repository", "top_of"]

MAX_LINK: Final = 4096
MAX_CONFIG: Final = 1 << 20
_WORK_TREE: Final = re.compile(r"^\s*worktree\s*=\s*\"?(.*?)\"?\s*$", re.MULTILINE | re.IGNORECASE)


class GitRepository(Struct, frozen=True):
    """The repository of the work tree `top`: `part` is this tree's own of it, `common` what all its trees share."""

    top: str
    part: str
    common: str

    @property
    def places(self) -> tuple[str, ...]:
        """The folders that Git reads of it."""
        return (self.top, self.part, self.common)

    @property
    def env(self) -> dict[str, str]:
        """The variables by which Git takes this very one, whatever is written there meanwhile."""
        return {"GIT_DIR": self.part, "GIT_COMMON_DIR": self.common, "GIT_WORK_TREE": self.top}

    @property
    def is_own(self) -> bool:
        """Whether it belongs to who runs this; of others' Git itself has to say what it thinks."""
        return all(os.stat(place).st_uid == os.geteuid() for place in self.places)


def top_of(folder: str) -> str:
    """Return the folder at or above `folder` that holds `.git`, "" when none does."""
    # Asked for each of the three tools of each agent that starts: strings, because paths cost ten times as much.
    while not os.path.lexists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    return folder


def repository(folder: str) -> GitRepository:
    """Return the repository around `folder`. Raises ToolError when there is none, or when it is another folder's.

    Whoever may write files here could name a repository anywhere in `.git`. So one outside must name this folder, too,
    as those of further work trees and of submodules do.
    """
    top = os.path.realpath(top_of(folder) or folder)
    link = os.path.join(top, ".git")
    named = _words(link).removeprefix("gitdir:").strip()
    part = os.path.realpath(os.path.join(top, named) if named else link)
    shared = _words(os.path.join(part, "commondir")).strip()
    common = os.path.realpath(os.path.join(part, shared)) if shared else part
    if not os.path.isdir(common):
        raise ToolError(f"{top!r} is not a git repository: folder {common!r} does not exist.")
    if not (_is_below(common, top) and _is_below(part, top)) and not _names(part, common, top, link):
        raise ToolError(
            f"{link!r} points to {common!r}, a repository that does not list this folder as a work tree. If it "
            f"should, run `git worktree repair`, or `git config core.worktree {top}` there."
        )
    return GitRepository(top, part, common)


def _names(part: str, common: str, top: str, link: str) -> bool:
    """Whether the repository says itself that `top` is a work tree of its."""
    if part != common:  # a further work tree: its part lies in the whole, and names the file that names it
        back = os.path.join(part, _words(os.path.join(part, "gitdir")).strip())
        return os.path.dirname(part) == os.path.join(common, "worktrees") and os.path.realpath(back) == link
    found = _WORK_TREE.findall(_words(os.path.join(part, "config"), MAX_CONFIG))
    return bool(found) and os.path.realpath(os.path.join(part, found[-1])) == top


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _words(path: str, most: int = MAX_LINK) -> str:
    """Return what is in the file `path`, "" when there is none."""
    try:
        with regular_open_regular(Path(path)) as file:
            return os.fsdecode(file.read(most))
    except OSError:
        return ""
