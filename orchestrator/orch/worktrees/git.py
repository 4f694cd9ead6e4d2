"""Runs git for the root, with a time limit.

A repository can name hooks, filters and other programs. These programs are never run.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_worker.tools.api.base import ToolError
from orch_worker.tools.shell.git_repository import SAFE, GitRepository, repository

__all__ = ["CHECKOUT_SECONDS", "Git", "open_common", "open_repository"]

SECONDS: Final = 120.0
CHECKOUT_SECONDS: Final = 900.0
"""Time limit in seconds of commands that write the files of a work tree."""
ENDING_SECONDS: Final = 5.0
MAX_ERROR_CHARS: Final = 600
PROGRAMS: Final = r"^(filter\..*\.(clean|smudge|process)|merge\..*\.driver)$"
KEPT_VARIABLES: Final = (
    "GIT_AUTHOR_",
    "GIT_COMMITTER_",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
)
"""Variables that git gets from the environment of the caller. Other variables could name another repository."""
OPTIONS: Final = (
    *SAFE,
    *(
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
        "-c",
        "submodule.recurse=false",
        "-c",
        "advice.detachedHead=false",
    ),
)


class Git(Struct, frozen=True):
    """Runs git in the work tree of `repository`."""

    repository: GitRepository

    @property
    def top(self) -> str:
        """The top folder of the work tree."""
        return self.repository.top

    def output(
        self,
        *arguments: str,
        codes: Collection[int] = (0,),
        env: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
    ) -> str:
        """Return the output of git for `arguments`. Raises WorktreeError unless the exit code is one of `codes`."""
        return self._run(arguments, codes, env or {}, seconds)[1]

    def code(self, *arguments: str, codes: Collection[int]) -> int:
        """Return the exit code of git for `arguments`. Raises WorktreeError unless the exit code is one of `codes`."""
        return self._run(arguments, codes, {}, SECONDS)[0]

    def _run(
        self, arguments: Collection[str], codes: Collection[int], env: Mapping[str, str], seconds: float
    ) -> tuple[int, str]:
        return run(self.top, {**self.repository.env, **env}, arguments, codes, seconds)

    def commit(self, revision: str) -> str:
        """Return the id of the commit `revision`. Return "" if there is no such commit."""
        return self.output("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", codes=(0, 1)).strip()

    def branch(self) -> str:
        """Return the name of the branch that is checked out, "" for a detached HEAD."""
        return self.output("symbolic-ref", "--quiet", "--short", "HEAD", codes=(0, 1)).strip()

    def check_unlocked(self) -> None:
        """Raise WorktreeError if another git process is changing the index."""
        lock = os.path.join(self.repository.part, "index.lock")
        if os.path.lexists(lock):
            raise WorktreeError(
                f"the index of {self.top} is locked by another git process: wait for it, or remove {lock} if none is "
                "running"
            )

    def in_progress(self) -> str:
        """Return the name of an unfinished operation in this work tree, such as a merge. Return "" if there is none."""
        markers = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert"}
        markers |= {"rebase-merge": "rebase", "rebase-apply": "rebase", "BISECT_LOG": "bisect"}
        operations = (
            what for name, what in markers.items() if os.path.lexists(os.path.join(self.repository.part, name))
        )
        return next(operations, "") or ("merge" if self.output("ls-files", "--unmerged", "-z") else "")


def open_repository(folder: str) -> Git:
    """Return git for the work tree that contains `folder`.

    Raises WorktreeError if there is no such work tree, or if its repository is not safe to use.
    """
    try:
        return _checked(Git(repository(folder)))
    except ToolError as error:
        raise WorktreeError(str(error).rstrip(".")) from error


def open_common(folder: str) -> Git:
    """Return git for the repository in `folder`, without a work tree.

    Raises WorktreeError as `open_repository` does.
    """
    if not os.path.isdir(folder):
        raise WorktreeError(f"repository {folder} does not exist any more")
    return _checked(Git(GitRepository(folder, folder, folder)))


def _checked(git: Git) -> Git:
    """Return `git` unchanged.

    Raises WorktreeError if another user owns the repository, or if its settings name programs to run.
    """
    if not git.repository.is_own:
        run(git.top, {}, ("rev-parse", "--git-dir"), (0,))  # git checks whether the repository is trusted
    if programs := _own_programs(git):
        raise WorktreeError(
            f"the configuration of repository {git.top} names a program ({programs[0]}), and orch runs no programs "
            "that a repository names; move the setting to your global git configuration"
        )
    return git


def _own_programs(git: Git) -> list[str]:
    """Return those settings of the repository that name programs for changed files."""
    query = ("config", "--null", "--show-scope", "--includes", "--name-only", "--get-regexp", PROGRAMS)
    words = git.output(*query, codes=(0, 1)).split("\0")
    pairs = zip(words[::2], words[1::2], strict=False)
    return [name for scope, name in pairs if scope in ("local", "worktree")]


def run(
    top: str, more: Mapping[str, str], arguments: Collection[str], codes: Collection[int], seconds: float = SECONDS
) -> tuple[int, str]:
    """Run git in `top`. Return the exit code and the output.

    Raises WorktreeError unless the exit code is one of `codes`.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "ORCH_"))}
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT_VARIABLES)}
    fixed = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_EDITOR": "false"}
    what = f"git {next(iter(arguments))}"
    try:
        git = subprocess.Popen(
            ["git", *OPTIONS, *arguments],
            cwd=top,
            env={**own, **kept, **fixed, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        why = "git is not installed" if isinstance(error, FileNotFoundError) and os.path.isdir(top) else error.strerror
        raise WorktreeError(f"{what} cannot be run in {top}: {why}") from error
    try:
        output, stderr = git.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(git)
        raise WorktreeError(f"{what} did not end within {seconds:g} s in {top} and was killed") from None
    if git.returncode not in codes:
        text = (stderr or output).decode("utf-8", "replace").strip()[-MAX_ERROR_CHARS:]
        raise WorktreeError(f"{what} failed in {top}: {text or f'it ended with {git.returncode}'}")
    return git.returncode, output.decode("utf-8", "replace")


def _end(git: subprocess.Popen[bytes]) -> None:
    """End git. Git removes its lock files if the time suffices."""
    with git:  # closes the pipes, which a process that git started in another group may keep open
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(git.pid, number)
            with suppress(subprocess.TimeoutExpired):
                git.communicate(timeout=ENDING_SECONDS)
                return
