"""A writer is killed repeatedly while it appends to one file: acknowledged appends stay, once and in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.log_reader import load

HEADER = b'{"type":"test","version":1}'
ROUNDS = 20
SECONDS = 30.0
WRITER = """
import sys
from pathlib import Path
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.lock import FolderLock

path = Path(sys.argv[1])
lock = FolderLock.acquire(path.parent)
log, loaded = AppendLog.open(path, header=b'{"type":"test","version":1}')
n = len(loaded.objects)
while True:
    objects = [b'{"n":%d,"text":"%b"}' % (n + i, b"x" * size) for i, size in enumerate((10, 300000, 5000))]
    log.append(*objects)
    n += 3
    print(n, flush=True)
"""


def killed_after(path: Path, acks: int) -> int:
    """Kill a writer after it has acknowledged `acks` appends. Return the last acknowledged count."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as writer:
        assert writer.stdout is not None
        heard = [writer.stdout.readline() for _ in range(acks)]
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=SECONDS)
    return int([*heard, *rest.splitlines(keepends=True)][-1])


def test_acknowledged_appends_survive_kills(tmp_path: Path) -> None:
    """The file contains all acknowledged appends and no partial ones, and the next writer gets the lock."""
    path = tmp_path / "log.jsonl"
    chance = random.Random(7)
    for _ in range(ROUNDS):
        acknowledged = killed_after(path, chance.randint(1, 8))
        loaded = load(path, header=HEADER)
        assert [json.loads(object)["n"] for object in loaded.objects] == list(range(len(loaded.objects)))
        assert len(loaded.objects) % 3 == 0
        assert len(loaded.objects) >= acknowledged
        assert loaded.damage == []
    log, loaded = AppendLog.open(path, header=HEADER)
    log.close()
    assert load(path, header=HEADER).report == ""
