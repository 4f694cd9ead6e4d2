"""Extensions, tools, slash commands and events that a program registers for all its agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import Config, Effect, Extension, HooksConfig, Skill, hook, tool
from orch_protocol.core.errors import AgentError, ConfigError
from orch_protocol.core.messages import Message, ToolResult, text_of
from orch_protocol.resources.slash_commands import CommandCatalog
from orch_protocol.services.resources.slash_commands import EXECUTE_COMMAND, Execute
from orchestrator.root_double import World, nesting, opened

GONE = "Tool 'look_up' is not available: the program that registered it ended or removed it"
LOOK_UP = {"tool": "look_up", "input": {"word": "pump"}}


def look_up(word: str) -> str:
    """Look a word up."""
    return f"what {word} means"


@hook("tool_result")
def shout(event: Any, _ctx: Any) -> Any:
    """Change each result."""
    return event.patch(text=event.text.upper())


def depth(args: dict[str, str], ctx: Any) -> Any:
    """show the depth of the agent"""
    return {"depth": ctx.depth, "messages": len(ctx.messages), **args}


def pumps(name: str = "pumps", **more: Any) -> Extension:
    """Return an extension with a part of each kind."""
    parts: dict[str, Any] = {
        "hooks": [shout],
        "tools": [look_up],
        "prompt_templates": {"engineer": "You know {{what}}."},
        "skills": [Skill("priming", "How to prime a pump.", "Fill it with water.")],
        "commands": {"depth": depth},
        "keys": {"f6": "/depth"},
        "widgets": [{"name": "depth", "command": "/depth", "title": "depth"}],
    }
    return Extension(name, description="knows pumps", **(parts | more))


def state(o: World) -> tuple[Any, ...]:
    """Return the names of all registered objects, by kind."""
    program = o._program
    return (
        [row.name for row in o._hooks.registered],
        list(program.tools),
        list(program.commands),
        [manifest.name for manifest in program.manifests],
        [template.name for template in o.prompt_templates.list()],
        [skill.name for skill in o.skills.registered()],
    )


def results(messages: tuple[Message, ...]) -> list[str]:
    """Return the texts of the tool results in `messages`."""
    blocks = (block for message in messages for block in message.content)
    return [text_of(Message("user", block.content)) for block in blocks if isinstance(block, ToolResult)]


def brought(catalog: CommandCatalog) -> list[tuple[str, str, str]]:
    """Return name, source and key of the commands that are not built in."""
    return [(row.name, row.source, row.key) for row in catalog.commands if row.source != "built-in"]


class TestExtension:
    """`o.register_extension`."""

    async def test_everything_in_an_extension_takes_effect(self, tmp_path: Path) -> None:
        """The parts are hooks, tools, prompt templates, skills, commands, keys and widgets."""
        async with opened(tmp_path) as o:
            assert o.register_extension(pumps()) == "pumps"
            agent = await o.scripted(
                LOOK_UP, "done", preset="minimal", prompt_template="pumps:engineer", vars={"what": "pumps"}
            )
            assert (await agent.query("go")).text == "done"
            assert results((await agent.show()).messages) == ["WHAT PUMP MEANS"]
            system = (await agent.prompt_parts()).render("stable")
            assert system.startswith("You know pumps.")
            assert "- priming: How to prime a pump." in system
            catalog = await agent.commands()
            assert brought(catalog) == [("depth", "extension pumps", "f6"), ("pumps:engineer", "template", "")]
            assert [(widget.name, widget.source) for widget in catalog.widgets] == [("depth", "extension pumps")]
            assert "pumps.shout" in {row.name for row in o.hooks.list()}

    async def test_unregistered_extension_leaves_nothing(self, tmp_path: Path) -> None:
        """A later call of its tool gets an error result, and the extension can be registered again."""
        async with opened(tmp_path) as o:
            before = state(o)
            o.register_extension(pumps())
            agent = await o.scripted(LOOK_UP, "done", tools=["look_up"])
            o.unregister_extension("pumps")
            assert state(o) == before
            await agent.query("go")
            assert results((await agent.show()).messages) == [
                "Tool 'look_up' is not available: the program that registered it ended or removed it"
            ]
            assert brought(await agent.commands()) == []
            with pytest.raises(ConfigError, match="no extension 'pumps' is registered; registered: none"):
                o.unregister_extension("pumps")
            assert o.register_extension(pumps()) == "pumps"

    @pytest.mark.parametrize(
        ("clashing", "why"),
        [
            (lambda: pumps(), "an extension 'pumps' is registered already"),
            (lambda: Extension("b", keys={"f7": "/x", "f6": "/x"}), "key 'f6' is bound by extension 'pumps'"),
            (lambda: Extension("b", tools=[look_up]), "a tool 'look_up' is registered already"),
            (lambda: Extension("b", tools=[tool(name="bash")(look_up)]), "tool 'bash' is a built-in tool"),
            (lambda: Extension("b", commands={"help": depth}), "a command /help is built in already"),
            (lambda: Extension("b", commands={"depth": depth}), "/depth is registered by extension pumps already"),
            (lambda: Extension("b", skills=[Skill("priming", "d", "b")]), "a skill named 'priming' already exists"),
            (lambda: Extension("b", hooks=[hook("session_end")(print)]), "session_end cannot call functions"),
            (lambda: Extension("b", prompt_templates={"x": "{{"}), "invalid variable after {{"),
            (lambda: object(), "register_extension takes an orch.Extension"),
        ],
    )
    async def test_clash_is_an_error_and_registers_nothing(
        self, tmp_path: Path, clashing: Callable[[], Any], why: str
    ) -> None:
        """The error names what is already in use; earlier registrations are unchanged."""
        async with opened(tmp_path) as o:
            o.register_extension(pumps())
            before = state(o)
            other = clashing()
            if isinstance(other, Extension) and other.name == "b":
                other.register_hook(lambda _event, _ctx: None, "turn_end", name="first")
                other.register_slash_command("first", depth)
            with pytest.raises(ConfigError) as raised:
                o.register_extension(other)
            assert why in str(raised.value)
            assert state(o) == before

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"name": "Bad Name"}, "extension 'Bad Name': Expected `str` matching regex"),
            ({"tools": [look_up, look_up]}, "two tools 'look_up' in extension 'pumps'"),
            ({"hooks": [shout, shout]}, "two hooks 'shout' in extension 'pumps'"),
            ({"commands": {"Big": depth}}, "invalid command name 'Big'"),
            ({"keys": {"c-c": "/x"}}, "extension 'pumps': keys: 'c-c' is reserved"),
            ({"widgets": [{"name": "w"}]}, "extension 'pumps': Object missing required field `command`"),
            ({"skills": ["priming"]}, "a skill must be a Skill"),
            ({"prompt_templates": {"x": 3}}, "prompt template 'x' must be a string"),
        ],
    )
    def test_invalid_part_is_an_error_where_the_extension_is_made(self, options: dict[str, Any], why: str) -> None:
        """The constructor of Extension raises the error for an invalid part."""
        with pytest.raises(ConfigError) as raised:
            pumps(**options)
        assert why in str(raised.value)

    def test_decorators_add_parts(self) -> None:
        """The manifest lists the hooks, tools and commands that decorators added."""
        extension = Extension("deco")

        @extension.hook("turn_end", name="ends")
        def watch(_event: Any, _ctx: Any) -> None: ...

        @extension.tool(name="search")
        def find(word: str) -> str:
            """Find a word."""
            return word

        @extension.command("find", arguments=["word", "--dry"])
        def find_it(args: dict[str, str], ctx: Any) -> None: ...

        manifest = extension.manifest
        assert (manifest.name, manifest.permissions.stages) == ("deco", ("turn_end",))
        assert (manifest.permissions.tools, manifest.permissions.commands) == (("search",), ("find",))
        assert extension.commands[0].row.usage == "/find WORD [--dry]"

    async def test_folder_extension_of_the_same_name_is_left_out(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A note states it; a tool with the name of a registered tool is left out too."""
        for name, tools in (("pumps", '["prime"]'), ("other", '["look_up"]')):
            folder = tmp_path / "extensions" / name
            folder.mkdir(parents=True)
            (folder / "extension.toml").write_text(f'name = "{name}"\n[permissions]\ntools = {tools}\n')
            (folder / "extension.py").write_text("def register(extension): ...\n")
        async with opened(tmp_path) as o:
            o.register_extension(pumps())
            agent = await o.scripted("done", preset="minimal")
            spec = o.supervisor.tree.agents[agent.id].spec
            assert [(each.manifest.name, each.tools) for each in spec.extensions] == [("other", ())]
            assert "look_up" in spec.grant
        err = capsys.readouterr().err
        assert f"extension {tmp_path}/extensions/pumps is left out: the program registered one of this name" in err
        assert "tool 'look_up' of extension 'other' is left out: the program registered one of this name" in err


class TestTool:
    """`o.register_tool`."""

    async def test_registered_tool_is_in_presets_and_must_be_named_in_lists(self, tmp_path: Path) -> None:
        """Agents that were spawned before the registration do not have the tool."""
        async with opened(tmp_path) as o:
            early = await o.scripted("done", preset="minimal")
            assert o.register_tool(look_up) == "look_up"
            agents = [await o.scripted("done", **how) for how in ({"preset": "minimal"}, {"tools": ["read_file"]})]
            named = await o.scripted(LOOK_UP, "done", tools=["read_file", "look_up"])
            grants = [o.supervisor.tree.agents[each.id].spec.grant for each in (early, *agents, named)]
            assert ["look_up" in grant for grant in grants] == [False, True, False, True]
            await named.query("go")
            assert results((await named.show()).messages) == ["what pump means"]

    async def test_tool_or_command_that_is_defined_again_is_replaced(self, tmp_path: Path) -> None:
        """A notebook cell may run twice; a different function with the same name is an error."""
        cell = "def shout(word: str) -> str:\n    'Shout.'\n    return word\ndef say(args, ctx): return 'it'\n"
        async with opened(tmp_path) as o:
            for _ in range(2):
                defined: dict[str, Any] = {"__name__": "cell"}
                exec(cell, defined)
                o.register_tool(defined["shout"])
                o.register_slash_command("say", defined["say"])
            assert o._program.tools["shout"].function is defined["shout"]
            assert o._program.commands["say"].function is defined["say"]
            with pytest.raises(ConfigError, match="a tool 'shout' is registered already"):
                o.register_extension(Extension("b", tools=[defined["shout"]]))
            with pytest.raises(ConfigError, match="a tool 'shout' is registered already"):
                o.register_tool(tool(name="shout")(look_up))
            with pytest.raises(ConfigError, match="a command /say is registered by this program already"):
                o.register_slash_command("say", depth)
            with pytest.raises(ConfigError, match="a command /say is registered by this program already"):
                o.register_slash_command("other", depth, aliases=["say"])

    async def test_subagent_has_at_most_the_registered_tools_of_its_parent(self, tmp_path: Path) -> None:
        """Without a tool list, a subagent has all of them, except those that were revoked."""
        async with opened(tmp_path, config=nesting()) as o:
            o.register_tool(look_up)
            o.register_tool(tool(name="other")(look_up))
            spawn = {"tool": "spawn_subagent", "input": {"task": "dig"}}
            names = ["spawn_subagent", "look_up", "other"]
            narrow = {"tool": "spawn_subagent", "input": {"task": "b", "tools": ["other"]}}
            first = await o.scripted(spawn, narrow, "done", tools=names)
            await first.query("go")
            second = await o.scripted(spawn, "done", tools=names)
            await second.revoke_tools(keep=["spawn_subagent", "look_up"])
            await second.query("go")
            children = [row.id for row in await o.agents() if row.depth == 2]
            tools = [[spec.name for spec in o.supervisor.tree.agents[id].spec.root_tools] for id in children]
            assert tools == [["look_up", "other"], ["other"], ["look_up"]]

    async def test_registered_tool_works_again_when_its_run_is_reopened(self, tmp_path: Path) -> None:
        """An agent of a reopened run can call the tool if the program has registered it again."""
        async with opened(tmp_path, run="r") as o:
            o.register_tool(look_up)
            agent = await o.scripted(LOOK_UP, "one", LOOK_UP, "two", tools=["look_up"])
            await agent.query("go")
        async with opened(tmp_path, run="r") as o:
            o.register_tool(look_up)
            again = await o.get(agent.id)
            assert (await again.query("go on")).text == "two"
            assert results((await again.show()).messages) == ["what pump means"] * 2


class TestCommand:
    """`o.register_slash_command`."""

    async def test_command_runs_in_the_program_and_is_recorded(self, tmp_path: Path) -> None:
        """A command of the user is recorded, and a call by a widget is not."""
        async with opened(tmp_path) as o:
            o.register_extension(pumps())
            agent = await o.scripted("done", tools=[])
            await agent.query("go")
            did = await agent.execute("/depth of it")
            assert did.data == {"depth": 1, "messages": 2, "text": "of it"}
            entries = await agent.session.get_meta("command")
            assert [(meta.data["line"], meta.data["is_error"]) for meta in entries] == [("/depth of it", False)]
            assert (await o._call(EXECUTE_COMMAND, Execute(agent.id, "/depth", shows=True))).data == {
                "depth": 1,
                "messages": 2,
            }
            assert len(await agent.session.get_meta("command")) == 1

    async def test_command_can_keep_state_steer_and_return_an_effect(self, tmp_path: Path) -> None:
        """The command may be an async function, and its state belongs to one agent."""

        async def again(args: dict[str, str], ctx: Any) -> Effect:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            ctx.follow_up(f"again {ctx.state['n']} {args['word']}")
            return Effect("edit", text=ctx.agent_id)

        async with opened(tmp_path) as o:
            o.register_slash_command("again", again, summary="do it again", arguments=["word"], aliases=["more"])
            one, two = await o.scripted("1", "2", "3", tools=[]), await o.scripted("1", tools=[])
            await one.execute("/again x")
            assert (await one.execute("/more y")).effect == Effect("edit", text=one.id)
            await two.execute("/again z")
            for _ in range(50):
                await asyncio.sleep(0)
            for agent, expected in ((one, ["again 1 x", "again 2 y"]), (two, ["again 1 z"])):
                prompts = [text_of(m) for m in (await agent.show()).messages if m.role == "user"]
                found = [
                    text for text in ("again 1 x", "again 2 y", "again 1 z") if any(text in each for each in prompts)
                ]
                assert found == expected

    async def test_failing_command_is_reported_as_an_error(self, tmp_path: Path) -> None:
        """A command that exceeds its deadline is reported too; a killed agent runs no commands."""
        go = threading.Event()

        def broken(_args: dict[str, str], _ctx: Any) -> None:
            raise KeyError("pump")

        async with opened(tmp_path) as o:
            o.register_slash_command("broken", broken)
            o.register_slash_command("slow", lambda _args, _ctx: go.wait(10), timeout=0.01)
            agent = await o.scripted("done", tools=[])
            did = await agent.execute("/broken")
            assert (did.text, did.is_error) == ("/broken of this program failed: KeyError: 'pump'", True)
            assert "did not answer within 0.01 s" in (await agent.execute("/slow")).text
            go.set()
            await agent.kill()
            with pytest.raises(AgentError, match="killed"):
                await agent.execute("/broken")

    async def test_change_of_commands_is_an_event(self, tmp_path: Path) -> None:
        """A session whose catalog was requested gets the event `catalog_changed`."""
        async with opened(tmp_path) as o:
            agent = await o.scripted("done", tools=[])
            await agent.commands()
            o.register_slash_command("depth", depth)
            changed: list[Any] = []
            while not changed:
                changed = [event for event in await o.events() if event.kind == "catalog_changed"]
                await asyncio.sleep(0)
            assert changed[0].agent_id == agent.id


async def test_hooks_change_the_data_of_an_emitted_event(tmp_path: Path) -> None:
    """Hooks run in order of priority, and observers get the changed data."""
    seen, found = list[Any](), asyncio.Event()
    async with opened(tmp_path) as o:

        @o.on("custom_event", priority=1, name="double")
        def double(event: Any, _ctx: Any) -> Any:
            return event.patch(data={**event.data, "n": event.data["n"] * 2})

        @o.on("custom_event", priority=2)
        async def more(event: Any, _ctx: Any) -> Any:
            return {"data": event.data | {"name": event.name}}

        @o.on("custom_event", kind="observe", priority=3)
        async def look(event: Any, ctx: Any) -> None:
            seen.append((event.name, event.data, event.agent_id, ctx.agent_id))
            found.set()

        agent = await o.scripted("done", tools=[])
        changed = await o.emit_event(agent, "deploy", {"n": 2})
        assert changed == {"n": 4, "name": "deploy"}
        await found.wait()
        assert seen == [("deploy", changed, agent.id, agent.id)]
        o.hooks.disable("double")
        assert await o.emit_event(agent.id, "deploy", data={"n": 2}) == {"n": 2, "name": "deploy"}


async def test_emitted_events_are_listed(tmp_path: Path) -> None:
    """The list has the data that hooks changed, and a caller that waits for events gets the event at once."""
    async with opened(tmp_path) as o:
        o.register_hook(lambda event, _ctx: {"data": event.data | {"n": 2}}, "custom_event", name="two")
        agent = await o.scripted("done", tools=[])
        waiting = asyncio.ensure_future(o.events((await o.events())[-1].n, timeout=60))
        await asyncio.sleep(0)
        await o.emit_event(agent, "deploy", data={"n": 1})
        [event] = await waiting
        assert (event.kind, event.agent_id, event.turn) == ("custom_event", agent.id, "")
        assert event.data == {"name": "deploy", "data": {"n": 2}}


async def test_failing_hook_does_not_change_an_emitted_event(tmp_path: Path) -> None:
    """A failed hook leaves the data of the event unchanged, and the failure is counted as its error."""
    async with opened(tmp_path) as o:
        o.register_hook(lambda _event, _ctx: 1 / 0, "custom_event", name="broken")
        o.register_hook(lambda _event, _ctx: {"data": 3}, "custom_event", name="wrong")
        o.register_hook(lambda event, _ctx: event.patch(data={"x": object()}), "custom_event", name="object")
        agent = await o.scripted("done", tools=[])
        assert await o.emit_event(agent, "deploy", data={"n": 2}) == {"n": 2}
        o._hooks.close()
        errors = {row.name: row.last_error for row in o.hooks.list() if row.errors}
        assert errors["broken"] == "failed: ZeroDivisionError: division by zero"
        assert errors["wrong"].startswith("changed 'data' to an invalid value")
        assert errors["object"].startswith("returned what is not JSON data: ")


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("tool_call", {}, "invalid event name 'tool_call'"),
        ("pre-tool", {}, "invalid event name 'pre-tool'"),
        ("", {}, "invalid event name ''"),
        ("deploy", {"x": object()}, "event 'deploy': data must be a mapping with JSON data"),
        ("deploy", 3, "event 'deploy': data must be a mapping with JSON data"),
        ("deploy", {"x": 10**40}, "event 'deploy': a number in its data has more than 64 bits"),
    ],
)
async def test_invalid_event_is_refused(tmp_path: Path, name: str, data: Any, why: str) -> None:
    """A program cannot emit the events of orch, and the data must be JSON."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("done", tools=[])
        with pytest.raises(ConfigError) as raised:
            await o.emit_event(agent, name, data=data)
        assert why in str(raised.value)


async def test_hook_in_the_agents_process_observes_emitted_events(tmp_path: Path) -> None:
    """The end of a turn waits until its observers have received all events."""
    found, file = tmp_path / "told", tmp_path / "look.py"
    file.write_text(
        "from orch import hook\n\n@hook('custom_event')\ndef look(event, ctx):\n"
        f"    with open({str(found)!r}, 'w') as file:\n        file.write(f'{{event.name}} {{event.data}}')\n"
    )
    config = Config(hooks=HooksConfig((str(file),)))
    async with opened(tmp_path / "home", config=config) as o:
        agent = await o.scripted("one", "two", tools=[])
        await agent.query("go")
        await o.emit_event(agent, "deploy", data={"n": 1})
        await agent.query("go on")
    assert found.read_text() == "deploy {'n': 1}"
