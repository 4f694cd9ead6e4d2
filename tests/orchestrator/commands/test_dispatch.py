"""Commands of a session: what each does is what the services do, and what comes of it is data."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncSubagent, Budget, Config, PolicyConfig, Skill
from orch.commands.builtin_commands import BY_NAME, COMMANDS
from orch.policy.caller import USER
from orch.services import call, check_grant
from orch_protocol.core.errors import AgentDiedError, AgentError, ConfigError, OrchError, ToolNotGrantedError
from orch_protocol.core.messages import text_of
from orch_protocol.policy.policy import PolicySpec
from orch_protocol.resources.slash_commands import BUILT_IN, Effect, Execute
from orch_protocol.services.requests import SPAWN, Spawn
from orch_protocol.services.resources import EXECUTE_COMMAND, LIST_COMMANDS
from orch_protocol.session.entries import Custom
from orch_worker.session.transcript import read_session
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from virtual_clock import until


async def talking(o: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent that has answered once, and knows of no project."""
    agent = await o.scripted("Twelve pumps.", *said, context="none", name="reader", **options)
    await agent.query("How many pumps?")
    return agent


async def shown(agent: AsyncSubagent) -> list[str]:
    """Return what the conversation shows."""
    return [text_of(message) for message in (await agent.show()).messages]


def test_each_command_has_a_name_of_its_own() -> None:
    """No alias is another command's, and each says what it is for."""
    names = [name for each in COMMANDS for name in (each.row.name, *each.row.aliases)]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert all(each.row.summary and each.row.usage.startswith(f"/{each.row.name}") for each in COMMANDS)


async def test_the_catalog_says_how_each_is_written(tmp_path: Path) -> None:
    """It is the same as long as nothing of it changes, and help is made of it."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row.source for row in catalog.commands] == [BUILT_IN] * len(COMMANDS)
        assert (await agent.commands()).digest == catalog.digest
        told = (await agent.execute("/help")).text
        assert all(row.usage in told for row in catalog.commands)
        assert "/kill ID" in (await agent.execute("/help kill")).text


async def test_a_slip_is_an_error_that_says_what_was_meant(tmp_path: Path) -> None:
    """Neither a prompt nor an unknown name is executed; those that are near are named."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        with pytest.raises(ConfigError, match="'hello' is no command"):
            await agent.execute("hello")
        with pytest.raises(ConfigError, match=r"no command /agens; did you mean /agents"):
            await agent.execute("/agens")
        with pytest.raises(ConfigError, match="/ask: it needs ID; it is written /ask ID PROMPT"):
            await agent.execute("/ask")
        with pytest.raises(AgentError, match="nobody"):
            await agent.execute("/ask nobody hello")


async def test_what_looks_says_what_the_services_say(tmp_path: Path) -> None:
    """The text is the page that the command line prints, the data is that of its --json."""
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
        assert (await agent.execute("/thinking")).text == "as the model does by itself"
        with pytest.raises(ConfigError, match="scripted does not support a thinking level"):
            await agent.execute("/thinking low")
        assert (await agent.execute("/model extractive")).text == "extractive goes on with this conversation"
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
async def test_each_that_only_looks_has_something_to_say(tmp_path: Path, line: str) -> None:
    """Also where there is nothing: then it says so."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        done = await agent.execute(line)
        assert done.text
        assert (done.effect, done.is_error) == (None, False)
        await asyncio.sleep(0)


async def test_effects_are_left_to_whoever_asked(tmp_path: Path) -> None:
    """To leave, to copy, to paste, to talk to somebody else: the root can do none of that."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        assert (await agent.execute("/q")).effect == Effect("quit")
        assert (await agent.execute("/copy")).effect == Effect("copy", text="Twelve pumps.")
        assert (await agent.execute("/paste first line")).effect == Effect("paste", text="first line")
        assert (await agent.execute("/switch reader")).effect == Effect("switch", agent.id)


async def test_new_begins_anew_and_ends_the_subagents(tmp_path: Path) -> None:
    """What was said stays on its own branch; agents of others work on."""
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


async def test_a_person_has_agents_where_the_session_may_have_none(tmp_path: Path) -> None:
    """They are nobody's subagents, work in the same folder, and are asked, collected and killed by commands."""
    async with opened(tmp_path) as o:
        agent = await talking(o, cwd=tmp_path)
        kid = (await agent.execute("/spawn Count valves --preset minimal --name kid")).data
        assert (kid["depth"], (await (await o.get("kid")).state()).cwd) == (1, str(tmp_path))
        await o.wait("kid")
        assert (await agent.execute("/collect kid")).text
        assert (await agent.execute("/ask kid How many valves?")).text
        assert (await agent.execute("/kill kid")).data["ids"] == [kid["id"]]


async def test_spawned_agent_has_the_model_and_the_policy_of_the_session(tmp_path: Path) -> None:
    """Unless another model is named; the configured model is for agents that are spawned elsewhere."""
    config = Config(model="ollama:configured", policy=PolicyConfig(approval_mode="allow"))
    async with opened(tmp_path, config=config) as o:
        asked = Spawn("talk", model="ollama:chosen", policy=PolicySpec("cli"), env={"LANG": "C"}, depth=0)
        agent = await o.get((await call(o.supervisor, USER, SPAWN, asked)).id)
        kid = (await agent.execute("/spawn Count valves --idle")).data
        spec = o.supervisor.tree.agents[kid["id"]].spec
        assert (spec.backend.model, spec.policy, spec.env) == ("chosen", PolicySpec("cli"), {"LANG": "C"})
        other = (await agent.execute("/spawn Count valves --model ollama:other --idle")).data
        assert o.supervisor.tree.agents[other["id"]].spec.backend.model == "other"


async def test_what_a_person_runs_takes_nothing_of_what_the_agent_may_use(tmp_path: Path) -> None:
    """Between its turns, of which nothing can be put aside; and however often."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "Four.", budget=Budget(max_tool_calls=1), cwd=tmp_path)
        for _ in range(3):
            assert "mine" in (await agent.execute("!echo mine")).text
        assert (await agent.query("How many valves?")).text == "Four."
        assert (await agent.state()).spent.tool_calls == 0


async def test_branch_gives_the_question_back(tmp_path: Path) -> None:
    """It is there to be written in other words; labels name entries in between."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        question = next(row for row in (await agent.session.tree()).entries if row.role == "user")
        await agent.execute(f"/label {question.id} start")
        done = await agent.execute("/branch start")
        assert done.effect is not None
        assert done.effect.kind == "edit"
        assert "How many pumps?" in done.effect.text
        assert await shown(agent) == []


async def test_plan_goes_on_in_plan_mode_and_off_without(tmp_path: Path) -> None:
    """The same agent, with all that was said; a task is asked at once."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        said = await shown(agent)
        done = await agent.execute("/plan mend the pump")
        assert (done.text, done.effect) == ("it is in plan mode from now on", Effect("ask", text="mend the pump"))
        assert (await agent.state()).planning
        assert "exit_plan_mode" in (await agent.state()).tools
        assert await shown(agent) == said
        assert (await agent.execute("/plan")).text == "it is in plan mode already"
        assert (await agent.execute("/plan --off")).text == "it is not in plan mode from now on"
        assert not (await agent.state()).planning


async def test_plan_says_before_which_names_would_be_lost(tmp_path: Path) -> None:
    """What its Python has bound goes with its process: nothing is done before somebody says so."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        (Path((await agent.state()).folder) / "names.json").write_text('["df", "model"]')
        done = await agent.execute("/plan x")
        assert done.is_error
        assert "what its Python bound last: df, model. /plan --drop goes on" in done.text
        assert done.effect is None
        assert not (await agent.state()).planning
        assert (await agent.execute("/plan --drop x")).effect == Effect("ask", text="x")
        assert (await agent.state()).planning
        assert (await agent.execute("/plan --off")).text == "it is not in plan mode from now on"


async def test_what_an_earlier_process_had_bound_is_lost_already(tmp_path: Path) -> None:
    """A process that has run no code has nothing to lose: what is told of before is what goes, and is so once."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "More.")
        names = Path((await agent.state()).folder) / "names.json"
        names.write_text('["df"]')
        os.utime(names, (1, 1))
        assert (await agent.execute("/plan")).text == "it is in plan mode from now on"
        assert (await agent.query("And?")).text == "More."
        assert (await agent.execute("/plan --off")).text == "it is not in plan mode from now on"


async def test_compact_says_what_has_gone(tmp_path: Path) -> None:
    """What was said first gives way to what was asked and answered there, as somebody says so; or it says why not."""
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
    """What the agent noted is gone from the session, as it stands on this branch."""
    async with opened(tmp_path, approve=lambda _: True) as o:
        call = {"tool": "task_create", "input": {"tasks": ["look", "mend"]}}
        agent = await o.scripted(call, "Noted.", tools=["tasks"], context="none")
        await agent.query("Plan it.")
        assert (await agent.execute("/tasks")).text == "[ ] 1. look\n[ ] 2. mend"
        await agent.execute("/tasks clear")
        assert (await agent.execute("/tasks")).text == "no tasks"


async def test_results_of_tools_can_be_looked_at_again(tmp_path: Path) -> None:
    """The latest is number 1; what failed says so."""
    (tmp_path / "a.txt").write_text("seven valves")
    calls = [{"tool": "read_file", "input": {"path": name}} for name in ("a.txt", "b.txt")]
    async with opened(tmp_path / "home") as o:
        agent = await o.scripted(*calls, "Done.", tools=["read_file"], cwd=tmp_path, context="none")
        await agent.query("Read.")
        rows = (await agent.execute("/outputs")).data
        assert [(row["n"], row["is_error"]) for row in rows] == [(2, False), (1, True)]
        assert "seven valves" in (await agent.execute("/last 2")).text
        assert "seven valves" not in (await agent.execute("/last")).text


async def test_python_runs_in_the_agents_names_and_is_told(tmp_path: Path) -> None:
    """No model is asked; what was run stands in the conversation, or, quietly, on record alone."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "Thanks.")
        assert (await agent.execute("/py pumps = 12\npumps * 2")).text == "24"
        assert (await agent.execute("/py --quiet pumps + 1")).text == "13"
        failed = await agent.execute("/py 1 / 0")
        assert failed.is_error
        assert "ZeroDivisionError" in failed.text
        said = await shown(agent)
        assert sum("/py pumps" in each for each in said) == 1
        assert "24" in next(each for each in said if "/py pumps = 12" in each)
        spec = o.supervisor.tree.agents[agent.id].spec
        [quiet] = [each for each in read_session(Path(spec.folder)).entries if isinstance(each, Custom)]
        assert quiet.data == {"line": "/py pumps + 1", "text": "13", "is_error": False}
        assert (await agent.state()).queries == 1
        assert (await agent.query("Go on.")).text == "Thanks."


async def test_code_that_takes_the_process_along_is_told_of(tmp_path: Path) -> None:
    """Whoever ran it hears so, and so does the agent, whose next process has none of its names."""
    async with opened(tmp_path) as o:
        agent = await talking(o, "Oh.")
        ran = asyncio.ensure_future(agent.execute("/py import threading; threading.Event().wait(1)"))
        await until(lambda: any(topic.startswith("did:") for topic in o.supervisor.waiters._topics))
        o.launcher.worker(agent.id).die(9)
        with pytest.raises(AgentDiedError, match="ended before it was done"):
            await ran
        assert "names in Python are gone" in (await shown(agent))[-1]
        assert (await agent.query("Go on.")).text == "Oh."


async def test_what_nobody_waits_for_any_more_ends(tmp_path: Path) -> None:
    """As after Ctrl-C: the code is stopped, the agent is told that somebody ended it, and the names stay."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        ran = asyncio.ensure_future(agent.execute("/py turns = 0\nwhile True: turns += 1"))
        await until(lambda: any(topic.startswith("did:") for topic in o.supervisor.waiters._topics))
        await asyncio.sleep(0)
        ran.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ran
        while "(the user ended it before it was done)" not in (await shown(agent))[-1]:  # noqa: ASYNC110  # gives way
            await asyncio.sleep(0)
        told = ""
        while told != "True":  # a thread hears it a moment later
            told = (await agent.execute("/py --quiet turns > 0")).text
            await asyncio.sleep(0)


async def test_what_is_run_while_the_agent_works_is_heard_as_what_is_steered(tmp_path: Path) -> None:
    """Between a call and its result nothing can stand in the conversation: it is told before the next request."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await o.scripted({"tool": "gate"}, "Done.", tools=[gate.tool()], context="none")
        asked = asyncio.ensure_future(agent.query("Wait."))
        await gate.called.wait()
        assert (await agent.execute("/py 6 * 7")).text == "42"
        gate.open.set()
        await asked
        assert any("/py 6 * 7" in each and "42" in each for each in await shown(agent))


async def test_a_template_that_cannot_be_filled_in_takes_nothing_else_along(tmp_path: Path) -> None:
    """Every command is there, and every other template; what is wrong with that one is said."""
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
        told = await agent.execute("/templates")
        assert [row["name"] for row in told.data] == ["explain"]
        assert "invalid variable after {{" in told.text
        with pytest.raises(ConfigError, match="invalid variable after"):
            await agent.execute("/template broken")


async def test_a_template_is_a_command(tmp_path: Path) -> None:
    """Values come first, what else is said is its text; it is in the catalog, but for a name that is taken."""
    async with opened(tmp_path) as o:
        o.register_prompt_template("explain", "Explain in {{language}}: {{text}}")
        o.register_prompt_template("state", "State your name.")
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row.usage for row in catalog.commands if row.source == "template"] == [
            "/explain [language=...] [text=...] [TEXT...]"
        ]
        assert catalog.notes == ("/state of template is left out: there is one of built-in",)
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


def put(home: Path, code: str = PACK, said: str = SAID) -> Path:
    """Install an extension for the user."""
    folder = home / "extensions" / "pack"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "extension.toml").write_text(said)
    (folder / "extension.py").write_text(code)
    return folder


async def test_extensions_bring_commands_keys_and_widgets(tmp_path: Path) -> None:
    """They run in the agent's process and are on record; what is taken stays whose it is, and is said."""
    put(tmp_path)
    async with opened(tmp_path) as o:
        agent = await talking(o)
        catalog = await agent.commands()
        [row] = [row for row in catalog.commands if row.source == "extension pack"]
        assert (row.usage, row.key) == ("/todo [WANTED...] [--count]", "f6")
        assert [(key.key, key.command) for key in catalog.keys] == [("f6", "/todo"), ("c-t", "/tasks")]
        assert [widget.command for widget in catalog.widgets] == ["/todo --count"]
        assert catalog.notes == (
            "/state of extension pack is left out: there is one of built-in",
            "key f7 of extension pack is left out: there is no command /nothing",
            "widget money of extension pack is left out: /usage is no command of an extension",
        )
        done = await agent.execute("/todo --count the valves")
        assert done.text == f"[('count', 'yes'), ('wanted', 'the valves')] for {agent.id}"
        spec = o.supervisor.tree.agents[agent.id].spec
        [entry] = [each for each in read_session(Path(spec.folder)).entries if isinstance(each, Custom)]
        assert entry.data["line"] == "/todo --count the valves"
        shown = await o._call(EXECUTE_COMMAND, Execute(agent.id, "/todo --count", shows=True))
        assert shown.text.startswith("[('count', 'yes')]")
        assert sum(isinstance(each, Custom) for each in read_session(Path(spec.folder)).entries) == 1
        with pytest.raises(ConfigError, match="/agents is no widget's"):
            await o._call(EXECUTE_COMMAND, Execute(agent.id, "/agents", shows=True))
        assert [row["keys"] for row in (await agent.execute("/extensions")).data] == [
            {"f6": "/todo", "c-t": "/tasks", "f7": "/nothing"}
        ]
        with pytest.raises(ConfigError, match="/state: it takes no 'now'"):
            await agent.execute("/state now")


async def test_one_that_is_left_out_brings_nothing(tmp_path: Path) -> None:
    """Its commands are not there, its keys lead nowhere, and the catalog says why."""
    put(tmp_path, "def register(extension):\n    raise RuntimeError('broken')\n")
    async with opened(tmp_path) as o:
        agent = await talking(o)
        catalog = await agent.commands()
        assert [row for row in catalog.commands if row.source != BUILT_IN] == []
        assert [key.key for key in catalog.keys] == ["c-t"]
        assert any("RuntimeError: broken" in note for note in catalog.notes)


async def changes(o: World) -> list[str]:
    """Return the agents whose catalogs have changed, by what happened."""
    return [event.agent_id for event in await o.events() if event.kind == "catalog_changed"]


async def test_that_a_catalog_has_changed_is_an_event(tmp_path: Path) -> None:
    """A template of the program is enough; who never looked at a catalog is told nothing."""
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


async def test_a_skill_is_asked_for_by_name(tmp_path: Path) -> None:
    """The agent reads it as it always does, so that what was read is on record; one that it has not is told."""
    async with opened(tmp_path) as o:
        o.register_skill(Skill("pumps", "Work on pumps.", "Close the red valve first."))
        agent = await talking(o)
        assert [row["name"] for row in (await agent.execute("/skills")).data] == ["pumps"]
        effect = (await agent.execute("/skill pumps mend it")).effect
        assert effect is not None
        assert effect.kind == "ask"
        assert effect.text.endswith("read it first, with read_skill.\n\nmend it")
        with pytest.raises(ConfigError, match="no skill 'valves'; it has pumps"):
            await agent.execute("/skill valves")


async def test_no_agent_executes_commands(tmp_path: Path) -> None:
    """They are for people: no tool asks for that service."""
    async with opened(tmp_path) as o:
        agent = await talking(o)
        for service in (EXECUTE_COMMAND, LIST_COMMANDS):
            with pytest.raises(ToolNotGrantedError):
                check_grant(o.supervisor.tree.agents[agent.id].spec, service)
