"""Deletions of sessions that are interrupted at each file operation, by a kill or by a full disk."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from chaos.interrupted_deletion import RUN, Delete, Fault, interrupted
from orchestrator.root_double import World, nesting, opened
from orchestrator.services.sessions.test_retention import answers, ended
from virtual_clock import until


async def two_ended(world: World) -> list[str]:
    return [(await ended(world)).id for _ in range(2)]


async def parent_and_child(world: World) -> list[str]:
    spawn = {"tool": "spawn_subagent", "input": {"task": "first word"}}
    top = await world.scripted(spawn, "first word", tools=["spawn_subagent"], name="top")
    await top.query("?")
    await top.kill()
    agents = list(world.supervisor.tree.agents)
    await until(lambda: not any(node.running for node in agents))
    return [node.spec.id for node in agents]


@pytest.mark.parametrize("fault", ["kill", "full disk"])
def test_interrupted_prune_leaves_each_session_whole_or_deleted(tmp_path: Path, fault: Fault) -> None:
    """The next root removes the deleted sessions completely, and the other sessions have their answers."""
    found = deletions(tmp_path, two_ended, lambda world: world.sessions.prune(older=0), fault)
    assert {*found} == {0, 1, 2}
    assert len(found) > 8


@pytest.mark.parametrize("fault", ["kill", "full disk"])
def test_interrupted_forget_leaves_all_sessions_or_none(tmp_path: Path, fault: Fault) -> None:
    """`forget` deletes a session and the session of its subagent with one write to the journal."""
    found = deletions(tmp_path, parent_and_child, lambda world: world.sessions.forget("1"), fault)
    assert {*found} == {0, 2}
    assert len(found) > 6


def deletions(tmp_path: Path, make: Callable[[World], Awaitable[list[str]]], delete: Delete, fault: Fault) -> list[int]:
    """Interrupt `delete` at each file operation, and return how many sessions were deleted each time.

    The other sessions must exist with their answers.
    """
    home, before = tmp_path / "home", tmp_path / "before"

    async def past() -> list[str]:
        async with World(home, run=RUN, config=nesting()) as world:
            return await make(world)

    async def gone() -> int:
        async with opened(home, run=RUN, config=nesting()) as world:
            deleted = {node.spec.id for node in world.supervisor.tree.agents if node.deleted}
            left = set(ids) - deleted
            assert {path.name for path in (home / "sessions").iterdir()} == left
            asked = [node.spec.id for node in world.supervisor.tree.agents if node.queries and node.spec.id in left]
            for id in asked:
                assert (await (await world.get(id)).collect(again=True)).text == "first word"
            assert answers(world) == ["first word"] * len(asked)
            if not left:
                assert b"first word" not in world.supervisor.run_events.path.read_bytes()
            return len(deleted)

    ids = asyncio.run(past())
    home.rename(before)
    found: list[int] = []
    dies = True
    while dies:
        shutil.copytree(before, home)
        dies = interrupted(home, nesting(), delete, len(found) + 1, fault)
        found.append(asyncio.run(gone()))
        shutil.rmtree(home)
    assert fault != "kill" or found == sorted(found)
    return found
