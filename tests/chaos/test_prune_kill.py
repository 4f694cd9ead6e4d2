"""Deletions of archives that are interrupted at each file operation: archives are unchanged or completely deleted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_history import Life, steps
from chaos.interrupted_deletion import RUN, Fault, interrupted
from orch.archival.store.deletion import HOLDERS, delete_archives, finish_deletion
from orch.archival.store.search import Search
from orch.archival.store.session_archives import SessionArchives
from orch_protocol.core.errors import ArchiveDeletedError
from orch_protocol.core.messages import user
from orch_worker.session.log.log_reader import last_position
from orch_worker.session.transcript import Transcript
from orchestrator.root_double import World, opened
from orchestrator.services.sessions.test_deletion import ARCHIVING, SECRET, telling

EVER = "9999-01-01T00:00:00.000Z"
CALLS = ("open", "write", "fsync", "replace", "unlink", "rmdir", "ftruncate", "pwrite")


def killed(folder: Path, after: int) -> bool:
    """Delete all archives in `folder` in a fork, and kill the fork at file operation number `after`.

    Return whether the fork was killed.
    """
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code != 0
    left = after

    def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **named)

        return acting

    try:
        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
        ledger = SessionArchives(folder)
        delete_archives(ledger, Search(ledger), EVER, "2026-11-21T10:20:30.400Z")
        finish_deletion(ledger, rewritten=True)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@pytest.mark.timeout(240)
def test_killed_prune_leaves_whole_or_pruned_files(tmp_path: Path) -> None:
    """After a kill at any file operation, the conversation is unchanged, and pruning again completes the deletion."""
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
    recorded, messages = {id: life.read(id) for id in (one, other)}, life.transcript.session.messages
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
            assert {id: now.read(id) for id in (one, other)} == recorded
            assert [hit.id for hit in now.search("needle0") if hit.exact] == [one]
            seen["whole"] += 1
        else:
            for id in (one, other):
                with pytest.raises(ArchiveDeletedError):
                    now.read(id)
            assert now.search("needle0") == []
            seen["gone"] += 1
        now.prune(EVER, killed=True)
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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["kill", "full disk"])
def test_interrupted_prune_is_undone_or_finished_by_the_next_root(tmp_path: Path, fault: Fault) -> None:
    """After an interruption at any file operation, the next root has either all archives or no deleted text.

    Archives, search, answers and the journal's last position agree. Opening the run is enough, without another prune.
    """
    home, before = tmp_path / "home", tmp_path / "before"

    def look() -> str:
        """Look."""
        return SECRET

    async def past() -> tuple[str, str]:
        async with World(home, run=RUN, config=ARCHIVING) as world:
            fields = {"tool": "look", "input": {}}, "I looked.", "No more.", "Still there."
            agent = await world.scripted(*fields, tools=[look])
            holder = (await agent.query("what is it?")).archived_to or ""
            await agent.query("and now?")
            await (await world.get(holder)).query(f"what is {SECRET}?")
            await world.archives.search(SECRET)
            return agent.id, holder

    async def deleted() -> bool:
        async with opened(home, run=RUN, config=ARCHIVING) as world:
            node = world.supervisor.tree.agents[id]
            path = Path(node.spec.folder, "session.jsonl")
            assert world.supervisor.tree.agents.rewriting == {}
            assert node.transcript == last_position(path)
            gone = bool(world.supervisor.tree.agents[holder].deleted)
            if gone:
                assert telling(home) == []
                with pytest.raises(ArchiveDeletedError):
                    await world.archives.read(holder)
            else:
                assert SECRET in str(await world.archives.read(holder))
            assert bool(await world.archives.search(SECRET)) is not gone
            assert not list(home.rglob("*.new"))
            assert (await (await world.get(id)).query("are you there?")).text == "Still there."
            return gone

    id, holder = asyncio.run(past())
    home.rename(before)
    found: list[bool] = []
    dies = True
    while dies:
        shutil.copytree(before, home)
        dies = interrupted(home, ARCHIVING, lambda world: world.archives.prune(older=0), len(found) + 1, fault)
        found.append(asyncio.run(deleted()))
        shutil.rmtree(home)
    assert fault != "kill" or found == sorted(found)
    assert found.count(False) > 5
    assert found.count(True) > 10
