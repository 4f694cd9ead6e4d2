"""Forks of the user's program: the child uses no locks and no archiver of the parent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from message_shapes import SHAPES, work
from orch.api.archiver import Archiver
from orch_protocol.agent.config import ArchivalConfig, TriggerConfig
from orch_protocol.core.errors import StoreError
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.transcript import Transcript


@contextmanager
def fork_that_stays() -> Iterator[None]:
    """A fork of this process that does nothing until the block ends."""
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        its.send(b"!")
        its.recv(1)
        os._exit(0)
    its.close()
    try:
        assert ours.recv(1) == b"!"  # the child runs, and has called its fork handlers
        yield
    finally:
        ours.close()
        os.waitpid(child, 0)


def test_forked_child_keeps_no_folder_locked(tmp_path: Path) -> None:
    """The owner can release and take its locks while a fork of the process runs."""
    run, session = FolderLock.acquire(tmp_path), Transcript.open(tmp_path / "s", agent="a", cwd="/")
    with fork_that_stays():
        run.release()
        session.close()
        FolderLock.acquire(tmp_path).release()
        Transcript.open(tmp_path / "s", agent="a", cwd="/").close()


def test_forked_child_cannot_use_an_archiver(tmp_path: Path) -> None:
    """The child gets a StoreError, because two writers would damage the file."""
    config = ArchivalConfig(profile="seed", trigger=TriggerConfig(token_threshold=50, tool_call_threshold=1))
    with Archiver(tmp_path, "anthropic", config=config) as archiver:
        found = False
        if (child := os.fork()) == 0:
            try:
                archiver.fold(work(SHAPES[0], 1, steps=4, size=400))
            except StoreError as error:
                found = "before a fork" in str(error)
            finally:
                os._exit(0 if found else 1)
        assert os.waitpid(child, 0)[1] == 0
        turn = work(SHAPES[0], 2, steps=4, size=400)
        assert archiver.unfold(archiver.fold(turn)) == turn
