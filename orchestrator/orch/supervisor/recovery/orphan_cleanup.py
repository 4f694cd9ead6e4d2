"""Find and kill processes left behind by a dead root.

Every process of a run has the token of the run in the environment variable ORCH_RUN. When a root dies, its shim kills
the processes. If the shim is killed at the same moment, the next root of the run kills the remaining processes. The
token is random and is stored in the run folder. The token does not reveal the path of the folder to the commands of
agents.
"""

from __future__ import annotations

import os
import signal

from ...config import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    PathLike = str | os.PathLike[str]

__all__ = [
    "kill_orphans",
    "processes_with_token",
    "remove_git_scratch",
    "remove_run",
    "run_token",
    "stored_token",
    "sweep_runs",
    "unnamed_runs",
]

TOKEN_FILE = "token"
TOKEN_BYTES = 16

PASSES = 10
"""Maximum number of scans. If a process forks during a scan, that scan may miss the child."""


def run_token(folder: PathLike) -> str:
    """Return the token of the run in `folder`.

    The first call creates the token and stores the token in `folder`. The caller must hold the run's lock. Raises
    StoreError if the token cannot be stored.
    """
    if token := stored_token(folder):
        return token
    from pathlib import Path  # imported here, because the thin CLI imports this module

    from orch_protocol.core.errors import StoreError
    from orch_worker.system.atomic_write import atomic_write

    token, path = os.urandom(TOKEN_BYTES).hex(), Path(folder, TOKEN_FILE)
    try:
        # If only a part of the token were stored, processes with the whole token would not be found.
        with atomic_write(path, sync="none", locked=True) as file:
            file.write(token.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}. Make the folder writable") from error
    return token


def stored_token(folder: PathLike) -> str:
    """Return the token of the run in `folder`. Return "" if there is no token."""
    try:
        with open(os.path.join(folder, TOKEN_FILE), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def processes_with_token(proc: str = "/proc") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the pid and the environment of each readable process that has ORCH_RUN. The current process is left out."""
    try:
        names = os.listdir(proc)
    except OSError:
        return  # a system without /proc
    for name in names:
        if name.isdigit() and int(name) != os.getpid() and (environment := _environment(int(name), proc)):
            yield int(name), environment


def kill_orphans(folder: PathLike, proc: str = "/proc") -> int:
    """Kill every process of the run in `folder`. Return the number of killed processes.

    The caller must hold the run's lock and have no processes. The environment is read again after `pidfd_open`, because
    the pid may have been reused.
    """
    killed_pids: set[int] = set()
    if not (token := stored_token(folder)):
        return 0
    for _ in range(PASSES):
        pids = [pid for pid, env in processes_with_token(proc) if env["ORCH_RUN"] == token]
        if not pids:
            break
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue  # the process has exited
            try:
                if _environment(pid, proc).get("ORCH_RUN") == token:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    killed_pids.add(pid)
            except OSError:
                pass  # the process has exited, or its user has changed
            finally:
                os.close(pidfd)
    return len(killed_pids)


def _environment(pid: int, proc: str) -> dict[str, str]:
    """Return the environment of the process `pid`.

    Return {} if the process has exited or cannot be read, or if the environment has no ORCH_RUN.
    """
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    if b"ORCH_RUN=" not in raw:
        return {}
    pairs = (pair.partition("=") for pair in os.fsdecode(raw).split("\0"))
    environment = {key: value for key, _, value in pairs if key}
    return environment if "ORCH_RUN" in environment else {}


WORKTREES = "worktrees"
"""Equals `orch.worktrees.lifecycle.FOLDER`. The value is copied, because the import of that module is slow."""
SETTLED_SECONDS = 60.0
"""Minimum age in seconds of a folder that counts as abandoned. A new folder is not locked yet."""


def unnamed_runs(home: Path) -> list[Path]:
    """Return the sorted paths of unnamed run folders and of scratch folders of commands. Named runs are left out."""
    import re

    unnamed = re.compile(rf"({paths.UNNAMED_RUN_PREFIX}|{paths.SCRATCH_PREFIX})[a-f][0-9a-f]{{11}}")
    try:
        folders = sorted(
            [*paths.runs_dir(home).glob(f"{paths.UNNAMED_RUN_PREFIX}*"), *home.glob(f"{paths.SCRATCH_PREFIX}*")]
        )
    except OSError:
        return []  # the disk fails; an attempt to open a run reports this error
    return [folder for folder in folders if unnamed.fullmatch(folder.name) and folder.is_dir()]


def sweep_runs(home: Path) -> list[tuple[Path, int]]:
    """Remove the unnamed runs and scratch folders of programs that were killed.

    Return each removed folder, with the number of processes that were still running and were killed.
    """
    import contextlib
    import time

    from orch_protocol.core.errors import OrchError
    from orch_worker.session.log.lock import FolderLock

    removed = []
    for folder in unnamed_runs(home):
        try:
            if time.time() - folder.stat().st_mtime < SETTLED_SECONDS:
                continue
            lock = FolderLock.acquire(folder)
        except (OrchError, OSError):
            continue  # the folder is in use, or another process has just removed it
        try:
            runs = [folder, *paths.runs_dir(folder).glob("*")]
            removed.append((folder, sum(kill_orphans(run) for run in runs)))
            for run in runs:
                with contextlib.suppress(OrchError, OSError):  # the socket may be in another folder
                    os.unlink(paths.root_socket(run))
            remove_run(folder)
        finally:
            lock.release()
    return removed


def remove_git_scratch(folder: Path) -> None:
    """Remove files left in the folder of a run by git commands of a killed root.

    The caller must hold the run's lock.
    """
    if (folder / WORKTREES).is_dir():
        from ...worktrees.lifecycle import remove_scratch

        remove_scratch(folder)


def remove_run(folder: Path) -> None:
    """Remove the folder of a run that has ended. Worktrees of agents with changes remain."""
    import shutil

    if (folder / WORKTREES).is_dir():
        from ...worktrees.lifecycle import remove_clean_worktrees

        if not remove_clean_worktrees(folder):
            for path in folder.iterdir():
                if path.name != WORKTREES:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            return
    shutil.rmtree(folder, ignore_errors=True)
