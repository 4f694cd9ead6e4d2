"""Creates and removes worktrees.

A record file beside each worktree states what must be removed after a crash. A worktree is removed only if no work can
be lost. No work can be lost if no file differs from the last commit, and a branch or tag of the user contains this
commit. As in `git worktree remove`, ignored files do not count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError, OrchError, WorktreeError
from orch_protocol.core.worktrees import WorktreeSpec
from orch_worker.system import atomic_json

from ..config import paths
from .agent_repository import GIT_FOLDER
from .agent_repository import create as create_repository
from .git import CHECKOUT_SECONDS, Git
from .report import target_commit
from .repository import SCRATCH_PREFIX, PrivateRepository, check_links, find_repository, private_repository
from .snapshot import open_worktree, snapshot, temporary_index, user_refs

__all__ = [
    "FOLDER",
    "UNCOMMITTED",
    "WorktreeRecord",
    "create",
    "find_worktree",
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
    checked_unclean: bool = False


def create(
    folder: str, run: Path, id: str, commit: str = "", check: Callable[[str], object] = check_links
) -> tuple[WorktreeSpec, str, str]:
    """Create the worktree of agent `id` for the work tree that contains `folder`.

    The worktree starts at `commit`, or at the last commit if `commit` is "". `check` gets the folder of the repository
    before and after its files are read; it raises WorktreeError if the agent may not use the repository. Return the
    worktree, the agent's working folder, and a note about changes that the worktree does not contain. Raises
    WorktreeError, StoreError.
    """
    real = os.path.realpath(folder)
    place = os.path.realpath(paths.private_dir(run / FOLDER))
    path, branch = os.path.join(place, id), f"{PREFIX}{id}"
    above = find_worktree(real, place)
    if above is not None:
        top = above.path
        with open_worktree(above) as parent, temporary_index(parent, keep_objects=False) as env:
            dirty = bool(snapshot(parent, env, "orch").uncommitted)
            spec = WorktreeSpec(path, branch, top, above.common, folder, above.branch, commit or parent.commit)
            cwd = _create(parent.private, spec, real, check)
    else:
        found = find_repository(real)
        top = found.top
        with private_repository(found.common, place, found.part) as private:
            git = private.in_work_tree(found)
            head = git.commit("HEAD")
            if not head:
                raise WorktreeError(f"repository {top} has no commits: make a first commit")
            git.check_unlocked()
            spec = WorktreeSpec(path, branch, top, found.common, folder, git.branch(), commit or head)
            status = ("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
            dirty = bool(git.output(*status))
            cwd = _create(private, spec, real, check)
    return spec, cwd, f"uncommitted changes in {top} are not part of the agent's worktree" if dirty else ""


def _create(private: PrivateRepository, spec: WorktreeSpec, real: str, check: Callable[[str], object]) -> str:
    """Create the worktree for an agent that was spawned in the folder `real`. Return the agent's working folder."""
    if private.git.code("cat-file", "-e", f"{spec.base}:.gitmodules", codes=(0, 128)) == 0:
        raise WorktreeError(f"repository {spec.top} has submodules, which a worktree does not contain: use cwd instead")
    check(spec.common)
    try:
        _add(private, spec)
        check(spec.common)
        cwd = os.path.normpath(os.path.join(spec.path, os.path.relpath(real, spec.top)))
        if not os.path.isdir(cwd):
            raise WorktreeError(f"{real} contains no committed file, so a worktree would not contain it: commit it")
    except BaseException:
        _discard(spec)
        raise
    return cwd


def find_worktree(folder: str, place: str) -> WorktreeSpec | None:
    """Return the worktree of an agent that contains `folder`. Return None if there is none.

    `place` is the folder with the worktrees of a run; the worktree may belong to another run of the same home.
    """
    runs = Path(place).parent.parent
    path = Path(folder)
    if not path.is_relative_to(runs) or len(parts := path.relative_to(runs).parts) < 3 or parts[1] != FOLDER:
        return None
    record = _read(Path(f"{runs.joinpath(*parts[:3])}{SUFFIX}"))
    return None if record is None else record.spec


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
    with private_repository(spec.common, str(paths.private_dir(Path(spec.path).parent))) as private:
        _add(private, replace(spec, base=target_commit(private, spec)))


def remove_if_clean(spec: WorktreeSpec) -> bool:
    """Remove a worktree and its branch if no work can be lost. Return whether the worktree is gone. Raises
    WorktreeError.

    If the process is killed during the removal, the next call completes the removal.
    """
    record = _read(_file(spec)) or WorktreeRecord(spec, "ready")
    spec = record.spec
    if os.path.lexists(spec.path) and record.state == "ready":
        if _lost_work(spec):
            return False
        _write(replace(record, state="removing"))
    with private_repository(spec.common, os.path.dirname(spec.path)) as private:
        if os.path.lexists(spec.path):
            shutil.rmtree(spec.path, ignore_errors=True)
            if os.path.lexists(spec.path):
                raise WorktreeError(f"worktree {spec.path} cannot be removed: check the permissions of its folders")
        git, ref = private.git, f"refs/heads/{spec.branch}"
        tip = git.commit(ref)
        if tip and _is_contained(git, spec, tip):
            git.output("update-ref", "-d", ref, tip)
    _file(spec).unlink(missing_ok=True)
    return True


def lost_work(record: WorktreeRecord) -> str:
    """Return what would be lost if the worktree of an ended agent were removed, such as UNCOMMITTED; "" for nothing.

    Raises WorktreeError if the worktree cannot be examined.
    """
    if record.state != "ready" or not os.path.lexists(record.spec.path):
        return ""
    return _lost_work(record.spec)


def remove_at(path: Path) -> bool:
    """Remove the worktree at `path` if no work can be lost. Otherwise, commit its uncommitted files on its branch.

    Return whether the worktree is gone. Raises WorktreeError. No agent may work in the worktree.
    """
    record = _read(Path(f"{path}{SUFFIX}"))
    if record is None or remove_if_clean(record.spec):
        return True
    spec = record.spec
    with open_worktree(spec) as worktree, temporary_index(worktree, keep_objects=True) as env:
        shot = snapshot(worktree, env, spec.branch.removeprefix(PREFIX))
        if shot.uncommitted:
            worktree.move(shot.commit, env["GIT_INDEX_FILE"])
    return False


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


def _add(private: PrivateRepository, spec: WorktreeSpec) -> None:
    """Create the worktree with a repository for the agent. If the branch does not exist, it starts at `spec.base`."""
    _write(WorktreeRecord(spec))
    git, ref = private.git, f"refs/heads/{spec.branch}"
    if not (tip := git.commit(ref)):
        tip = spec.base
        git.output("update-ref", "-m", "orch: worktree of an agent", ref, tip, "")
    try:
        os.mkdir(spec.path)
        create_repository(spec.path, spec.branch, tip, user_refs(git), private.agent_configuration, spec.common)
    except OSError as error:
        raise WorktreeError(f"worktree {spec.path} cannot be created: {error}") from error
    env = {"GIT_INDEX_FILE": os.path.join(spec.path, GIT_FOLDER, "index")}
    tree = private.detached(spec.path, tip)
    try:
        tree.output("read-tree", "--reset", "-u", tip, env=env, seconds=CHECKOUT_SECONDS)
    except WorktreeError as error:
        if not private.is_partial:
            raise
        raise WorktreeError(
            f"{error}; {spec.common} is a partial clone: fetch all objects of {tip[:12]} first"
        ) from error
    _write(WorktreeRecord(spec, "ready"))


def _lost_work(spec: WorktreeSpec) -> str:
    """Return what the removal of the worktree would lose, "" for nothing. Raises WorktreeError."""
    with open_worktree(spec) as worktree, temporary_index(worktree, keep_objects=False) as env:
        shot = snapshot(worktree, env, "orch")
        if shot.uncommitted:
            return UNCOMMITTED
        is_contained = _is_contained(worktree.private.git, spec, shot.head)
        return "" if is_contained else "commits that are in no other branch"


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
