"""A folder for something that is over when the command is."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_protocol.core.errors import StoreError
from orch_protocol.core.ids import new_id
from orch_worker.session.log.lock import FolderLock

from ..config import paths
from ..config.interrupts import Presses
from ..supervisor.recovery.orphan_cleanup import sweep_runs

__all__ = ["scratch"]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder inside ORCH_HOME that is gone afterwards, with whatever had to be made for it.

    That of a command that was killed is removed by the next one. Ctrl-C ends what is done with it; that it comes again,
    as it does from who is in a hurry, does not end the tidying.
    """
    home = paths.home()
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    sweep_runs(home)
    with Presses(1), contextlib.ExitStack() as held:
        folder = home / f"{paths.SCRATCH_PREFIX}{new_id()}"
        try:
            paths.private_dir(folder)
            with contextlib.suppress(StoreError):  # where none can be locked, none is removed by others
                held.callback(FolderLock.acquire(folder).release)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for folder in made:
                try:
                    folder.rmdir()
                except OSError:
                    break  # somebody else uses it by now
