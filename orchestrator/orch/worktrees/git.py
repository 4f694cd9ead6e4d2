"""Runs git for the root, with a time limit.

A repository can name hooks, filters and other programs, in many files and in ways that change between versions of git.
Therefore, the root's git reads no configuration of the repository, of the user or of the system. It works in a private
repository (see `repository`), whose configuration orch writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import IO, Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_worker.system.programs import PROGRAM_PATH
from orch_worker.tools.shell.git_repository import SAFE, GitRepository

__all__ = ["CHECKOUT_SECONDS", "Git", "run", "unfinished"]

SECONDS: Final = 120.0
CHECKOUT_SECONDS: Final = 900.0
"""Time limit in seconds of commands that write the files of a work tree."""
ENDING_SECONDS: Final = 5.0
MAX_ERROR_CHARS: Final = 600
KEPT_VARIABLES: Final = ("HOME", "XDG_CONFIG_HOME", "TMPDIR", "GIT_AUTHOR_", "GIT_COMMITTER_")
"""Beginnings of the names of variables that git gets from the environment of the caller.

HOME has the user's own list of ignored files.
"""
FIXED_VARIABLES: Final = {
    "PATH": PROGRAM_PATH,
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_EDITOR": "false",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
}
CONFIGURATION_VARIABLES: Final = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM")
"""Variables that say where git reads the configuration of the user and of the system."""
OPTIONS: Final = (
    *SAFE,
    *("-c", "submodule.recurse=false", "-c", "advice.detachedHead=false"),
)


class Git(Struct, frozen=True):
    """Runs git in the work tree of `repository`, with the additional configuration `settings`."""

    repository: GitRepository
    settings: Mapping[str, str] = {}

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
        input: bytes | IO[bytes] | None = None,
    ) -> str:
        """Return the output of git for `arguments`. Git reads `input`.

        Raises WorktreeError unless the exit code is one of `codes`.
        """
        return self._run(arguments, codes, env, seconds, input)[1].decode("utf-8", "replace")

    def names(self, *arguments: str, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the names in the output of git for `arguments` with `-z`. Raises WorktreeError.

        Bytes that are not UTF-8 become surrogates, as in `os.fsdecode`.
        """
        return [os.fsdecode(name) for name in self._run(arguments, (0,), env)[1].split(b"\0") if name]

    def code(self, *arguments: str, codes: Collection[int]) -> int:
        """Return the exit code of git for `arguments`. Raises WorktreeError unless the exit code is one of `codes`."""
        return self._run(arguments, codes)[0]

    def _run(
        self,
        arguments: Collection[str],
        codes: Collection[int],
        env: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        input: bytes | IO[bytes] | None = None,
    ) -> tuple[int, bytes]:
        more = {"GIT_CONFIG_COUNT": str(len(self.settings))}
        for number, (name, value) in enumerate(self.settings.items()):
            more |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return run(self.top, {**self.repository.env, **more, **(env or {})}, arguments, codes, seconds, input=input)

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

    def in_progress(self, env: Mapping[str, str] | None = None) -> str:
        """Return the name of an unfinished operation in this work tree, such as a merge. Return "" if there is none."""
        return unfinished(self.repository.part) or (
            "merge" if self.output("ls-files", "--unmerged", "-z", env=env) else ""
        )


def unfinished(part: str) -> str:
    """Return the name of an unfinished operation according to the files in `part`. Return "" if there is none."""
    markers = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert"}
    markers |= {"rebase-merge": "rebase", "rebase-apply": "rebase", "BISECT_LOG": "bisect"}
    return next((what for name, what in markers.items() if os.path.lexists(os.path.join(part, name))), "")


def run(
    top: str,
    more: Mapping[str, str],
    arguments: Collection[str],
    codes: Collection[int],
    seconds: float = SECONDS,
    *,
    input: bytes | IO[bytes] | None = None,
    user_configuration: bool = False,
) -> tuple[int, bytes]:
    """Run git in `top` with the variables `more`. Return the exit code and the output.

    If `user_configuration` is True, git reads the configuration of the user and of the system. Only commands that read
    configuration as data may do this. Raises WorktreeError unless the exit code is one of `codes`.
    """
    env = {name: value for name, value in os.environ.items() if name.startswith(KEPT_VARIABLES)} | FIXED_VARIABLES
    if user_configuration:
        for name in CONFIGURATION_VARIABLES:
            env.pop(name)
            if name in os.environ:
                env[name] = os.environ[name]
    what = f"git {next(iter(arguments))}"
    data = input if isinstance(input, bytes) else None
    file = subprocess.DEVNULL if input is None else subprocess.PIPE if isinstance(input, bytes) else input
    try:
        git = subprocess.Popen(
            ["git", *OPTIONS, *arguments],
            cwd=top,
            env={**env, **more},
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) and os.path.isdir(top)
        why = f"git is not installed in {PROGRAM_PATH}" if is_missing else error.strerror
        raise WorktreeError(f"{what} cannot be run in {top}: {why}") from error
    try:
        output, stderr = git.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(git)
        raise WorktreeError(f"{what} did not end within {seconds:g} s in {top} and was killed") from None
    if git.returncode not in codes:
        text = (stderr or output).decode("utf-8", "replace").strip()[-MAX_ERROR_CHARS:]
        raise WorktreeError(f"{what} failed in {top}: {text or f'it ended with {git.returncode}'}")
    return git.returncode, output


def _end(git: subprocess.Popen[bytes]) -> None:
    """End git. Git removes its lock files if the time suffices."""
    with git:  # closes the pipes, which a process that git started in another group may keep open
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(git.pid, number)
            with suppress(subprocess.TimeoutExpired):
                git.communicate(timeout=ENDING_SECONDS)
                return
