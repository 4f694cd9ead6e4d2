"""The user's program may fork at any time; the child has no part in what is ours."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orch_worker.lock import FolderLock
from orch_worker.transcript import Transcript


@contextmanager
def fork_that_stays() -> Iterator[None]:
    """A child of this process that does nothing until the block ends."""
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        its.send(b"!")
        its.recv(1)
        os._exit(0)
    its.close()
    try:
        assert ours.recv(1) == b"!"  # from now on it runs our program, and has tidied up
        yield
    finally:
        ours.close()
        os.waitpid(child, 0)


def test_a_fork_keeps_no_folder_locked(tmp_path: Path) -> None:
    """The owner gives its folders up and takes them again, whatever its children still do."""
    run, session = FolderLock.acquire(tmp_path), Transcript.open(tmp_path / "s", agent="a", cwd="/")
    with fork_that_stays():
        run.release()
        session.close()
        FolderLock.acquire(tmp_path).release()
        Transcript.open(tmp_path / "s", agent="a", cwd="/").close()
