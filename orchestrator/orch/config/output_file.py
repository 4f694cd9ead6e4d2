"""Writes output files for a user. The files are written atomically, and only the user can read them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_output_file"]


def write_output_file(output: str, pages: Iterable[str]) -> None:
    """Write `pages` to the file `output` atomically. If `output` is a symbolic link, the link is kept.

    Raises OSError, and the errors of `pages`. After an error the file is unchanged.
    """
    if os.path.exists(output) and not os.path.isfile(output):
        # A pipe or a device cannot be replaced.
        with open(output, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(pages)
        return
    # Imported here because the thin CLI imports this module.
    from pathlib import Path

    from orch_worker.system.atomic_write import atomic_write

    target = Path(os.path.realpath(output))
    try:
        with atomic_write(target, sync="content") as file:  # mode 0600, because only the user may read transcripts
            file.writelines(page.encode(errors="replace") for page in pages)
    except OSError as error:
        if error.filename == str(target):
            error.filename = output  # the name that the user gave
        raise
