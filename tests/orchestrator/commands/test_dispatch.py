"""Slash commands of a session: their effects, the data that they return, and the catalog."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncSubagent, Budget, Config, HooksConfig, PolicyConfig, Skill
from orch.cli import VERBS as CLI_VERBS
from orch.commands.builtin_commands import BY_NAME, COMMANDS
from orch.commands.parse import SHELL_COMMANDS
from orch.policy.caller import USER, AgentCaller
from orch.policy.permissions import CallService, check
from orch.services import call
from orch_protocol.core.errors import AgentDiedError, AgentError, ConfigError, OrchError, ToolNotGrantedError
from orch_protocol.core.messages import text_of
from orch_protocol.policy.policy import PolicySpec
from orch_protocol.resources.slash_commands import BUILT_IN, Effect
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.resources.slash_commands import EXECUTE_COMMAND, LIST_COMMANDS, Execute
from orch_protocol.session.entries import Custom
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from virtual_clock import until


async def talking(o: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent without a project description that has answered one query."""
    agent = await o.scripted("Twelve pumps.", *said, context="none", name="reader", **options)
    await agent.query("How many pumps?")
    return agent


async def shown(agent: AsyncSubagent) -> list[str]:
    """Return the texts of the conversation's messages."""
    return [text_of(message) for message in (await agent.show()).messages]


def test_commands_and_aliases_are_unique_and_described() -> None:
    """Each command has a summary, and a usage line that begins with its name."""
    names = [name for each in COMMANDS for name in (each.row.name, *each.row.aliases)]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert all(each.row.summary and each.row.usage.startswith(f"/{each.row.name}") for each in COMMANDS)


async def test_catalog_lists_usage_and_is_stable(tmp_path: Path) -> None:
    """The catalog has the same digest each time, and the text of `/help` is generated from it."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row.source for row in catalog.commands] == [BUILT_IN] * len(COMMANDS)
        assert (await agent.commands()).digest == catalog.digest
        text = (await agent.execute("/help")).text
        assert all(row.usage in text for row in catalog.commands)
        assert "/kill ID" in (await agent.execute("/help kill")).text
        assert text.startswith("most used:\n  /status ")
        assert text[: text.index("\n\n")].count("\n  /") == 10
        for line in ("/help query", "/help /QUERY"):
            assert "In another terminal: orch query" in (await agent.execute(line)).text
        with pytest.raises(ConfigError, match=r"query is a command of the shell.*/ask ID PROMPT"):
            await agent.execute("/query 1 go")


def test_shell_commands_are_verbs_without_a_slash_command() -> None:
    """`/help NAME` says where each of these commands can be used."""
    assert set(SHELL_COMMANDS) <= set(CLI_VERBS) - set(BY_NAME)


async def test_misspelled_command_is_an_error_with_suggestions(tmp_path: Path) -> None:
    """An unknown command is neither executed nor sent as a prompt, and the error suggests similar names."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        with pytest.raises(ConfigError, match="'hello' is not a command"):
            await agent.execute("hello")
        with pytest.raises(ConfigError, match=r"unknown command /agens; did you mean /agents"):
            await agent.execute("/agens")
        with pytest.raises(ConfigError, match="/ask: it needs ID; usage: /ask ID PROMPT"):
            await agent.execute("/ask")
        with pytest.raises(AgentError, match="nobody"):
            await agent.execute("/ask nobody hello")


async def test_read_only_commands_return_page_and_json(tmp_path: Path) -> None:
    """The text and the data are those of the corresponding `orch` command."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        state = await agent.execute("/STATE")
        assert state.data["id"] == agent.id
        assert "status:        idle" in state.text
        assert (await agent.execute("/tools")).data["tools"] == list((await agent.state()).tools)
        assert [row["id"] for row in (await agent.execute("/agents")).data] == [agent.id]
        assert "identity" in (await agent.execute("/context")).text
        assert "Twelve pumps." in (await agent.execute("/tree")).text
        assert (await agent.execute("/audit 1")).data[0]["what"] == "reply"
        assert (await agent.execute("/usage")).data["agent"]["spent"]["model_calls"] == 1
        assert (await agent.execute("/model")).text == "scripted"
        assert (await agent.execute("/thinking")).text == "model default"
        with pytest.raises(ConfigError, match="scripted does not support a thinking level"):
            await agent.execute("/thinking low")
        assert (await agent.execute("/model extractive")).text == "this conversation continues with extractive"
        assert (await agent.execute("/model")).text == "extractive"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "/workspace",
            "/sessions",
            "/session",
            "/prompt",
            "/templates",
            "/memory",
            "/hooks",
            "/extensions",
            "/config",
        ),
        *("/permissions", "/archive", "/recall pumps", "/outputs", "/last", "/tasks", "/queue"),
    ],
)
async def test_read_only_commands_have_text_when_empty(tmp_path: Path, line: str) -> None:
    """A command with nothing to list returns a text that states it."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        done = await agent.execute(line)
        assert done.text
        assert (done.effect, done.is_error) == (None, False)
        await asyncio.sleep(0)


async def test_hooks_command_shows_which_hooks_are_on(tmp_path: Path) -> None:
    """The list has hooks that the agent loads, hooks of the program, and built-in hooks that are off."""
    async with opened(tmp_path, config=Config(hooks=HooksConfig(("loop_detection",)))) as o:
        o.register_hook(lambda _event, _ctx: None, "turn_end", name="count")
        agent = await talking(o)
        rows = {row["name"]: row["enabled"] for row in (await agent.execute("/hooks")).data}
        assert [name for name, enabled in rows.items() if enabled] == ["loop_detection", "count", "audit_log"]
        assert rows["content_safety"] is False


async def test_client_effects_are_returned_to_the_caller(tmp_path: Path) -> None:
    """Quit, copy, paste and switch return effects that the client carries out."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        assert (await agent.execute("/q")).effect == Effect("quit")
        assert (await agent.execute("/copy")).effect == Effect("copy", text="Twelve pumps.")
        assert (await agent.execute("/paste first line")).effect == Effect("paste", text="first line")
        assert (await agent.execute("/switch reader")).effect == Effect("switch", agent.id)


async def test_new_starts_over_and_ends_the_subagents(tmp_path: Path) -> None:
    """The old conversation stays on its branch, and other agents continue."""
    async with opened(tmp_path, config=nesting()) as o:
        agent = await talking(o, "Hello.", tools=NEST)
        other = await o.scripted("x", name="other")
        spawned = await agent.execute("/spawn Count valves --name kid --idle")
        assert [row.name for row in await o.agents()] == ["reader", "other", "kid"]
        assert o.supervisor.tree.agents[spawned.data["id"]].spec.parent_id == agent.id
        done = await agent.execute("/new")
        assert done.data["killed"] == [spawned.data["id"]]
        assert await shown(agent) == []
        assert [row.id for row in await o.agents()] == [agent.id, other.id]
        assert len(await agent.session.branches()) == 2


async def test_user_can_spawn_where_the_session_may_not(tmp_path: Path) -> None:
    """An agent that the user spawns has no parent; commands can query, collect and kill it."""
    async with opened(tmp_path) as o:
        agent = await talking(o, cwd=tmp_path)
        kid = (await agent.execute("/spawn Count valves --preset minimal --name kid")).data
        assert (kid["depth"], (await (await o.get("kid")).state()).cwd) == (1, str(tmp_path))
        await o.wait("kid")
        assert (await agent.execute("/collect kid")).text
        assert (await agent.execute("/ask kid How many valves?")).text
        assert (await agent.execute("/kill kid")).data["ids"] == [kid["id"]]


async def test_spawned_agent_has_the_sessions_model_and_policy(tmp_path: Path) -> None:
    """`/spawn` uses the model, policy and environment of the session; `--model` overrides the model."""
    config = Config(model="ollama:configured", policy=PolicyConfig(approval_mode="allow"))
    async with opened(tmp_path, config=config) as o:
        asked = Spawn("talk", model="ollama:chosen", policy=PolicySpec("cli"), env={"LANG": "C"}, depth=0)
        agent = await o.get((await call(o.supervisor, USER, SPAWN, asked)).id)
        kid = (await agent.execute("/spawn Count valves --idle")).data
        spec = o.supervisor.tree.agents[kid["id"]].spec
        assert (spec.backend.model, spec.policy, spec.env) == ("chosen", PolicySpec("cli"), {"LANG": "C"})
        other = (await agent.execute("/spawn Count valves --model ollama:other --idle")).data
        assert o.supervisor.tree.agents[other["id"]].spec.backend.model == "other"


async def test_user_commands_do_not_use_the_agents_budget(tmp_path: Path) -> None:
    """Shell commands of the user do not count as tool calls of the agent."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "Four.", budget=Budget(max_tool_calls=1), cwd=tmp_path)
        for _ in range(3):
            assert "mine" in (await agent.execute("!echo mine")).text
        assert (await agent.query("How many valves?")).text == "Four."
        assert (await agent.state()).spent.tool_calls == 0


async def test_branch_returns_the_prompt_for_editing(tmp_path: Path) -> None:
    """`/branch` removes a prompt from the conversation and returns its text; it also accepts a label."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        question = next(row for row in (await agent.session.tree()).entries if row.role == "user")
        await agent.execute(f"/label {question.id} start")
        done = await agent.execute("/branch start")
        assert done.effect is not None
        assert done.effect.kind == "edit"
        assert "How many pumps?" in done.effect.text
        assert await shown(agent) == []


async def test_plan_mode_is_switched_on_and_off_in_the_session(tmp_path: Path) -> None:
    """The agent and its conversation stay the same, and a given task becomes a prompt."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        found = await shown(agent)
        done = await agent.execute("/plan mend the pump")
        assert (done.text, done.effect) == ("plan mode is now on", Effect("ask", text="mend the pump"))
        assert (await agent.state()).planning
        assert "exit_plan_mode" in (await agent.state()).tools
        assert await shown(agent) == found
        assert (await agent.execute("/plan")).text == "plan mode is already on"
        assert (await agent.execute("/plan --off")).text == "plan mode is now off"
        assert not (await agent.state()).planning


async def test_plan_warns_about_python_names_that_would_be_lost(tmp_path: Path) -> None:
    """`/plan` replaces a process that has Python variables only with the option `--drop`."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        names = Path((await agent.state()).folder) / "stash/names.json"
        names.parent.mkdir(exist_ok=True)
        names.write_text('["df", "model"]')
        done = await agent.execute("/plan x")
        assert done.is_error
        assert "variables would be lost: df, model. Use /plan --drop to continue" in done.text
        assert done.effect is None
        assert not (await agent.state()).planning
        assert (await agent.execute("/plan --drop x")).effect == Effect("ask", text="x")
        assert (await agent.state()).planning
        assert (await agent.execute("/plan --off")).text == "plan mode is now off"


async def test_names_of_an_earlier_process_are_not_reported_as_lost(tmp_path: Path) -> None:
    """The current process has run no code, so `/plan` gives no warning."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "More.")
        names = Path((await agent.state()).folder) / "stash/names.json"
        names.parent.mkdir(exist_ok=True)
        names.write_text('["df"]')
        os.utime(names, (1, 1))
        assert (await agent.execute("/plan")).text == "plan mode is now on"
        assert (await agent.query("And?")).text == "More."
        assert (await agent.execute("/plan --off")).text == "plan mode is now off"


async def test_compact_reports_what_was_removed(tmp_path: Path) -> None:
    """`/flush` accepts instructions; `/compact` raises an error if nothing can be removed."""
    async with opened(tmp_path) as o:
        agent = await talking(o, *(f"answer {n}: " + "twelve pumps and a valve " * 40 for n in range(12)))
        with pytest.raises(OrchError, match="nothing"):
            await agent.execute("/compact")
        for n in range(12):
            await agent.query(f"question {n}")
        done = await agent.execute("/flush keep each figure")
        assert done.data["writer"] == "extract"
        assert done.data["entry"] in done.text
        await asyncio.sleep(0)


async def test_tasks_can_be_dropped(tmp_path: Path) -> None:
    """`/tasks clear` removes all tasks of the conversation."""
    async with opened(tmp_path, approve=lambda _: True) as o:
        call = {"tool": "task_create", "input": {"tasks": ["look", "mend"]}}
        agent = await o.scripted(call, "Noted.", tools=["tasks"], context="none")
        await agent.query("Plan it.")
        assert (await agent.execute("/tasks")).text == "[ ] 1. look\n[ ] 2. mend"
        await agent.execute("/tasks clear")
        assert (await agent.execute("/tasks")).text == "no tasks"


async def test_earlier_tool_results_can_be_shown(tmp_path: Path) -> None:
    """The latest result has number 1, and errors are marked."""
    (tmp_path / "a.txt").write_text("seven valves")
    calls = [{"tool": "read_file", "input": {"path": name}} for name in ("a.txt", "b.txt")]
    async with opened(tmp_path / "home") as o:
        agent = await o.scripted(*calls, "Done.", tools=["read_file"], cwd=tmp_path, context="none")
        await agent.query("Read.")
        rows = (await agent.execute("/outputs")).data
        assert [(row["n"], row["is_error"]) for row in rows] == [(2, False), (1, True)]
        assert "seven valves" in (await agent.execute("/last 2")).text
        assert "seven valves" not in (await agent.execute("/last")).text


async def test_py_runs_in_the_agents_namespace_and_is_recorded(tmp_path: Path) -> None:
    """No model is queried, and a run with `--quiet` is not part of the conversation."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "Thanks.")
        assert (await agent.execute("/py pumps = 12\npumps * 2")).text == "24"
        assert (await agent.execute("/py --quiet pumps + 1")).text == "13"
        failed = await agent.execute("/py 1 / 0")
        assert failed.is_error
        assert "ZeroDivisionError" in failed.text
        found = await shown(agent)
        assert sum("/py pumps" in each for each in found) == 1
        assert "24" in next(each for each in found if "/py pumps = 12" in each)
        spec = o.supervisor.tree.agents[agent.id].spec
        [quiet] = [each for each in read_session(Path(spec.folder)).entries if isinstance(each, Custom)]
        assert quiet.data == {"line": "/py pumps + 1", "text": "13", "is_error": False}
        assert (await agent.state()).queries == 1
        assert (await agent.query("Go on.")).text == "Thanks."


async def test_py_code_that_ends_the_process_is_reported(tmp_path: Path) -> None:
    """The user gets an error, and the conversation states that the variables are lost."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "Oh.")
        ran = asyncio.ensure_future(agent.execute("/py import threading; threading.Event().wait(1)"))
        await until(lambda: any(getattr(topic, "frame_type", "") == "did" for topic in o.supervisor.waiters._topics))
        o.launcher.worker(agent.id).die(9)
        with pytest.raises(AgentDiedError, match="ended before it was done"):
            await ran
        assert "Its Python variables are lost" in (await shown(agent))[-1]
        assert (await agent.query("Go on.")).text == "Oh."


async def test_interrupted_py_code_is_stopped(tmp_path: Path) -> None:
    """The conversation states that the user ended the code, and the variables are kept."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        ran = asyncio.ensure_future(agent.execute("/py turns = 0\nwhile True: turns += 1"))
        await until(lambda: any(getattr(topic, "frame_type", "") == "did" for topic in o.supervisor.waiters._topics))
        await asyncio.sleep(0)
        ran.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ran
        while "(the user ended it before it was done)" not in (await shown(agent))[-1]:  # noqa: ASYNC110  # gives way
            await asyncio.sleep(0)
        text = ""
        while text != "True":  # the thread notices the interrupt a moment later
            text = (await agent.execute("/py --quiet turns > 0")).text
            await asyncio.sleep(0)


async def test_py_during_a_turn_is_delivered_like_steering(tmp_path: Path) -> None:
    """The code and its output are added before the next request."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await o.scripted({"tool": "gate"}, "Done.", tools=[gate.tool()], context="none")
        asked = asyncio.ensure_future(agent.query("Wait."))
        await gate.called.wait()
        assert (await agent.execute("/py 6 * 7")).text == "42"
        gate.open.set()
        await asked
        assert any("/py 6 * 7" in each and "42" in each for each in await shown(agent))


async def test_invalid_template_hides_no_command_or_template(tmp_path: Path) -> None:
    """The catalog and `/templates` contain the error of the invalid template."""
    async with opened(tmp_path) as o:
        folder = o.supervisor.hooks.home / "prompts"
        folder.mkdir()
        (folder / "broken.md").write_text("Explain {{this")
        (folder / "explain.md").write_text("Explain {{text}}.")
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row.name for row in catalog.commands if row.source == "template"] == ["explain"]
        [note] = catalog.notes
        assert "'broken'" in note
        assert (await agent.execute("/explain pumps")).effect == Effect("ask", text="Explain pumps.")
        found = await agent.execute("/templates")
        assert [row["name"] for row in found.data] == ["explain"]
        assert "invalid variable after {{" in found.text
        with pytest.raises(ConfigError, match="invalid variable after"):
            await agent.execute("/template broken")


async def test_template_is_a_command(tmp_path: Path) -> None:
    """Values precede the text; a template with the name of another command is not in the catalog."""
    async with opened(tmp_path) as o:
        o.register_prompt_template("explain", "Explain in {{language}}: {{text}}")
        o.register_prompt_template("state", "State your name.")
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row.usage for row in catalog.commands if row.source == "template"] == [
            "/explain [language=...] [text=...] [TEXT...]"
        ]
        assert catalog.notes == ("/state of template is left out: built-in already has a command of this name",)
        done = await agent.execute("/explain language=French how a pump works")
        assert done.effect == Effect("ask", text="Explain in French: how a pump works")
        assert (await agent.execute("/template state and more")).effect == Effect(
            "ask", text="State your name.\n\nand more"
        )
        with pytest.raises(ConfigError, match="needs language"):
            await agent.execute("/explain pumps")


PACK = """
def register(extension):
    @extension.command("todo", arguments=["[wanted...]", "--count"])
    def todo(args, ctx):
        "list what is to be done"
        return f"{sorted(args.items())} for {ctx.agent_id}"

    @extension.command("state", aliases=["do"])
    def state(args, ctx): ...
"""
SAID = """
name = "pack"
[permissions]
commands = ["todo", "state"]
[keys]
"f6" = "/todo"
"c-t" = "/tasks"
"f7" = "/nothing"
[[widgets]]
name = "left"
command = "/todo --count"
[[widgets]]
name = "money"
command = "/usage"
"""


def put(home: Path, code: str = PACK, text: str = SAID) -> Path:
    """Write the extension `pack` into the user's folder."""
    folder = home / "extensions" / "pack"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "extension.toml").write_text(text)
    (folder / "extension.py").write_text(code)
    return folder


async def test_extensions_add_commands_keys_and_widgets(tmp_path: Path) -> None:
    """The commands run in the agent's process and are recorded; notes report names that are already in use."""
    put(tmp_path)
    async with opened(tmp_path) as o:
        agent = await talking(o)
        catalog = await agent.commands()
        [row] = [row for row in catalog.commands if row.source == "extension pack"]
        assert (row.usage, row.key) == ("/todo [WANTED...] [--count]", "f6")
        assert [(key.key, key.command) for key in catalog.keys] == [("f6", "/todo"), ("c-t", "/tasks")]
        assert [widget.command for widget in catalog.widgets] == ["/todo --count"]
        assert catalog.notes == (
            "/state of extension pack is left out: built-in already has a command of this name",
            "key f7 of extension pack is left out: there is no command /nothing",
            "widget money of extension pack is left out: /usage is not a command of an extension",
        )
        done = await agent.execute("/todo --count the valves")
        assert done.text == f"[('count', 'yes'), ('wanted', 'the valves')] for {agent.id}"
        spec = o.supervisor.tree.agents[agent.id].spec
        [entry] = [each for each in read_session(Path(spec.folder)).entries if isinstance(each, Custom)]
        assert entry.data["line"] == "/todo --count the valves"
        shown = await o._call(EXECUTE_COMMAND, Execute(agent.id, "/todo --count", shows=True))
        assert shown.text.startswith("[('count', 'yes')]")
        assert sum(isinstance(each, Custom) for each in read_session(Path(spec.folder)).entries) == 1
        with pytest.raises(ConfigError, match="/agents cannot be used by a widget"):
            await o._call(EXECUTE_COMMAND, Execute(agent.id, "/agents", shows=True))
        assert [row["keys"] for row in (await agent.execute("/extensions")).data] == [
            {"f6": "/todo", "c-t": "/tasks", "f7": "/nothing"}
        ]
        with pytest.raises(ConfigError, match="/state: unexpected argument 'now'"):
            await agent.execute("/state now")


async def test_disabled_extension_adds_no_commands(tmp_path: Path) -> None:
    """The commands of an extension that fails are left out, and a note in the catalog states the reason."""
    put(tmp_path, "def register(extension):\n    raise RuntimeError('broken')\n")
    async with opened(tmp_path) as o:
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row for row in catalog.commands if row.source != BUILT_IN] == []
        assert [key.key for key in catalog.keys] == ["c-t"]
        assert any("RuntimeError: broken" in note for note in catalog.notes)


async def changes(o: World) -> list[str]:
    """Return the ids of the agents whose catalogs have changed, in order."""
    return [event.agent_id for event in await o.events() if event.kind == "catalog_changed"]


async def test_catalog_change_emits_an_event(tmp_path: Path) -> None:
    """The event is emitted only for agents whose catalog a client has read."""
    async with opened(tmp_path) as o:
        agent, other = await talking(o), await o.scripted("x", name="other")
        before = await agent.commands()
        assert await changes(o) == []
        last = (await o.events())[-1].n
        o.register_prompt_template("explain", "Explain {{text}}.")
        [event] = await o.events(last, timeout=60)
        assert (event.kind, event.agent_id) == ("catalog_changed", agent.id)
        assert event.data["digest"] == (await agent.commands()).digest != before.digest
        await other.commands()
        assert await changes(o) == [agent.id]
        await asyncio.sleep(0)


async def test_skill_command_returns_a_prompt_to_read_the_skill(tmp_path: Path) -> None:
    """The command returns a prompt that requests it; an unknown skill is an error."""
    async with opened(tmp_path) as o:
        o.register_skill(Skill("pumps", "Work on pumps.", "Close the red valve first."))
        agent = await talking(o)
        assert [row["name"] for row in (await agent.execute("/skills")).data] == ["pumps"]
        effect = (await agent.execute("/skill pumps mend it")).effect
        assert effect is not None
        assert effect.kind == "ask"
        assert effect.text.endswith("read it first with read_skill.\n\nmend it")
        with pytest.raises(ConfigError, match="no skill 'valves'; it has pumps"):
            await agent.execute("/skill valves")


async def test_agents_cannot_execute_commands(tmp_path: Path) -> None:
    """No tool of an agent permits the services that list and execute commands."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        for service in (EXECUTE_COMMAND, LIST_COMMANDS):
            with pytest.raises(ToolNotGrantedError):
                check(o.supervisor.tree.agents, AgentCaller(agent.id), CallService(service.name))
