"""Writing something out for a user: whole or not at all, and readable for nobody else."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_out"]


def write_out(output: str, pages: Iterable[str]) -> None:
    """Write `pages` to the file `output`, whole or not at all; a link goes on leading where it leads.

    Raises OSError, and whatever `pages` raises: then the file is as it was.
    """
    if os.path.exists(output) and not os.path.isfile(output):
        # A pipe, a device: there is nothing to put in its place.
        with open(output, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(pages)
        return
    target = os.path.realpath(output)
    beside = f"{target}.{os.getpid()}.tmp"
    try:
        # What was said to agents is for their user alone.
        private = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(private, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(pages)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:
        try:
            os.unlink(beside)
        except OSError:
            pass  # it was never made
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = output  # as the user knows it
        raise
