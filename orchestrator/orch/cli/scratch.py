"""A temporary folder for the duration of a command."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_protocol.core.errors import StoreError
from orch_protocol.core.ids import new_id
from orch_worker.session.log.lock import FolderLock

from ..config import paths
from ..config.interrupts import InterruptLimit
from ..supervisor.recovery.orphan_cleanup import sweep_runs

__all__ = ["scratch"]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder inside ORCH_HOME. Afterwards remove this folder and the parent folders created for it.

    The folder of a killed command is removed by the next command. Ctrl-C ends the block. A second Ctrl-C does not
    interrupt the removal.
    """
    home = paths.home()
    created = [folder for folder in (home, *home.parents) if not folder.exists()]
    sweep_runs(home)
    with InterruptLimit(1), contextlib.ExitStack() as stack:
        folder = home / f"{paths.SCRATCH_PREFIX}{new_id()}"
        try:
            paths.private_dir(folder)
            with contextlib.suppress(StoreError):  # without file locks, no other command removes it
                stack.callback(FolderLock.acquire(folder).release)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for folder in created:
                try:
                    folder.rmdir()
                except OSError:
                    break  # another process uses the parent folder
