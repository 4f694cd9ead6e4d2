"""kill -9 of whoever deletes sessions, before each thing that it does to a file."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orch_worker.session.log.append_log import AppendLog
from orchestrator.root_double import World, opened
from orchestrator.services.sessions.test_retention import answers, ended

STEPS = [(AppendLog, "append"), (os, "replace"), (os, "unlink"), (os, "rmdir")]


def deleted_until(home: Path, step: int) -> bool:
    """Prune all in `home` in another process, which kills itself before the so-many-th thing that it does to a file
    from then on; return whether it did."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    try:
        left = [step]

        def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
            def acting(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return act(*arguments, **named)

            return acting

        async def prune() -> None:
            async with World(home, run="mine") as world:
                for where, name in STEPS:
                    setattr(where, name, deadly(getattr(where, name)))
                await world.sessions.prune(older=0)
                os._exit(0)

        asyncio.run(prune())
    finally:
        os._exit(1)


def test_whole_or_gone_wherever_it_is_killed(tmp_path: Path) -> None:
    """kill -9 before each thing that is done to a file: both sessions are there and answer, or the next root takes away
    what is left of those that were given up, of which nothing is told any more."""
    home, before = tmp_path / "home", tmp_path / "before"

    async def past() -> list[str]:
        async with World(home, run="mine") as world:
            return [(await ended(world)).id for _ in range(2)]

    async def gone() -> int:
        async with opened(home, run="mine") as world:
            deleted = {node.spec.id for node in world.supervisor.tree.agents if node.deleted}
            left = set(ids) - deleted
            assert {path.name for path in (home / "sessions").iterdir()} == left
            assert [(await (await world.get(id)).collect(again=True)).text for id in left] == ["first word"] * len(left)
            assert answers(world) == ["first word"] * len(left)
            return len(deleted)

    ids = asyncio.run(past())
    home.rename(before)
    found: list[int] = []
    dies = True
    while dies:
        shutil.copytree(before, home)
        dies = deleted_until(home, len(found) + 1)
        found.append(asyncio.run(gone()))
        shutil.rmtree(home)
    assert found == sorted(found)
    assert {*found} == {0, 1, 2}
    assert len(found) > 8
