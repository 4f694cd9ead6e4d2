"""Creates and removes worktrees.

A record file beside each worktree states what must be removed after a crash. A worktree is removed only if no work can
be lost. No work can be lost if no file differs from the last commit, and a branch or tag of the user contains this
commit. As in `git worktree remove`, ignored files do not count.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError, OrchError, WorktreeError
from orch_protocol.core.worktrees import WorktreeSpec
from orch_worker.system import atomic_json

from ..config import paths
from .git import CHECKOUT_SECONDS, Git, open_common, open_repository
from .snapshot import SCRATCH_PREFIX, parent_git, snapshot, temporary_index, worktree_git

__all__ = [
    "FOLDER",
    "UNCOMMITTED",
    "WorktreeRecord",
    "create",
    "lost_work",
    "records",
    "remove_at",
    "remove_clean_worktrees",
    "remove_if_clean",
    "remove_scratch",
    "restore",
]

FOLDER: Final = "worktrees"
"""The name of the folder in a run folder that contains the worktrees of the run."""
UNCOMMITTED: Final = "uncommitted changes"
PREFIX: Final = "orch/"
SUFFIX: Final = ".json"


class WorktreeRecord(Struct, frozen=True):
    """A worktree and its state.

    Before the state is "ready", no agent has worked in the worktree. `checked_unclean` is True if the worktree was not
    clean when its run had ended.
    """

    spec: WorktreeSpec
    state: Literal["creating", "ready", "removing"] = "creating"
    checked_unclean: bool = field(default=False, name="swept")


def create(folder: str, run: Path, id: str, commit: str = "") -> tuple[WorktreeSpec, str, str]:
    """Create the worktree of agent `id` for the work tree that contains `folder`.

    The worktree starts at `commit`, or at the last commit if `commit` is "". Return the worktree, the agent's working
    folder, and a note about changes that the worktree does not contain. Raises WorktreeError, StoreError.
    """
    real = os.path.realpath(folder)
    git = open_repository(real)
    head = git.commit("HEAD")
    if not head:
        raise WorktreeError(f"repository {git.top} has no commits: make a first commit")
    if git.code("cat-file", "-e", f"{head}:.gitmodules", codes=(0, 128)) == 0:
        raise WorktreeError(f"repository {git.top} has submodules, which a worktree does not contain: use cwd instead")
    git.check_unlocked()
    place = os.path.realpath(paths.private_dir(run / FOLDER))
    path, branch = os.path.join(place, id), f"{PREFIX}{id}"
    spec = WorktreeSpec(path, branch, git.top, git.repository.common, folder, git.branch(), commit or head)
    try:
        _add(git, spec)
        cwd = os.path.normpath(os.path.join(spec.path, os.path.relpath(real, git.top)))
        if not os.path.isdir(cwd):
            raise WorktreeError(f"{folder} contains no committed file, so a worktree would not contain it: commit it")
        dirty = git.output("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
    except BaseException:
        _discard(spec)
        raise
    note = f"uncommitted changes in {git.top} are not part of the agent's worktree" if dirty else ""
    return spec, cwd, note


def _discard(spec: WorktreeSpec) -> None:
    """Remove a worktree that could not be created completely.

    If this fails, `orch fsck` can remove the worktree later.
    """
    with suppress(OrchError):
        remove_if_clean(spec)


def restore(spec: WorktreeSpec) -> None:
    """Create a removed worktree again, at the current commit of the branch `into`. Raises WorktreeError, StoreError."""
    if os.path.isdir(spec.path):
        return
    git = parent_git(spec)
    base = git.commit(f"refs/heads/{spec.into}") if spec.into else git.commit("HEAD")
    paths.private_dir(Path(spec.path).parent)
    _forget(git, spec)
    _add(git, replace(spec, base=base or spec.base))


def remove_if_clean(spec: WorktreeSpec) -> bool:
    """Remove a worktree and its branch if no work can be lost. Return whether the worktree is gone. Raises
    WorktreeError.

    If the process is killed during the removal, the next call completes the removal.
    """
    record = _read(_file(spec)) or WorktreeRecord(spec, "ready")
    spec = record.spec
    git = open_common(spec.common)
    if os.path.lexists(spec.path) and record.state == "ready":
        if _lost_work(git, spec):
            return False
        _write(replace(record, state="removing"))
    if os.path.lexists(spec.path):
        shutil.rmtree(spec.path, ignore_errors=True)
        if os.path.lexists(spec.path):
            raise WorktreeError(f"worktree {spec.path} cannot be removed: check the permissions of its folders")
    _forget(git, spec)
    tip = git.commit(f"refs/heads/{spec.branch}")
    if tip and _is_contained(git, spec, tip):
        git.output("update-ref", "-d", f"refs/heads/{spec.branch}", tip)
    _file(spec).unlink(missing_ok=True)
    return True


def lost_work(record: WorktreeRecord) -> str:
    """Return what would be lost if the worktree of an ended agent were removed, such as UNCOMMITTED; "" for nothing.

    Raises WorktreeError if the worktree cannot be examined.
    """
    if record.state != "ready" or not os.path.lexists(record.spec.path):
        return ""
    return _lost_work(open_common(record.spec.common), record.spec)


def remove_at(path: Path) -> bool:
    """Remove the worktree at `path` if no work can be lost.

    Return whether the worktree is gone. Raises WorktreeError.
    """
    record = _read(Path(f"{path}{SUFFIX}"))
    return record is None or remove_if_clean(record.spec)


def records(run: Path) -> list[WorktreeRecord]:
    """Return the records of the worktrees of the run in the folder `run`."""
    found = (_read(path) for path in sorted((run / FOLDER).glob(f"*{SUFFIX}")))
    return [record for record in found if record is not None]


def remove_clean_worktrees(run: Path) -> bool:
    """Remove the clean worktrees of a run that has ended. Return whether no worktree is left.

    A worktree that was not clean is not examined again. No other process may use the run.
    """
    for record in records(run):
        with suppress(OrchError):
            if not record.checked_unclean and not remove_if_clean(record.spec):
                _write(replace(record, checked_unclean=True))
    remove_scratch(run)
    with suppress(OSError):
        (run / FOLDER).rmdir()
    return not (run / FOLDER).exists()


def remove_scratch(run: Path) -> None:
    """Remove temporary folders left in the folder of a run by a killed root. No other process may use the run."""
    for path in (run / FOLDER).glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _add(git: Git, spec: WorktreeSpec) -> None:
    """Make git create the worktree. If the branch of the worktree does not exist, git creates the branch."""
    _write(WorktreeRecord(spec))
    known = git.commit(f"refs/heads/{spec.branch}")
    what = (spec.path, spec.branch) if known else ("--no-track", "-b", spec.branch, spec.path, spec.base)
    git.output("worktree", "add", "--quiet", *what, seconds=CHECKOUT_SECONDS)
    _write(WorktreeRecord(spec, "ready"))


def _forget(git: Git, spec: WorktreeSpec) -> None:
    """Remove a worktree, whose folder no longer exists, from the repository's list of worktrees."""
    if f"worktree {spec.path}" in git.output("worktree", "list", "--porcelain", "-z").split("\0"):
        # Two --force options also remove a worktree that is locked because git was killed while creating it.
        git.output("worktree", "remove", "--force", "--force", spec.path)


def _lost_work(common: Git, spec: WorktreeSpec) -> str:
    """Return what the removal of the worktree would lose, "" for nothing. Raises WorktreeError."""
    git = worktree_git(spec)
    with temporary_index(git, os.path.dirname(spec.path), keep_objects=False) as env:
        shot = snapshot(git, env, "orch")
    if shot.uncommitted:
        return UNCOMMITTED
    return "" if _is_contained(common, spec, shot.head) else "commits that are in no other branch"


def _is_contained(git: Git, spec: WorktreeSpec, commit: str) -> bool:
    """Return whether `commit` still exists after the removal of the worktree and its branch."""
    above = f"refs/heads/{spec.into}" if spec.into.startswith(PREFIX) else ""
    if commit == spec.base and not above:
        return True
    query = ("for-each-ref", f"--contains={commit}", "--format=%(refname)", "refs/heads", "refs/remotes", "refs/tags")
    refs = git.output(*query).split()
    # The branches of other agents do not count, because they may be removed too. The branch of the parent counts; it is
    # removed only if another branch contains its commits.
    return any(ref == above or not ref.startswith(f"refs/heads/{PREFIX}") for ref in refs)


def _file(spec: WorktreeSpec) -> Path:
    return Path(f"{spec.path}{SUFFIX}")


def _write(record: WorktreeRecord) -> None:
    atomic_json.write(_file(record.spec), record)


def _read(file: Path) -> WorktreeRecord | None:
    """Return the record in `file`. Return None if `file` does not exist or is damaged."""
    try:
        return atomic_json.read(file, WorktreeRecord | None, None, "")  # type: ignore[arg-type]
    except ConfigError:
        return None
