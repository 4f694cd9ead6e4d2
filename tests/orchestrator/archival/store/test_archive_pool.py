"""The pool of catalogs: one job per folder at a time, a limited number of catalogs, and eviction of idle ones."""

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
    """A fake thread pool that runs a job when the test calls `do`."""

    def __init__(self) -> None:
        self.given: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.given.append((lambda: work(*arguments), future))
        return future

    async def do(self) -> None:
        """Run the oldest job, and let the waiting tasks continue."""
        work, future = self.given.pop(0)
        if not future.cancelled():
            future.set_result(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def path(_: OpenArchives) -> str:
    return str(_.archives.path)


@virtual
async def test_work_runs_with_the_catalog_of_the_folder() -> None:
    """The caller receives the results and errors of its function."""
    stacks = ArchivePool(at_once)
    assert await stacks.work(Path("/a"), path) == "/a/session.jsonl"

    def wrong(_: OpenArchives, what: str) -> None:
        raise ValueError(what)

    with pytest.raises(ValueError, match="no"):
        await stacks.work(Path("/a"), wrong, "no")
    await stacks.close()


@virtual
async def test_work_in_one_folder_is_serialized() -> None:
    """A later job waits even for the thread of a cancelled job."""
    threads = Threads()
    stacks = ArchivePool(threads)
    first = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(1)
    first.cancel()
    second = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(1)
    assert first.cancelled()
    assert len(threads.given) == 1  # only the first job
    await threads.do()
    assert len(threads.given) == 1
    await threads.do()
    assert await second == "/a/session.jsonl"
    await stacks.close()


@virtual
async def test_work_in_different_folders_is_concurrent() -> None:
    """A job does not wait for jobs in other folders."""
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
async def test_idle_catalogs_are_evicted() -> None:
    """Catalogs are evicted after a delay or above a limit, the least recently used first."""
    stacks = ArchivePool(at_once, limit=3, seconds=600)
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
async def test_evicted_catalog_is_read_again(tmp_path: Path) -> None:
    """The catalog has the same content again."""
    stacks = ArchivePool(at_once, seconds=10)
    seen: list[OpenArchives] = []

    def use(opened: OpenArchives) -> int:
        seen.append(opened)
        opened.catch_up()
        opened.search.search("x", 1)
        return len(opened.archives.view.items)

    transcript = Transcript.open(tmp_path, agent="a", cwd="/")
    transcript.message(user("x"), "q")
    assert await stacks.work(tmp_path, use) == 1
    await passed(30)
    assert seen[0].archives.view.items == []
    assert seen[0].search._index is None
    assert await stacks.work(tmp_path, use) == 1
    await stacks.close()
    transcript.close()


@virtual
async def test_catalog_in_use_is_not_evicted() -> None:
    """Neither the time nor the limit evicts a catalog while a job uses it."""
    threads = Threads()
    stacks = ArchivePool(threads, limit=0, seconds=10)
    working = asyncio.ensure_future(stacks.work(Path("/a"), path))
    await passed(100)
    assert len(threads.given) == 1
    await threads.do()
    assert await working
    await threads.do()  # the catalog is closed
    assert stacks.folders() == []
    await stacks.close()


@virtual
async def test_close_waits_for_work_up_to_a_limit() -> None:
    """The pool refuses later requests with the reason."""
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
