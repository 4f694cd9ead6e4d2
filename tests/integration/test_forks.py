"""The user's program may fork at any time; the child has no part in what is ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orch_worker.lock import FolderLock
from orch_worker.transcript import Transcript


@contextmanager
def fork_that_stays() -> Iterator[None]:
    """A child of this process that does nothing until the block ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_fork_keeps_no_folder_locked(tmp_path: Path) -> None:
    """The owner gives its folders up and takes them again, whatever its children still do."""
    run, session = FolderLock.acquire(tmp_path), Transcript.open(tmp_path / "s", agent="a", cwd="/")
    with fork_that_stays():
        run.release()
        session.close()
        FolderLock.acquire(tmp_path).release()
        Transcript.open(tmp_path / "s", agent="a", cwd="/").close()
