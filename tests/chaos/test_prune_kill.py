"""kill -9 of whoever deletes archives, at each thing it does to a file: all is there, or what was to go is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_history import Life, steps
from orch.archival.store.deletion import HOLDERS
from orch_protocol.core.errors import ArchiveDeletedError
from orch_protocol.core.messages import user
from orch_worker.session.transcript import Transcript

SECONDS = 30.0
EVER = "9999-01-01T00:00:00.000Z"
DELETER = """
import os, signal, sys
from pathlib import Path
from orch.archival.store.deletion import delete_archives
from orch.archival.store.session_archives import SessionArchives
from orch.archival.store.search import Search

left = int(sys.argv[2])

def deadly(act):
    def acting(*arguments, **named):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(*arguments, **named)
    return acting

for name in ("open", "write", "fsync", "replace", "unlink", "rmdir", "ftruncate", "pwrite"):
    setattr(os, name, deadly(getattr(os, name)))
ledger = SessionArchives(Path(sys.argv[1]))
delete_archives(ledger, Search(ledger), sys.argv[3], "2026-11-21T10:20:30.400Z")
"""


def killed(folder: Path, after: int) -> bool:
    """Delete everything in `folder`, to be killed at the so-many-th thing that is done to a file; return whether."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", DELETER, str(folder), str(after), EVER]
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


@pytest.mark.timeout(240)
def test_whole_or_gone_wherever_it_is_killed(tmp_path: Path) -> None:
    """Each time the conversation is what it was, and a second try, after which nothing is left, need not be told."""
    life = Life(tmp_path / "before")
    life.turn(*steps(2, "needle", 30))
    [one] = life.archive()
    life.turn(*steps(2, "thorn", 30))
    [other] = life.archive()
    asked = Transcript.open(life.folder / HOLDERS / one, agent=one, cwd="/")
    asked.message(user("needle?"))
    asked.close()
    life.search("needle0")
    life.forget()
    said, messages = {id: life.read(id) for id in (one, other)}, life.transcript.session.messages
    life.close()
    seen = {"whole": 0, "gone": 0}
    after = 1
    while True:
        folder = tmp_path / str(after)
        shutil.copytree(tmp_path / "before", folder)
        again = killed(folder, after)
        now = Life(folder)
        assert now.transcript.session.messages == messages
        assert now.transcript.repaired == ""
        if b"word0" in now.transcript.path.read_bytes():
            assert {id: now.read(id) for id in (one, other)} == said
            assert [hit.id for hit in now.search("needle0") if hit.exact] == [one]
            seen["whole"] += 1
        else:
            for id in (one, other):
                with pytest.raises(ArchiveDeletedError):
                    now.read(id)
            assert now.search("needle0") == []
            seen["gone"] += 1
        now.prune(EVER)
        for path in folder.rglob("*"):
            assert path.is_dir() or b"word0" not in path.read_bytes()
        assert not list((folder / HOLDERS).iterdir())
        assert not list(folder.glob("*.new"))
        now.close()
        shutil.rmtree(folder)
        if not again:
            break
        after += 1
    assert seen["whole"] > 5
    assert seen["gone"] > 3
