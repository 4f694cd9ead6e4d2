"""A folder for something that is over when the command is."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_protocol.ids import new_id

from .. import paths
from ..interrupts import Presses

__all__ = ["scratch"]


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield a folder inside ORCH_HOME that is gone afterwards, with whatever had to be made for it.

    Ctrl-C ends what is done with it; that it comes again, as it does from who is in a hurry, does not end the tidying.
    """
    home = paths.home()
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    with Presses(1):
        folder = home / f"{name}-{new_id()}"
        try:
            yield paths.private_dir(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for folder in made:
                try:
                    folder.rmdir()
                except OSError:
                    break  # somebody else uses it by now
