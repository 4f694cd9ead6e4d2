"""An agent whose session is not stored, as a real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.worker_processes import END, register_end
from orch import ScriptedBackend
from orch_worker.system.linux import LINUX

Open = Any

pytestmark = pytest.mark.skipif(not LINUX or not Path("/dev/shm").is_dir(), reason="there is no memory to use")


def holding(folder: Path, word: bytes) -> list[Path]:
    """Return the files below `folder` that contain `word`."""
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


@pytest.mark.parametrize("world", ["zygote"], indirect=True)
async def test_ephemeral_session_survives_its_process_but_not_its_root(world: Open, home: Path, tmp_path: Path) -> None:
    """No file in the home, including the logs, contains the text of the session."""
    o = await world(run="r")
    register_end(o)
    code = {"tool": "run_python", "input": {"code": "print('secret'); import os; os.kill(os.getpid(), 9)"}}
    script = ScriptedBackend(["secret one", code, END, "secret two"])
    tools = ["run_python", "end_process"]
    agent = await o.spawn("a secret", tools=tools, backend=script, cwd=tmp_path, persist=False)
    assert (await agent.query("secret?")).text == "secret one"
    folder = Path((await agent.state()).folder)
    assert holding(folder, b"secret")
    await agent.cancel(hard=True)
    with pytest.raises(Exception, match="died"):
        await agent.query("secret!")
    assert (await agent.query("and?")).text == "secret two"
    assert holding(home, b"secret") == []
    await o.close()
    assert not folder.parent.exists()
