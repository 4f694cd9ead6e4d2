"""The prompts of agents in a tree: what each request says besides the conversation, and what hooks make of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncSubagent, Config, PolicyConfig
from orch.services.agents.spawn import describe
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import text_of
from orch_protocol.core.prompts import PromptConfig, PromptPart, PromptRules, PromptShown, PromptSpec
from orch_protocol.hooks.events import ProviderRequest
from orch_protocol.services.requests import Spawn
from orch_worker.prompt import builder
from orch_worker.prompt.working_folder import branch_of, folder_text
from orchestrator.root_double import World, opened
from virtual_clock import virtual

MADE = [{"tool": "task_create", "input": {"tasks": ["look"]}}, "made"]


def config(**rules: Any) -> Config:
    """Return a configuration of prompts."""
    return Config(prompt=PromptConfig(**rules), policy=PolicyConfig(permissions={"task_create": "allow"}))


def at(world: World, stage: str, answer: Any, name: str = "h") -> None:
    """Register a hook that answers so: one without a thread, for which a clock that jumps would not wait."""

    async def handler(event: Any, _ctx: Any) -> Any:
        return answer(event)

    world.register_hook(handler, stage, name=name)


async def shown_of(agent: AsyncSubagent) -> PromptShown:
    """Return the prompt of `agent`, once nobody waits for it any more."""
    shown = await agent.prompt_parts()
    await asyncio.sleep(0)
    return shown


class Seen:
    """What each request of a world's agents holds."""

    def __init__(self, world: World) -> None:
        self.requests: list[ProviderRequest] = []
        world.register_hook(self._take, "before_provider_request", kind="observe", name="seen")

    async def _take(self, event: ProviderRequest, _ctx: Any) -> None:
        self.requests.append(event)

    def tails(self) -> list[str]:
        """Return what the requests end with."""
        return [each.tail for each in self.requests]

    def systems(self) -> list[str]:
        """Return their system texts."""
        return [each.system for each in self.requests]


@virtual
async def test_nothing_is_said_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Without settings and without anything to tell, a request ends with the conversation."""
    async with opened(tmp_path) as world:
        seen = Seen(world)
        agent = await world.scripted("done", tools=[])
        await agent.query("go")
        assert seen.tails() == [""]
        assert text_of(seen.requests[0].messages[0]).startswith("Task: ")


@virtual
async def test_the_day_and_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at the end of each request, as they are then: a day later another day, and the files changed meanwhile."""
    folder = tmp_path / "p"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/feature/zebras\n")
    write = {"tool": "write_file", "input": {"path": "a.txt", "content": "x"}}
    async with opened(tmp_path / "home", config=config(time=True, workspace=True)) as world:
        seen = Seen(world)
        agent = await world.scripted(write, "done", "again", tools=["write_file"], cwd=folder)
        monkeypatch.setattr(builder, "current_day", lambda: "2026-05-01")
        await agent.query("go")
        monkeypatch.setattr(builder, "current_day", lambda: "2026-05-02")
        await agent.query("go on")
    one, _, three = seen.tails()
    assert one == f"Today is 2026-05-01.\n\n# Workspace\n\nFolder: {folder}\nBranch: feature/zebras"
    assert three.startswith("Today is 2026-05-02.\n\n# Workspace")
    assert three.endswith("Files you have changed: a.txt")
    assert len(set(seen.systems())) == 1


@virtual
async def test_hooks_change_the_prompt_of_a_turn(tmp_path: Path) -> None:
    """A hook of the program adds a stable part, one before the first question and one at the end of requests; what it
    drops is not said, and what is on record stays, also when the hook is gone."""
    parts = [
        PromptPart("style", "Be brief.", "stable"),
        PromptPart("house", "We use metres.", "context"),
        PromptPart("mood", "It is late.", "volatile"),
    ]
    async with opened(tmp_path, config=config()) as world:
        seen = Seen(world)
        at(world, "before_system_prompt", lambda event: event.patch(add=parts, drop=["tasks"]), "h")
        agent = await world.scripted(*MADE, "two", "three", tools=["tasks"])
        await agent.query("go")
        await agent.query("go on")
        world.unregister_hook("h")
        await agent.query("and?")
    with_hook, without = seen.systems()[:3], seen.systems()[3]
    assert with_hook == [f"{without}\n\nBe brief."] * 3
    assert seen.tails()[:3] == ["It is late."] * 3
    assert seen.tails()[3].startswith("# Tasks")
    house = '<context name="house" of="hook h">\nWe use metres.\n</context>'
    for request in seen.requests:
        assert text_of(request.messages[0]).startswith(house)
        assert "\n".join(map(text_of, request.messages)).count(house) == 1


@virtual
async def test_the_system_text_of_a_turn(tmp_path: Path) -> None:
    """A hook on the text changes it, for the turn, in each of its requests."""
    async with opened(tmp_path) as world:
        seen = Seen(world)
        at(world, "after_system_prompt", lambda event: event.patch(text=event.text.upper()), "h")
        agent = await world.scripted(*MADE, "two", tools=["tasks"])
        await agent.query("go")
        world.unregister_hook("h")
        await agent.query("go on")
    first, second, third = seen.systems()
    assert first == second == third.upper() != third


@virtual
async def test_a_tier_has_its_bound(tmp_path: Path) -> None:
    """What does not fit is cut, and the text says so, in each tier."""
    long = "\n".join(f"line {number}" for number in range(1000))
    parts = [PromptPart(f"{tier} part", long, tier) for tier in ("stable", "context", "volatile")]
    bounds = config(stable_tokens=500, context_tokens=100, volatile_tokens=50)
    async with opened(tmp_path, config=bounds) as world:
        seen = Seen(world)
        at(world, "before_system_prompt", lambda event: event.patch(add=parts), "h")
        agent = await world.scripted("done", tools=[])
        await agent.query("go")
    [request] = seen.requests
    for text, size in ((request.system, 2000), (text_of(request.messages[0]), 700), (request.tail, 200)):
        assert "part is cut" in text
        assert "line 3\n" in text
        assert len(text) <= size


def test_who_an_agent_is_does_not_pass_on_to_those_below_it(tmp_path: Path) -> None:
    """The rules are its parent's, whatever it asks for itself; its identity is its own."""
    asked = Spawn("t", prompt=PromptSpec("A pirate.", "p", PromptRules(time=True)))
    made = describe(asked, None, Config(), tmp_path, BackendSpec("scripted"))
    below = describe(asked, made, Config(), tmp_path, BackendSpec("scripted"))
    assert (made.prompt, below.prompt) == (asked.prompt, PromptSpec(rules=PromptRules(time=True)))
    bare = describe(Spawn("t"), None, config(time=True), tmp_path, BackendSpec("scripted"))
    assert bare.prompt.rules.time


class TestWorkspace:
    """What is said of the folder that an agent works in."""

    def test_a_commit_where_there_is_no_branch(self, tmp_path: Path) -> None:
        """The beginning of its name; nothing for what is neither."""
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / "HEAD").write_text("ab" * 20 + "\n")
        assert branch_of(str(tmp_path)) == "ab" * 6
        (tmp_path / ".git" / "HEAD").write_text("# Do as I say\n")
        assert branch_of(str(tmp_path)) == ""

    def test_a_folder_below_and_one_that_is_linked(self, tmp_path: Path) -> None:
        """The repository may be above, or its data elsewhere."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "HEAD").write_text("ref: refs/heads/main\n")
        (tmp_path / "tree" / "below").mkdir(parents=True)
        (tmp_path / "tree" / ".git").write_text("gitdir: ../data\n")
        assert branch_of(str(tmp_path / "tree" / "below")) == "main"

    def test_the_last_files_and_no_line_of_their_own(self) -> None:
        """Of many files the latest are named; a name cannot begin a line."""
        text = folder_text("/w", "", [f"f{number}" for number in range(30)] + ["a\nb"])
        assert "f29, a?b, and 11 before these" in text
        assert len(text.splitlines()) == 4


class TestShown:
    """The prompt as people and programs are shown it."""

    @virtual
    async def test_with_what_has_changed_since_the_last_request(self, tmp_path: Path) -> None:
        """Name, tier, source, owner, size, tokens and hash of each part; what is new, other and gone since."""
        folder = tmp_path / "p"
        folder.mkdir()
        (folder / "AGENTS.md").write_text("Count in dozens.\n")
        done = {"tool": "task_update", "input": {"index": 1, "status": "completed"}}
        async with opened(tmp_path / "home", config=config(time=True)) as world:
            agent = await world.scripted(*MADE, done, "two", tools=["tasks", "read_file"], context="full", cwd=folder)
            fresh = await shown_of(agent)
            assert not fresh.asked
            assert [part.name for part in fresh.parts][-3:] == ["project_briefing", "AGENTS.md", "time"]
            await agent.query("go")
            shown = await shown_of(agent)
            assert shown.asked
            parts = {part.name: part for part in shown.parts}
            page = parts["AGENTS.md"]
            assert (page.tier, page.source, page.owner) == ("context", "AGENTS.md", "project")
            assert (page.size, page.tokens, len(page.hash)) == (len(page.text), len(page.text) // 4, 12)
            assert {part.change for part in shown.parts} == {""}
            assert list(parts)[-1] == "tasks"
            assert [part for part in fresh.parts if part.tier != "volatile"] == [
                part for part in shown.parts if part.tier != "volatile"
            ]
            await agent.query("go on")
            later = await shown_of(agent)
        assert "tasks" not in {part.name for part in later.parts}
        assert shown.render("stable") == later.render("stable")
        assert shown.render("volatile") == f"{later.render('volatile')}\n\n{parts['tasks'].text}"

    @virtual
    async def test_what_is_new_and_what_is_gone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A day later the day is another; tools that were taken are a part that was not there."""
        monkeypatch.setattr(builder, "current_day", lambda: "2026-05-01")
        async with opened(tmp_path, config=config(time=True)) as world:
            agent = await world.scripted("one", tools=["tasks", "read_file"])
            await agent.query("go")
            monkeypatch.setattr(builder, "current_day", lambda: "2026-05-02")
            await agent.revoke_tools(keep=["tasks"])
            await agent.ping()
            shown = await shown_of(agent)
        assert {part.name: part.change for part in shown.parts if part.change} == {
            "time": "changed",
            "tools_taken": "new",
        }

    @virtual
    async def test_as_hooks_left_it(self, tmp_path: Path) -> None:
        """What a hook made of the last turn's prompt, and whose it is."""
        async with opened(tmp_path) as world:
            part = PromptPart("style", "Be brief.", "stable")
            at(world, "before_system_prompt", lambda event: event.patch(add=[part]), "h")
            at(world, "after_system_prompt", lambda event: event.patch(text=event.text.upper()), "i")
            agent = await world.scripted("one", tools=[])
            await agent.query("go")
            shown = await shown_of(agent)
        assert [(each.name, each.owner) for each in shown.parts][-1] == ("style", "hook h")
        assert shown.render("stable").endswith("BE BRIEF.")
        assert shown.notes == ("hooks have changed the text of the stable parts",)

    @virtual
    async def test_without_a_process(self, tmp_path: Path) -> None:
        """From what is on record, with no process started for it; and it says what is not known."""
        (tmp_path / "AGENTS.md").write_text("Count in dozens.\n")
        async with opened(tmp_path / "home", config=config(time=True, workspace=True)) as world:
            agent = await world.scripted(*MADE, preset="work", cwd=tmp_path)
            await agent.query("go")
            alive = await shown_of(agent)
            world.launcher.worker(agent.id).die(9)
            dead = await shown_of(agent)
            assert agent.pid is None
        assert dead.parts == alive.parts
        assert dead.texts == alive.texts
        assert (dead.asked, dead.notes) == (False, ("it has no process: what its last request said is not known",))

    @virtual
    async def test_without_a_process_before_it_was_asked(self, tmp_path: Path) -> None:
        """What is looked up later is said to be, and so is that hooks have not had their say."""
        (tmp_path / "AGENTS.md").write_text("Count in dozens.\n")
        async with opened(tmp_path / "home") as world:
            at(world, "before_system_prompt", lambda _event: None, "h")
            agent = await world.scripted("one", preset="work", cwd=tmp_path)
            world.launcher.worker(agent.id).die(9)
            shown = await shown_of(agent)
        assert "context" not in {part.tier for part in shown.parts}
        assert [note.split(" ")[0] for note in shown.notes] == ["it", "hooks", "what"]
