"""Find and end the processes that a dead root left behind.

Every process of a run carries the run's token in its environment (ORCH_RUN). A root that ends takes its processes
along, unless its shim is killed in the same moment; then the next root of the run ends what is left. The token is
random and stored in the run folder, so that a command of an agent does not learn where that folder is.
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

__all__ = ["kill_orphans", "processes_with_token", "run_token", "stored_token", "sweep_runs", "unnamed_runs"]

TOKEN_FILE = "token"
TOKEN_BYTES = 16

PASSES = 10
"""How often to look again: one that is just forking may have a child that was not there before."""


def run_token(folder: PathLike) -> str:
    """Return the token of the run in `folder`, stored there by the first call. The caller holds the run's lock.

    Raises StoreError when it cannot be stored.
    """
    if token := stored_token(folder):
        return token
    token, path = os.urandom(TOKEN_BYTES).hex(), os.path.join(folder, TOKEN_FILE)
    try:
        # Renamed into place: a half-written token would hide the processes that carry the whole one.
        with open(f"{path}.new", "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(token)
        os.replace(f"{path}.new", path)
    except OSError as error:
        from orch_protocol.core.errors import StoreError

        raise StoreError(f"cannot write {path}: {error.strerror}. Make the folder writable") from error
    return token


def stored_token(folder: PathLike) -> str:
    """Return the token of the run in `folder`, "" when it has none."""
    try:
        with open(os.path.join(folder, TOKEN_FILE), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def processes_with_token(proc: str = "/proc") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield pid and environment of each process we may look into that carries ORCH_RUN, but for this one."""
    try:
        names = os.listdir(proc)
    except OSError:
        return  # a system without such a list
    for name in names:
        if name.isdigit() and int(name) != os.getpid() and (found := _environment(int(name), proc)):
            yield int(name), found


def kill_orphans(folder: PathLike, proc: str = "/proc") -> int:
    """Kill every process of the run in `folder` and return how many. The caller holds the run's lock and runs nothing.

    The environment is read again once the process is held by a pidfd: its pid may have been reused.
    """
    ended: set[int] = set()
    if not (token := stored_token(folder)):
        return 0
    for _ in range(PASSES):
        found = [pid for pid, env in processes_with_token(proc) if env["ORCH_RUN"] == token]
        if not found:
            break
        for pid in found:
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue  # gone meanwhile
            try:
                if _environment(pid, proc).get("ORCH_RUN") == token:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    ended.add(pid)
            except OSError:
                pass  # gone, or it became another user
            finally:
                os.close(pidfd)
    return len(ended)


def _environment(pid: int, proc: str) -> dict[str, str]:
    """Return the environment of a process of ours, nothing for one that is gone, somebody else's or not marked."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    if b"ORCH_RUN=" not in raw:
        return {}
    pairs = (pair.partition("=") for pair in os.fsdecode(raw).split("\0"))
    found = {key: value for key, _, value in pairs if key}
    return found if "ORCH_RUN" in found else {}


SETTLED_SECONDS = 60.0
"""How old a folder is before it may be taken for left behind: one that is just made is not locked yet."""


def unnamed_runs(home: Path) -> list[Path]:
    """Return the folders of unnamed runs and scratch folders of commands, sorted. Named runs are kept."""
    import re

    unnamed = re.compile(rf"({paths.UNNAMED_RUN_PREFIX}|{paths.SCRATCH_PREFIX})[a-f][0-9a-f]{{11}}")
    try:
        found = sorted(
            [*paths.runs_dir(home).glob(f"{paths.UNNAMED_RUN_PREFIX}*"), *home.glob(f"{paths.SCRATCH_PREFIX}*")]
        )
    except OSError:
        return []  # the disk fails, which whoever opens a run is told
    return [folder for folder in found if unnamed.fullmatch(folder.name) and folder.is_dir()]


def sweep_runs(home: Path) -> list[tuple[Path, int]]:
    """Remove the unnamed runs and scratch folders of programs that were killed.

    Returns each folder with the number of its processes that were still running and were killed.
    """
    import contextlib
    import shutil
    import time

    from orch_protocol.core.errors import OrchError
    from orch_worker.session.log.lock import FolderLock

    swept = []
    for folder in unnamed_runs(home):
        try:
            if time.time() - folder.stat().st_mtime < SETTLED_SECONDS:
                continue
            lock = FolderLock.acquire(folder)
        except (OrchError, OSError):
            continue  # somebody works in it, or has just removed it
        try:
            runs = [folder, *paths.runs_dir(folder).glob("*")]
            swept.append((folder, sum(kill_orphans(run) for run in runs)))
            for run in runs:
                with contextlib.suppress(OrchError, OSError):  # it may lie elsewhere
                    os.unlink(paths.root_socket(run))
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            lock.release()
    return swept
