"""Prompts of agents: the parts of each request, changes by hooks, and the prompt as users see it."""

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
from orch_protocol.services.agents.spawn import Spawn
from orch_worker.prompt import builder
from orch_worker.prompt.working_folder import branch_of, folder_text
from orchestrator.root_double import World, opened
from virtual_clock import virtual

MADE = [{"tool": "task_create", "input": {"tasks": ["look"]}}, "made"]


def config(**rules: Any) -> Config:
    """Return a configuration with prompt rules that permits task_create."""
    return Config(prompt=PromptConfig(**rules), policy=PolicyConfig(permissions={"task_create": "allow"}))


def at(world: World, stage: str, answer: Any, name: str = "h") -> None:
    """Register an asynchronous hook: the virtual clock does not wait for the thread of a synchronous one."""

    async def handler(event: Any, _ctx: Any) -> Any:
        return answer(event)

    world.register_hook(handler, stage, name=name)


async def shown_of(agent: AsyncSubagent) -> PromptShown:
    """Return the prompt of `agent`, after the root has removed the waiter for it."""
    shown = await agent.prompt_parts()
    await asyncio.sleep(0)
    return shown


class Seen:
    """The provider requests of all agents of a world."""

    def __init__(self, world: World) -> None:
        self.requests: list[ProviderRequest] = []
        world.register_hook(self._take, "before_provider_request", kind="observe", name="seen")

    async def _take(self, event: ProviderRequest, _ctx: Any) -> None:
        self.requests.append(event)

    def tails(self) -> list[str]:
        """Return the tail of each request."""
        return [each.tail for each in self.requests]

    def systems(self) -> list[str]:
        """Return the system text of each request."""
        return [each.system for each in self.requests]


@virtual
async def test_request_has_no_tail_by_default(tmp_path: Path) -> None:
    """Without settings, a request ends with the conversation, whose first message is the task."""
    async with opened(tmp_path) as world:
        seen = Seen(world)
        agent = await world.scripted("done", tools=[])
        await agent.query("go")
        assert seen.tails() == [""]
        assert text_of(seen.requests[0].messages[0]).startswith("Task: ")


@virtual
async def test_date_and_workspace_facts_are_in_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail has the facts at the time of the request, and the system text stays the same."""
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
async def test_hooks_add_and_drop_prompt_parts(tmp_path: Path) -> None:
    """A hook can drop a part and add one to each tier; its context part stays after the removal of the hook."""
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
async def test_hook_changes_the_system_text_for_a_turn(tmp_path: Path) -> None:
    """The changed text is in each request of the turn; after the removal of the hook, the text is the original one."""
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
async def test_each_tier_is_limited(tmp_path: Path) -> None:
    """Parts above the limit of their tier are cut, with a notice."""
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


def test_identity_is_not_inherited_by_subagents(tmp_path: Path) -> None:
    """A subagent inherits the prompt rules of its parent, but not the identity."""
    asked = Spawn("t", prompt=PromptSpec("A pirate.", "p", PromptRules(time=True)))
    made = describe(asked, None, Config(), tmp_path, BackendSpec("scripted"))
    below = describe(asked, made, Config(), tmp_path, BackendSpec("scripted"))
    assert (made.prompt, below.prompt) == (asked.prompt, PromptSpec(rules=PromptRules(time=True)))
    bare = describe(Spawn("t"), None, config(time=True), tmp_path, BackendSpec("scripted"))
    assert bare.prompt.rules.time


class TestWorkspace:
    """Facts about the folder that an agent works in."""

    def test_detached_head_is_shown_as_a_commit(self, tmp_path: Path) -> None:
        """The commit is abbreviated to 12 digits; an invalid HEAD gives an empty text."""
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / "HEAD").write_text("ab" * 20 + "\n")
        assert branch_of(str(tmp_path)) == "ab" * 6
        (tmp_path / ".git" / "HEAD").write_text("# Do as I say\n")
        assert branch_of(str(tmp_path)) == ""

    def test_repository_above_or_linked_is_found(self, tmp_path: Path) -> None:
        """The branch is also found if a `.git` file in a parent folder names a repository elsewhere."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "HEAD").write_text("ref: refs/heads/main\n")
        (tmp_path / "tree" / "below").mkdir(parents=True)
        (tmp_path / "tree" / ".git").write_text("gitdir: ../data\n")
        assert branch_of(str(tmp_path / "tree" / "below")) == "main"

    def test_changed_files_are_listed_on_one_line(self) -> None:
        """Only the latest of many files are named, and a line break in a name is replaced."""
        text = folder_text("/w", "", [f"f{number}" for number in range(30)] + ["a\nb"])
        assert "f29, a?b, and 11 before these" in text
        assert len(text.splitlines()) == 4


class TestShown:
    """The prompt as users and programs see it."""

    @virtual
    async def test_prompt_parts_are_shown_with_changes_since_the_last_request(self, tmp_path: Path) -> None:
        """Each part has a name, tier, source, owner, size, token count and hash."""
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
    async def test_changed_and_new_parts_are_marked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A new date is marked as changed, and the notice about revoked tools is marked as new."""
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
    async def test_parts_changed_by_hooks_name_their_owner(self, tmp_path: Path) -> None:
        """A part that a hook added has the hook as owner, and a note states that hooks changed the stable text."""
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
    async def test_prompt_of_a_cold_agent_is_shown_from_the_record(self, tmp_path: Path) -> None:
        """No process is started, and a note states that the last request is unknown."""
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
        assert (dead.asked, dead.notes) == (False, ("the agent has no process: its last request is unknown",))

    @virtual
    async def test_prompt_before_the_first_query_is_marked_as_provisional(self, tmp_path: Path) -> None:
        """Before the first query, notes name the hooks and the parts of the prompt that are computed later."""
        (tmp_path / "AGENTS.md").write_text("Count in dozens.\n")
        async with opened(tmp_path / "home") as world:
            at(world, "before_system_prompt", lambda _event: None, "h")
            agent = await world.scripted("one", preset="work", cwd=tmp_path)
            world.launcher.worker(agent.id).die(9)
            shown = await shown_of(agent)
        assert "context" not in {part.tier for part in shown.parts}
        assert [note.split(" ")[0] for note in shown.notes] == ["the", "changes", "the"]
