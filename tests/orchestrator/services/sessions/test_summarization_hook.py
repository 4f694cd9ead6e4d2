"""Conversations become shorter before they have to, where a hook wants that: by a summary, or by archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncSubagent, Config, HooksConfig, ScriptedBackend
from orch.policy.hook_records import hook_lines
from orch_protocol.core.messages import Message, assistant, user
from orch_protocol.hooks.options import Summarization
from orch_protocol.session.entries import ArchiveEntry, CompactionEntry
from orch_worker.session.transcript import read_session
from orchestrator.root_double import World, opened

HISTORY = [message for n in range(8) for message in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 400))]


def config(archival: bool = False, **given: Any) -> Config:
    """Return a configuration with the hook, whose settings are `given`."""
    rules = ArchivalConfig(enabled=archival, async_=False, profile="seed")
    return Config(hooks=HooksConfig(("summarization",), summarization=Summarization(**given)), archival=rules)


async def spawned(o: World, *said: Any, history: list[Message] = HISTORY, **options: Any) -> AsyncSubagent:
    """Return an agent that says `said`, with something behind it."""
    backend = ScriptedBackend(said or ["nine", "ten", "eleven"], ["Eight questions were answered."] * 3)
    return await o.spawn("count", backend=backend, history=history, **({"tools": []} | options))


async def recorded(agent: AsyncSubagent, kind: type[Any]) -> list[Any]:
    """Return what of that kind is on the agent's record."""
    return [entry for entry in read_session(Path((await agent.state()).folder)).entries if isinstance(entry, kind)]


@pytest.mark.parametrize("bound", [{"messages": 16}, {"tokens": 600}, {"messages": 100, "tokens": 600}])
async def test_at_its_bound_a_summary_takes_the_place_of_what_was_said_first(
    tmp_path: Path, bound: dict[str, Any]
) -> None:
    """Once, before the request that passes it; the next ones are as short as that left it."""
    async with opened(tmp_path, config=config(**bound)) as o:
        agent = await spawned(o)
        assert (await agent.query("how many?")).text == "nine"
        [made] = await recorded(agent, CompactionEntry)
        assert (made.reason, made.writer) == ("hook", "model")
        assert "Eight questions were answered." in made.summary
        assert (await agent.state()).context_tokens < 400
        await agent.query("and now?")
        assert len(await recorded(agent, CompactionEntry)) == 1


async def test_below_its_bound_nothing_happens(tmp_path: Path) -> None:
    """A share of a window that nobody knows is never passed, and what a hook is told is how large all of it is."""
    seen: list[tuple[int, bool]] = []
    async with opened(tmp_path, config=config(pct=1, messages=18)) as o:

        @o.on("step_start", kind="observe")
        def look(event: Any, _ctx: Any) -> None:
            seen.append((event.messages, event.tokens > 600))

        agent = await spawned(o)
        await agent.query("how many?")
        assert (await recorded(agent, CompactionEntry), seen) == ([], [(17, True)])


async def test_where_nothing_can_go_it_is_not_asked_for_at_each_request(tmp_path: Path) -> None:
    """Not before there is a quarter more."""
    async with opened(tmp_path, config=config(messages=2)) as o:
        read = {"tool": "list_files", "input": {"pattern": "*.none"}}
        agent = await spawned(o, read, read, read, "done", history=[], tools=["list_files"])
        told: list[str] = []
        await agent.query("look", on_event=lambda event: told.append(event.text) if event.kind == "hook" else None)
        assert (await recorded(agent, CompactionEntry), told) == ([], ["step_start: shorten"])


@pytest.mark.parametrize("mode", ["archive", None])
async def test_with_archival_what_is_finished_goes_to_archives(tmp_path: Path, mode: Any) -> None:
    """Also what its own rules would leave where it is."""
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


async def test_archives_where_there_are_none_are_an_error_of_the_hook(tmp_path: Path) -> None:
    """It is named, and the turn goes on as if nothing was wanted."""
    async with opened(tmp_path, config=config(mode="archive", messages=5)) as o:
        agent = await spawned(o)
        assert (await agent.query("how many?")).text == "nine"
        assert await recorded(agent, CompactionEntry) == []
    [line] = hook_lines(tmp_path, [])
    assert (line.errors, line.last_error) == (1, "wants archives made, and archival.enabled is not set")


async def test_a_function_of_the_program_can_want_it_too(tmp_path: Path) -> None:
    """Whenever it likes."""
    async with opened(tmp_path) as o:

        @o.on("step_start")
        def shorten(event: Any, _ctx: Any) -> Any:
            return event.patch(shorten="compact") if event.messages > 16 else None

        agent = await spawned(o)
        await agent.query("how many?")
        assert [made.reason for made in await recorded(agent, CompactionEntry)] == ["hook"]
