"""Ledgers of many agents: one piece of work at a time with each, as many kept as are needed, none for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_history import at_once
from orch.archival.store.archive_pool import ArchivePool, OpenArchives
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import user
from orch_worker.session.transcript import Transcript
from virtual_clock import passed, virtual


class Threads:
    """Threads that do what they were given when they are told to."""

    def __init__(self) -> None:
        self.given: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.given.append((lambda: work(*arguments), future))
        return future

    async def do(self) -> None:
        """Do the oldest thing that was given, and let everybody take note."""
        work, future = self.given.pop(0)
        if not future.cancelled():
            future.set_result(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def path(_: OpenArchives) -> str:
    """Return something."""
    return str(_.ledger.path)


@virtual
async def test_work_is_done_with_the_shelves_of_the_folder() -> None:
    """And its result is the caller's, its error too."""
    stacks = ArchivePool(at_once)
    assert await stacks.work(Path("/a"), path) == "/a/session.jsonl"

    def wrong(_: OpenArchives, what: str) -> None:
        raise ValueError(what)

    with pytest.raises(ValueError, match="no"):
        await stacks.work(Path("/a"), wrong, "no")
    await stacks.close()


@virtual
async def test_one_at_a_time_though_the_caller_gave_up() -> None:
    """A thread cannot be stopped: who comes next waits for it, else two would read one ledger at once."""
    threads = Threads()
    stacks = ArchivePool(threads)
    first = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(1)
    first.cancel()
    second = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(1)
    assert first.cancelled()
    assert len(threads.given) == 1  # the first one's
    await threads.do()
    assert len(threads.given) == 1
    await threads.do()
    assert await second == "/a/session.jsonl"
    await stacks.close()


@virtual
async def test_other_folders_do_not_wait() -> None:
    """Each has its own turn."""
    threads = Threads()
    stacks = ArchivePool(threads)
    both = [asyncio.ensure_future(stacks.work(Path(name), path)) for name in ("/a", "/b")]
    await passed(1)
    assert len(threads.given) == 2
    await threads.do()
    await threads.do()
    await asyncio.gather(*both)
    await stacks.close()


@virtual
async def test_what_nobody_asks_for_is_given_up() -> None:
    """After a while, or when there are too many: those first that were not used for longest."""
    stacks = ArchivePool(at_once, most=3, seconds=600)
    for name in "abcd":
        await stacks.work(Path("/", name), path)
        await passed(1)
    assert [folder.name for folder in stacks.folders()] == ["b", "c", "d"]
    await passed(590)
    await stacks.work(Path("/b"), path)
    await passed(1000)
    assert [folder.name for folder in stacks.folders()] == []
    await stacks.close()


@virtual
async def test_what_is_given_up_is_forgotten_and_read_again(tmp_path: Path) -> None:
    """Nothing of it stays in memory, and whoever asks again finds it as it was."""
    stacks = ArchivePool(at_once, seconds=10)
    seen: list[OpenArchives] = []

    def use(shelves: OpenArchives) -> int:
        seen.append(shelves)
        shelves.catch_up()
        shelves.search.search("x", 1)
        return len(shelves.ledger.view.items)

    transcript = Transcript.open(tmp_path, agent="a", cwd="/")
    transcript.message(user("x"), "q")
    assert await stacks.work(tmp_path, use) == 1
    await passed(30)
    assert seen[0].ledger.view.items == []
    assert seen[0].search._index is None
    assert await stacks.work(tmp_path, use) == 1
    await stacks.close()
    transcript.close()


@virtual
async def test_what_is_at_work_is_not_given_up() -> None:
    """However long it takes and however many there are."""
    threads = Threads()
    stacks = ArchivePool(threads, most=0, seconds=10)
    working = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(100)
    assert len(threads.given) == 1
    await threads.do()
    assert await working
    await threads.do()  # it is closed
    assert stacks.folders() == []
    await stacks.close()


@virtual
async def test_closed_in_the_middle() -> None:
    """What is under way is waited for, but not for ever; then nothing more is begun, and it says why."""
    threads = Threads()
    stacks = ArchivePool(threads)
    working = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(1)
    closing = asyncio.ensure_future(stacks.close())
    await passed(1)
    assert not closing.done()
    with pytest.raises(OrchError, match="being closed"):
        await stacks.work(Path("/a"), path)
    await passed(2)
    assert closing.done()
    await threads.do()
    assert await working == "/a/session.jsonl"
