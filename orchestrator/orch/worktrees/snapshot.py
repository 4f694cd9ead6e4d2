"""A commit of all files in a worktree.

A temporary index is used, so that the agent's own index does not change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeSpec

from . import agent_repository
from .git import Git, unfinished
from .repository import SCRATCH_PREFIX, PrivateRepository, private_repository

__all__ = [
    "Snapshot",
    "Worktree",
    "commit_of",
    "identity",
    "names",
    "open_worktree",
    "snapshot",
    "temporary_index",
    "user_refs",
]

SUBMODULE: Final = "160000"
OPTIONS: Final = (
    *("-c", "core.splitIndex=false", "-c", "core.untrackedCache=false"),
    *("-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false"),
)


class Worktree(Struct, frozen=True):
    """An opened worktree.

    `git` runs in the worktree, with the agent's last commit `commit` as HEAD. `head` is None if the agent's repository
    does not exist any more; `commit` is then the last commit that the user's repository has.
    """

    spec: WorktreeSpec
    private: PrivateRepository
    git: Git
    head: agent_repository.AgentHead | None
    commit: str

    @property
    def part(self) -> str:
        """The folder of the agent's repository."""
        return os.path.join(self.spec.path, agent_repository.GIT_FOLDER)

    def move(self, commit: str, index: str) -> None:
        """Move the agent's branch to `commit`. The file `index` becomes the index. Raises WorktreeError."""
        try:
            if self.head is not None:
                agent_repository.move(self.spec.path, self.head, commit, index)
        except OSError as error:
            raise WorktreeError(f"the repository in {self.spec.path} cannot be written: {error.strerror}") from error
        _publish(self.private.git, self.spec, commit)


class Snapshot(Struct, frozen=True):
    """The commit of all files in a worktree.

    `head` is the last commit of the agent. `uncommitted` contains the files that differ from `head`.
    """

    commit: str
    head: str
    uncommitted: tuple[str, ...] = ()


@contextmanager
def open_worktree(spec: WorktreeSpec) -> Iterator[Worktree]:
    """Yield the worktree. New commits of the agent are copied to its branch in the user's repository.

    Raises WorktreeError if the worktree does not exist any more, or if its commits cannot be copied.
    """
    if not os.path.isdir(spec.path):
        raise WorktreeError(f"worktree {spec.path} does not exist any more; its branch was {spec.branch}")
    with private_repository(spec.common, os.path.dirname(spec.path)) as private:
        common = private.git
        tip = common.commit(f"refs/heads/{spec.branch}")
        head = agent_repository.head(spec.path)
        commit = tip if head is None else head.commit
        if not commit:
            raise WorktreeError(f"the branch that is checked out in {spec.path} has no commits")
        if commit != tip:
            if not common.commit(commit):
                _fetch(private, spec, commit)
            if not tip or common.code("merge-base", "--is-ancestor", commit, tip, codes=(0, 1)):
                _publish(common, spec, commit)
        if head is not None:
            refs = user_refs(common)
            with suppress(OSError, WorktreeError):  # git of the agent may be running; the next call updates them
                agent_repository.write_refs(spec.path, refs, f"refs/heads/{spec.branch}")
        yield Worktree(spec, private, private.detached(spec.path, commit), head, commit)


def user_refs(git: Git) -> dict[str, str]:
    """Return the branches and tags of the user's repository. Raises WorktreeError."""
    lines = git.output(
        "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/remotes", "refs/tags"
    ).splitlines()
    return {name: id for id, _, name in (line.partition(" ") for line in lines)}


def _fetch(private: PrivateRepository, spec: WorktreeSpec, commit: str) -> None:
    """Copy `commit` and what it needs from the agent's repository to the user's repository.

    Git computes the ids of all copied objects again, so that an agent cannot replace an object. Raises WorktreeError.
    """
    git, folder = private.git, os.path.join(private.folder, "fetched")
    try:
        agent_repository.link_objects(spec.path, folder)
        known = git.output("for-each-ref", "--format=^%(objectname)", "refs/heads").splitlines()
        env = _objects(git, folder)
        wanted = "\n".join([commit, *known, ""]).encode()
        pack = os.path.join(private.folder, "pack")
        id = git.output("pack-objects", "--quiet", "--revs", pack, env=env, input=wanted).strip()
        with open(f"{pack}-{id}.pack", "rb") as file:
            git.output("index-pack", "--strict", "--stdin", input=file)
    except (OSError, WorktreeError) as error:
        raise WorktreeError(f"the commits in {spec.path} cannot be copied to {spec.common}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(git: Git, spec: WorktreeSpec, commit: str) -> None:
    """Set the agent's branch in the user's repository. Raises WorktreeError if the user has checked out this branch."""
    ref, parts = f"refs/heads/{spec.branch}", os.path.join(spec.common, "worktrees")
    for part in (spec.common, *(os.path.join(parts, name) for name in _listdir(parts))):
        with suppress(OSError), open(os.path.join(part, "HEAD"), encoding="utf-8", errors="replace") as file:
            if file.read(len(ref) + 10).strip() == f"ref: {ref}" and agent_repository.head(spec.path) is not None:
                raise WorktreeError(f"{spec.branch} is checked out in {part}: check out another branch there")
    git.output("update-ref", "-m", "orch: work of an agent", ref, commit)


def _listdir(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


@contextmanager
def temporary_index(worktree: Worktree, *, keep_objects: bool) -> Iterator[dict[str, str]]:
    """Yield variables for git that name a temporary index.

    This index is a copy of the agent's index. Unless `keep_objects` is True, new objects are temporary too.
    """
    folder = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=os.path.dirname(worktree.spec.path))
    try:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        agent_repository.copy_index(worktree.spec.path, env["GIT_INDEX_FILE"])
        if not keep_objects:
            env |= _objects(worktree.git, os.path.join(folder, "objects"))
            os.mkdir(env["GIT_OBJECT_DIRECTORY"])
        yield env
    except OSError as error:
        raise WorktreeError(f"cannot copy the index of {worktree.spec.path}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _objects(git: Git, folder: str) -> dict[str, str]:
    """Return variables with which git writes objects to `folder`, and also reads those of the user's repository."""
    objects = os.path.join(git.repository.common, "objects")
    return {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(objects)}


def snapshot(worktree: Worktree, env: Mapping[str, str], author: str) -> Snapshot:
    """Return a commit of all files in the worktree, except ignored files. Raises WorktreeError.

    `env` contains the variables from `temporary_index`; this index then has the files of the commit. The call fails if
    a merge or another operation is unfinished, or if a folder in the work tree is a separate repository.
    """
    git, head = worktree.git, worktree.commit
    if doing := unfinished(worktree.part) or git.in_progress(env):
        raise WorktreeError(f"a {doing} is unfinished in {git.top}: let the agent finish or abort it")
    staged = git.names(
        *("diff-index", "--cached", "-z", "--name-only", "--no-renames", "--diff-filter=A", head), env=env
    )
    # The index of the agent only saves time: every entry that differs from the last commit is computed again.
    git.output("read-tree", "-m", "-i", head, env=env)
    # Git starts a process in the repository of a submodule, and this process would read the configuration there.
    entries = (entry.partition("\t") for entry in git.names("ls-files", "--stage", "-z", env=env))
    modules = {name: facts.split(" ")[1] for facts, _, name in entries if facts.startswith(SUBMODULE)}
    _write_entries(git, env, {name: (0, "0" * len(id)) for name, id in modules.items()})
    git.output(*OPTIONS, "add", "--all", env=env)
    if staged := [name for name in staged if _is_file(git.top, name)]:  # they may be ignored
        words = b"".join(os.fsencode(f"{name}\0") for name in staged)
        git.output(*OPTIONS, "update-index", "--add", "-z", "--stdin", env=env, input=words)
    _write_entries(git, env, {name: (SUBMODULE, id) for name, id in modules.items() if _is_empty(git.top, name)})
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
    with open_worktree(spec) as worktree, temporary_index(worktree, keep_objects=True) as env:
        return snapshot(worktree, env, author).commit


def _write_entries(git: Git, env: Mapping[str, str], entries: Mapping[str, tuple[int | str, str]]) -> None:
    """Write the mode and the id of paths into the index. Mode 0 removes a path."""
    if entries:
        lines = (f"{mode} {id}\t{name}\0" for name, (mode, id) in entries.items())
        git.output("update-index", "-z", "--index-info", env=env, input=os.fsencode("".join(lines)))


def _is_file(top: str, name: str) -> bool:
    """Return whether `name` is a file or a link, in a folder that is not a link."""
    path = os.path.join(top, name)
    is_folder = os.path.isdir(path) and not os.path.islink(path)
    return os.path.lexists(path) and not is_folder and os.path.realpath(os.path.dirname(path)) == os.path.dirname(path)


def _is_empty(top: str, name: str) -> bool:
    """Return whether `name` is an empty folder, as a submodule is that was not checked out."""
    try:
        return not os.listdir(os.path.join(top, name))
    except OSError:
        return False


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
