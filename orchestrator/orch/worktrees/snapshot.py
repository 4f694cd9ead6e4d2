"""A commit of all files in a worktree.

A temporary index is used, so that the agent's own index does not change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeSpec
from orch_worker.tools.shell.git_repository import GitRepository

from .git import Git, open_common, open_repository

__all__ = [
    "SCRATCH_PREFIX",
    "Snapshot",
    "commit_of",
    "identity",
    "names",
    "parent_git",
    "snapshot",
    "temporary_index",
    "worktree_git",
]

SCRATCH_PREFIX: Final = ".git-"
"""Prefix of temporary folders beside the worktrees."""
SUBMODULE: Final = "160000"
OPTIONS: Final = (
    *("-c", "core.splitIndex=false", "-c", "core.untrackedCache=false"),
    *("-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false"),
)


class Snapshot(Struct, frozen=True):
    """The commit of all files in a worktree.

    `head` is the last commit of the agent. `uncommitted` contains the files that differ from `head`.
    """

    commit: str
    head: str
    uncommitted: tuple[str, ...] = ()


def worktree_git(spec: WorktreeSpec) -> Git:
    """Return git for the worktree. Raises WorktreeError if the worktree does not exist any more.

    `spec` determines the repository, because the agent can change the `.git` file in the worktree.
    """
    if not os.path.isdir(spec.path):
        raise WorktreeError(f"worktree {spec.path} does not exist any more; its branch was {spec.branch}")
    open_common(spec.common)
    link = os.path.join(spec.path, ".git")
    place = os.path.join(spec.common, "worktrees")
    for name in os.listdir(place) if os.path.isdir(place) else ():
        part = os.path.join(place, name)
        try:
            with open(os.path.join(part, "gitdir"), encoding="utf-8", errors="surrogateescape") as file:
                found = file.read().strip()
        except OSError:
            continue
        if os.path.join(part, found) == link:
            return Git(GitRepository(spec.path, part, spec.common))
    raise WorktreeError(f"repository {spec.common} does not list the worktree {spec.path}: run `git worktree repair`")


def parent_git(spec: WorktreeSpec) -> Git:
    """Return git for the work tree in which the agent was spawned.

    Raises WorktreeError if this work tree does not exist.
    """
    git = open_repository(spec.top) if os.path.isdir(spec.top) else None
    if git is None or (git.top, git.repository.common) != (spec.top, spec.common):
        raise WorktreeError(f"{spec.top} is not a work tree of the repository {spec.common} any more")
    return git


@contextmanager
def temporary_index(git: Git, parent: str, *, keep_objects: bool) -> Iterator[dict[str, str]]:
    """Yield variables for git that name a temporary index.

    This index is a copy of the work tree's index. It is stored in a new folder in `parent`. Unless `keep_objects` is
    True, new objects are temporary too.
    """
    folder = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent)
    try:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        shutil.copyfile(os.path.join(git.repository.part, "index"), env["GIT_INDEX_FILE"])
        if not keep_objects:
            objects = os.path.join(git.repository.common, "objects")
            env["GIT_OBJECT_DIRECTORY"] = os.path.join(folder, "objects")
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(objects)
            os.mkdir(env["GIT_OBJECT_DIRECTORY"])
        yield env
    except OSError as error:
        raise WorktreeError(f"cannot copy the index of {git.top}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def snapshot(git: Git, env: Mapping[str, str], author: str) -> Snapshot:
    """Return a commit of all files in the work tree, except ignored files. Raises WorktreeError.

    `env` contains the variables from `temporary_index`. The call fails if a merge or another operation is unfinished,
    or if a folder in the work tree is a separate repository.
    """
    if doing := git.in_progress():
        raise WorktreeError(f"a {doing} is unfinished in {git.top}: let the agent finish or abort it")
    head = git.commit("HEAD")
    if not head:
        raise WorktreeError(f"the branch that is checked out in {git.top} has no commits")
    git.output(*OPTIONS, "add", "--all", env=env)
    tree = git.output(*OPTIONS, "write-tree", env=env).strip()
    changed = []
    fields = git.output("diff-tree", "-r", "-z", "--raw", "--no-renames", head, tree, env=env).split("\0")
    for change, name in zip(fields[::2], fields[1::2], strict=False):
        if change.split(" ")[1] == SUBMODULE:
            raise WorktreeError(f"{name!r} in {git.top} is a separate repository; remove it, or remove its .git folder")
        changed.append(name)
    if not changed:
        return Snapshot(head, head)
    message = f"Uncommitted work of {author}"
    commit = git.output("commit-tree", tree, "-p", head, "-m", message, env={**env, **identity(git, author)}).strip()
    return Snapshot(commit, head, tuple(changed))


def commit_of(spec: WorktreeSpec, author: str) -> str:
    """Return a commit of all files in a worktree. Return "" if the worktree was removed. Raises WorktreeError."""
    if not os.path.isdir(spec.path):
        return ""
    git = worktree_git(spec)
    with temporary_index(git, os.path.dirname(spec.path), keep_objects=True) as env:
        return snapshot(git, env, author).commit


def identity(git: Git, author: str = "") -> dict[str, str]:
    """Return variables that set the author of a new commit.

    If `author` is "", the author is the user. If git does not know the user, the author is "orch".
    """
    known = git.code("var", "GIT_COMMITTER_IDENT", codes=(0, 128)) == 0
    author_fields = {"NAME": author or "orch", "EMAIL": "orch@localhost"}
    env = {} if known else {f"GIT_COMMITTER_{name}": value for name, value in author_fields.items()}
    return env if known and not author else env | {f"GIT_AUTHOR_{name}": value for name, value in author_fields.items()}


def names(text: str) -> tuple[str, ...]:
    """Return the names in the output of git with `-z`."""
    return tuple(name for name in text.split("\0") if name)


def _quoted(path: str) -> str:
    """Return `path` in quotes, for a list that is separated by colons."""
    if ":" not in path and not path.startswith('"'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
