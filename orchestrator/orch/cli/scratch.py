"""A folder for something that is over when the command is."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_protocol.ids import new_id

from .. import paths

__all__ = ["scratch"]


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield a folder inside ORCH_HOME that is gone afterwards, with whatever had to be made for it."""
    home = paths.home()
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    folder = paths.private_dir(home / f"{name}-{new_id()}")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for folder in made:
            try:
                folder.rmdir()
            except OSError:
                break  # somebody else uses it by now
