"""The summarization hook: compaction or archiving of conversations above a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncSubagent, Config, HooksConfig, ScriptedBackend
from orch.policy.hook_records import hook_lines
from orch_protocol.core.messages import Message, assistant, user
from orch_protocol.hooks.options import Summarization
from orch_protocol.session.entries import ArchiveEntry, CompactionEntry
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import World, opened

HISTORY = [message for n in range(8) for message in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 400))]


def config(archival: bool = False, **given: Any) -> Config:
    """Return a configuration with the hook and its settings `given`."""
    rules = ArchivalConfig(enabled=archival, async_=False, profile="seed")
    return Config(hooks=HooksConfig(("summarization",), summarization=Summarization(**given)), archival=rules)


async def spawned(o: World, *said: Any, history: list[Message] = HISTORY, **options: Any) -> AsyncSubagent:
    """Return an agent with the answers `said` and the conversation `history`."""
    backend = ScriptedBackend(said or ["nine", "ten", "eleven"], ["Eight questions were answered."] * 3)
    return await o.spawn("count", backend=backend, history=history, **({"tools": []} | options))


async def recorded(agent: AsyncSubagent, kind: type[Any]) -> list[Any]:
    """Return the entries of the class `kind` in the agent's session."""
    return [entry for entry in read_session(Path((await agent.state()).folder)).entries if isinstance(entry, kind)]


@pytest.mark.parametrize("bound", [{"messages": 16}, {"tokens": 600}, {"messages": 100, "tokens": 600}])
async def test_summarization_hook_compacts_once_above_its_limit(tmp_path: Path, bound: dict[str, Any]) -> None:
    """The compaction is made before the request that exceeds the limit; the next request needs no other one."""
    async with opened(tmp_path, config=config(**bound)) as o:
        agent = await spawned(o)
        assert (await agent.query("how many?")).text == "nine"
        [made] = await recorded(agent, CompactionEntry)
        assert (made.reason, made.writer) == ("hook", "model")
        assert "Eight questions were answered." in made.summary
        assert (await agent.state()).context_tokens < 400
        await agent.query("and now?")
        assert len(await recorded(agent, CompactionEntry)) == 1


async def test_summarization_hook_does_nothing_below_its_limit(tmp_path: Path) -> None:
    """A limit in percent is never reached if the context window is unknown."""
    seen: list[tuple[int, bool]] = []
    async with opened(tmp_path, config=config(pct=1, messages=18)) as o:

        @o.on("step_start", kind="observe")
        def look(event: Any, _ctx: Any) -> None:
            seen.append((event.messages, event.tokens > 600))

        agent = await spawned(o)
        await agent.query("how many?")
        assert (await recorded(agent, CompactionEntry), seen) == ([], [(17, True)])


async def test_impossible_summarization_is_not_retried_before_growth(tmp_path: Path) -> None:
    """After a request without effect, the hook waits until the conversation has grown by a quarter."""
    async with opened(tmp_path, config=config(messages=2)) as o:
        read = {"tool": "list_files", "input": {"pattern": "*.none"}}
        grown = read | {"text": "x" * 8_000}
        collected: list[str] = []
        for said, count in ((read, 1), (grown, 2)):
            collected.clear()
            agent = await spawned(o, read, read, said, "done", history=[], tools=["list_files"])
            await agent.query(
                "look", on_event=lambda event: collected.append(event.text) if event.kind == "hook" else None
            )
            assert (await recorded(agent, CompactionEntry), collected) == ([], ["step_start: shorten"] * count)


@pytest.mark.parametrize("mode", ["archive", None])
async def test_summarization_hook_archives_when_archival_is_on(tmp_path: Path, mode: Any) -> None:
    """The hook archives turns that the rules of archival would keep, and makes no compaction."""
    (tmp_path / "log.txt").write_text("pressure 4.2 bar\n" * 200)
    read = {"tool": "read_file", "input": {"path": "log.txt"}}
    async with opened(tmp_path / "home", config=config(archival=True, mode=mode, messages=9)) as o:
        agent = await spawned(o, read, "1", read, "2", "3", history=[], tools=["read_file"], cwd=tmp_path)
        for prompt in ("first", "second"):
            await agent.query(prompt)
        assert await recorded(agent, ArchiveEntry) == []
        await agent.query("third")
        assert [made.collapse.kind for made in await recorded(agent, ArchiveEntry)] == ["turn", "turn"]
        assert "[archived turn]" in str((await agent.show()).messages)
        assert await recorded(agent, CompactionEntry) == []


async def test_archiving_without_archival_is_an_error_of_the_hook(tmp_path: Path) -> None:
    """The hook's request for archives is recorded as an error if archival is off, and the turn continues."""
    async with opened(tmp_path, config=config(mode="archive", messages=5)) as o:
        agent = await spawned(o)
        assert (await agent.query("how many?")).text == "nine"
        assert await recorded(agent, CompactionEntry) == []
    [line] = [line for line in hook_lines(tmp_path, []) if line.name == "summarization"]
    assert (line.errors, line.last_error) == (1, "requests archiving, but archival.enabled is not set")


async def test_root_hook_can_request_summarization(tmp_path: Path) -> None:
    """A hook of the program starts a compaction with `shorten` in its patch of a step."""
    async with opened(tmp_path) as o:

        @o.on("step_start")
        def shorten(event: Any, _ctx: Any) -> Any:
            return event.patch(shorten="compact") if event.messages > 16 else None

        agent = await spawned(o)
        await agent.query("how many?")
        assert [made.reason for made in await recorded(agent, CompactionEntry)] == ["hook"]
