"""Sessions: agents for conversations, with their own instructions, history, approver and options."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orch import (
    AgentOptions,
    AsyncOrchestrator,
    AsyncSession,
    Executor,
    Limits,
    ScriptedBackend,
    ToolContext,
    ToolSpec,
    assistant,
    user,
)
from orch_protocol.core.errors import AgentNotFoundError, ConfigError
from orch_protocol.core.messages import ToolResult, ToolUse, text_of
from orch_protocol.policy.approval import Question
from orchestrator.root_double import opened


class NoTools(Executor):
    """An executor without tools."""

    def list(self) -> Sequence[ToolSpec]:
        return []

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        raise AssertionError(name, arguments, context)


async def test_session_is_an_agent_that_executes_commands(tmp_path: Path) -> None:
    """`run` sends a prompt, and `execute` runs a command."""
    async with opened(tmp_path) as o:
        chat = await o.session(backend=ScriptedBackend(["Hello.", "Twelve."]), tools=["read_file"], name="chat")
        assert isinstance(chat, AsyncSession)
        assert (await chat.run("Hello?")).text == "Hello."
        events = []
        assert (await chat.run("How many?", on_event=events.append)).text == "Twelve."
        assert events
        assert (await chat.execute("/tools")).data["tools"] == ["read_file"]
        assert [row.name for row in await o.agents()] == ["chat"]


async def test_session_has_its_instructions_and_history(tmp_path: Path) -> None:
    """Instructions are used literally, including braces, and the conversation begins with the history."""
    async with opened(tmp_path) as o:
        history = [user("My name is Ada."), assistant("Hello, Ada.")]
        chat = await o.session(
            backend=ScriptedBackend(["Ada."]), system="Speak {{plainly}}.", history=history, plan=True
        )
        await chat.run("Who am I?")
        assert (await chat.prompt_parts()).render("stable").startswith("Speak {{plainly}}.")
        assert [text_of(each) for each in (await chat.show()).messages][:2] == ["My name is Ada.", "Hello, Ada."]
        assert (await chat.state()).planning


async def test_session_resumes_the_latest_conversation(tmp_path: Path) -> None:
    """A killed session is resumed too, a name selects any agent, and a new session is created if there is none."""
    async with opened(tmp_path) as o:
        assert await o.session(resume=True, backend=ScriptedBackend(["one"]), name="first")
        first = await o.session(resume=True)
        assert first.name == "first"
        other = await o.session(backend=ScriptedBackend(["two"]), name="second")
        await other.run("Hello?")
        worker = await o.scripted("three", name="worker")
        await worker.query("Go.")
        await other.kill()
        assert (await o.session(resume=True)).name == "second"
        assert (await (await o.session(resume="worker")).state()).task == "work"
        with pytest.raises(AgentNotFoundError):
            await o.session(resume="nobody")


async def test_arguments_that_a_resumed_agent_cannot_use_are_an_error(tmp_path: Path) -> None:
    """The error names the arguments, and a killed agent stays killed. `approve` applies to a resumed agent."""
    async with opened(tmp_path) as o:
        chat = await o.session(backend=ScriptedBackend(["one"]), name="first")
        await chat.kill()
        with pytest.raises(ConfigError, match=r"^task, system, history, tools cannot be changed .* 'first' is resumed"):
            await o.session(task="Sum up", resume="first", system="Be brief.", history=[user("Hello")], tools=[])
        assert (await chat.state()).status == "killed"
        with pytest.raises(ConfigError, match="tool_executor cannot be changed"):
            await o.session(resume="first", tool_executor="package.module:Remote")
        with pytest.raises(ConfigError, match="'first' is resumed, because the agent was spawned without an executor"):
            await o.session(resume="first", tool_executor=NoTools())
        assert (await o.session(resume="first", approve=lambda _: False, tools=None)).id == chat.id


async def test_default_values_are_accepted_when_a_session_is_resumed(tmp_path: Path) -> None:
    """They change nothing."""
    async with opened(tmp_path) as o:
        chat = await o.session(backend=ScriptedBackend(["one"]), name="first")
        assert (await o.session(resume="first", plan=False, persist=True, history=())).id == chat.id


async def test_resume_none_starts_a_session(tmp_path: Path) -> None:
    async with opened(tmp_path) as o:
        chat = await o.session(backend=ScriptedBackend(["one"]))
        assert (await o.session(resume=None, backend=ScriptedBackend(["two"]))).id != chat.id


async def test_session_has_its_own_approver(tmp_path: Path) -> None:
    """The approver of a session answers for this session only; the orchestrator's approver answers for others."""
    asked: list[str] = []

    def yes(question: Question) -> bool:
        asked.append(question.agent)
        return True

    call = {"tool": "task_create", "input": {"tasks": ["look"]}}

    async def tasks(session: AsyncSession) -> int:
        await session.run("Plan.")
        return len((await session.show()).tasks)

    async with opened(tmp_path, approve=lambda _: False) as o:
        mine = await o.session(backend=ScriptedBackend([call, "x"]), tools=["tasks"], approve=yes, name="mine")
        theirs = await o.session(backend=ScriptedBackend([call, "x"]), tools=["tasks"], name="theirs")
        assert (await tasks(mine), await tasks(theirs)) == (1, 0)
        assert asked == ["mine"]
        with pytest.raises(ConfigError, match="approve must be a function"):
            await o.session(approve=True)  # type: ignore[arg-type]


def test_session_options_are_the_arguments_of_spawn() -> None:
    """All arguments except the task and the depth are options, with the same types."""
    taken = inspect.signature(AsyncOrchestrator.spawn).parameters
    types = {name: each.annotation for name, each in taken.items() if name not in ("self", "task", "depth", "_place")}
    assert {name: each.__forward_arg__ for name, each in AgentOptions.__annotations__.items()} == types


async def test_session_takes_options_of_spawn(tmp_path: Path) -> None:
    """The spec of the agent has the given environment, limits, template, peers, queue mode and task."""
    async with opened(tmp_path) as o:
        peer = await o.scripted("x", name="peer")
        o.register_prompt_template("terse", "Be terse.")
        options: AgentOptions = {
            "backend": ScriptedBackend(["x"]),
            "env": {"PUMP": "7"},
            "limits": Limits(max_turns=3),
            "max_cost": 2.0,
            "prompt_template": "terse",
            "peers": [peer],
            "queue_mode": "all",
        }
        chat = await o.session(task="Count pumps.", **options)
        node = o.supervisor.tree.agents[chat.id]
        assert (node.spec.task, node.spec.env, node.spec.limits.max_turns) == ("Count pumps.", {"PUMP": "7"}, 3)
        assert (node.spec.limits.max_cost_usd, node.spec.peers) == (2.0, (peer.id,))
        assert (node.spec.queue_mode, node.spec.depth, node.spec.prompt.identity) == ("all", 0, "Be terse.")


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"nonsense": 1}, TypeError, r"session\(\) got an unexpected keyword argument 'nonsense'"),
        ({"depth": 1}, TypeError, "'depth'"),
        ({"system": "a", "prompt_template": "b"}, ConfigError, "not both"),
        ({"system": "a", "vars": {"b": 1}}, ConfigError, "not both"),
        ({"system": "a", "agent": "reviewer"}, ConfigError, "not both"),
        ({"approve": True}, ConfigError, "approve must be a function"),
        ({"history": "hello"}, ConfigError, "history must be a list"),
        ({"history": [user("a"), {"role": "robot"}]}, ConfigError, r"history\[1\]: a message must have the role"),
        ({"history": [{"role": "user", "content": {1, 2}}]}, ConfigError, r"history\[0\].content is a set"),
        ({"history": ["hello"]}, ConfigError, r"history\[0\]: a message must be an object with a role; got 'hello'"),
    ],
    ids=str,
)
async def test_invalid_session_options_are_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], match: str
) -> None:
    """An invalid option raises an error before an agent is spawned."""
    async with opened(tmp_path) as o:
        with pytest.raises(error, match=match):
            await o.session(backend=ScriptedBackend(["x"]), **given)
        assert await o.agents(all=True) == []


CALL, RESULT = {"what": "pumps"}, "12"
HISTORIES = {
    "anthropic": [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "count", "input": CALL}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": RESULT}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Twelve."}]},
    ],
    "openai": [
        {"role": "user", "content": "How many?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"what": "pumps"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": RESULT},
        {"role": "assistant", "content": "Twelve."},
    ],
    "responses": [
        {"role": "user", "content": [{"type": "input_text", "text": "How many?"}]},
        {"type": "function_call", "call_id": "c1", "name": "count", "arguments": '{"what": "pumps"}'},
        {"type": "function_call_output", "call_id": "c1", "output": RESULT},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Twelve."}]},
    ],
}


class _SdkMessage:
    """A message as a provider's SDK returns it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self._data


@pytest.mark.parametrize("format", HISTORIES)
@pytest.mark.parametrize("wrap", [dict, _SdkMessage], ids=["data", "objects"])
async def test_history_takes_messages_of_providers(tmp_path: Path, format: str, wrap: Any) -> None:
    """The messages can contain tool calls and results, and messages of orch can follow them."""
    async with opened(tmp_path) as o:
        history = [*map(wrap, HISTORIES[format]), user("Thanks."), assistant("You are welcome.")]
        chat = await o.session(backend=ScriptedBackend(["x"]), history=history)
        await chat.run("Bye.")
        question, call, result, answer, *rest = (await chat.show()).messages
        assert (text_of(question), text_of(answer)) == ("How many?", "Twelve.")
        assert call.content == (ToolUse("c1", "count", CALL),)
        assert [type(block) for block in result.content] == [ToolResult]
        assert [text_of(each) for each in rest[:2]] == ["Thanks.", "You are welcome."]
