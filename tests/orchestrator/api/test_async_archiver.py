"""AsyncArchiver: the methods of Archiver in an event loop, from several tasks, with async summaries."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

from message_shapes import SHAPES, work
from orch import ArchivalConfig, Archiver, AsyncArchiver, Orchestrator
from orch.archival.store.store import ArchiveStore
from orch.supervisor import ephemeral_sessions
from orch_protocol.agent.config import SummaryConfig
from orch_protocol.core.errors import ConfigError, LockedError, StoreError
from orchestrator.root_double import World

SHAPE = SHAPES[0]


async def test_results_are_those_of_the_blocking_archiver(tmp_path: Path) -> None:
    """A conversation that is folded before each request is the same, and the request too."""
    with Archiver(tmp_path / "a", SHAPE.name, "seed") as blocking:
        async with AsyncArchiver(tmp_path / "b", SHAPE.name, "seed") as archiver:
            expected: list[Any] = []
            live: list[Any] = []
            for number in range(3):
                turn = work(SHAPE, number, steps=6)
                expected, live = blocking.fold([*expected, *turn]), await archiver.fold([*live, *turn])
            [*_, record] = await archiver.archives()
            same = {own.id: other.id for own, other in zip(await archiver.archives(), blocking.archives(), strict=True)}
            request, text = await archiver.request(live), await archiver.explain()
            for id, other in same.items():
                text = text.replace(id, other)
            assert text == blocking.explain()
            assert len(request) == len(blocking.request(expected))
            assert await archiver.unfold(live) == blocking.unfold(expected)
            assert [each.id for each in await archiver.live(live)] == list(same)
            assert await archiver.block(live) == request[-1]["content"][0]["text"]
            assert [hit.id for hit in await archiver.search("needle_2_1")] == [record.id]
            assert "needle_2_1" in str(await archiver.read_archive(record.id, 1, None))
            assert "needle_2_1" in await archiver.call("search_archive", {"query": "needle_2_1"})
            assert (archiver.tools(), archiver.notes) == (blocking.tools(), [])
            assert [each.id for each in archiver.folded] == [record.id]
            await archiver.observe(live, 5000)


def test_both_classes_have_the_same_methods_and_parameters() -> None:
    """A method or parameter of one class that the other lacks fails this test."""
    own = {"start", "archiver"}
    missing = {name for name in dir(Archiver) if not name.startswith("_")} - set(dir(AsyncArchiver))
    assert missing == set()
    for name in set(dir(AsyncArchiver)) - own - {"notes", "folded"}:
        if not name.startswith("_"):
            parameters = [inspect.signature(getattr(each, name)).parameters for each in (Archiver, AsyncArchiver)]
            assert [*parameters[0]] == [*parameters[1]], name
    assert [*inspect.signature(Archiver).parameters] == [*inspect.signature(AsyncArchiver).parameters]


async def test_calls_of_several_tasks_run_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop continues during a fold, and a canceled fold ends before the next call begins."""
    entered, leave, order, loop = asyncio.Event(), threading.Event(), [], asyncio.get_running_loop()
    add = ArchiveStore.add

    def slow(self: ArchiveStore, *given: Any) -> Any:
        loop.call_soon_threadsafe(entered.set)
        order.append("add")
        assert leave.wait(20)
        order.append("added")
        return add(self, *given)

    monkeypatch.setattr(ArchiveStore, "add", slow)
    turn = work(SHAPE, 1, steps=6)
    async with AsyncArchiver(tmp_path, SHAPE.name, "seed") as archiver:
        folding = asyncio.create_task(archiver.fold(turn))
        await entered.wait()
        folding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await folding
        listing = asyncio.create_task(archiver.archives(merged=True))
        await asyncio.sleep(0)
        assert not listing.done()
        leave.set()
        assert [record.task for record in await listing] == ["Look into module 1"]
        assert len(await archiver.fold(turn)) == 2
        assert len(await archiver.archives(merged=True)) == 1
    assert order == ["add", "added"] * 2


async def test_async_function_writes_summaries(tmp_path: Path) -> None:
    """The function runs in the event loop of the caller, and its time limit applies."""
    loops = []

    async def summarize(_: Any) -> str:
        loops.append(asyncio.get_running_loop())
        if len(loops) == 2:
            await asyncio.Event().wait()
        return "The valve is worn."

    config = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph", timeout_seconds=0.2))
    async with AsyncArchiver(tmp_path, SHAPE.name, summarize=summarize, config=config) as archiver:
        live = await archiver.fold(work(SHAPE, 1, steps=6, size=400))
        assert "The valve is worn." in str(live)
        live = await archiver.fold([*live, *work(SHAPE, 2, steps=6, size=400)])
        assert "it did not arrive within 0.2 s" in archiver.notes[0]
    assert loops == [asyncio.get_running_loop()] * 2


@pytest.mark.parametrize("in_memory", [True, False])
async def test_question_uses_the_given_orchestrator(
    tmp_path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder is a subagent of the caller's root, and ends after the answer. No copy of the archive remains."""
    if not in_memory:
        monkeypatch.setattr(ephemeral_sessions, "MEMORY", tmp_path / "missing")
    async with World(tmp_path / "root") as o, AsyncArchiver(tmp_path / "a", SHAPE.name, "seed", orchestrator=o) as a:
        live = await a.fold(work(SHAPE, 1, steps=6))
        assert "needle_1_1" in await a.query((await a.live(live))[0].id, "Where is needle_1_1?")
        assert [row.status for row in await o.agents(all=True)] == ["killed"]
        files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
        assert not any(b"needle_1_1" in path.read_bytes() for path in files)


async def test_errors_are_those_of_the_blocking_archiver(tmp_path: Path) -> None:
    """Before `start`, the error says how to open the folder; after an error, the archiver can be used."""
    archiver = AsyncArchiver(tmp_path, SHAPE.name)
    with pytest.raises(StoreError, match="use `async with AsyncArchiver"):
        await archiver.fold([])
    async with archiver:
        await archiver.start()
        with pytest.raises(LockedError, match="this program has opened the folder before"):
            await AsyncArchiver(tmp_path, SHAPE.name).start()
        with pytest.raises(ConfigError, match="message 0"):
            await archiver.fold([7])
        assert await archiver.fold([SHAPE.user("hi")]) == [SHAPE.user("hi")]
    await archiver.close()
    with pytest.raises(StoreError, match="is closed"):
        await archiver.search("x")
    with pytest.raises(ConfigError, match="must be an AsyncOrchestrator"):
        AsyncArchiver(tmp_path, SHAPE.name, orchestrator=Orchestrator.__new__(Orchestrator))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown message format"):
        await AsyncArchiver(tmp_path, "xml").start()
