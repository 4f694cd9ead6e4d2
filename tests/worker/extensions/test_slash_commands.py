"""Slash commands of extensions: their definition, their arguments and their results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import user
from orch_protocol.resources.slash_commands import Argument, Effect, UserActionResult
from orch_worker.extensions.slash_commands import ExtensionCommands, SlashCommand, argument_of, make_command
from orch_worker.tools.api.base import ToolContext


class Agent:
    """The part of an agent that commands can access."""

    def __init__(self, folder: Path) -> None:
        self.spec = AgentSpec("a1", 1, "a", "work", BackendSpec("scripted"), str(folder), str(folder), "")
        self.said: list[tuple[str, bool]] = []

    @property
    def backend(self) -> Any:
        """The object with the conversation."""
        return self

    def transcript(self) -> list[Any]:
        """Return the conversation."""
        return [user("hello")]

    def queue_own_message(self, text: str, follow_up: bool) -> None:
        """Record `text`."""
        self.said.append((text, follow_up))


def made(function: Callable[..., Any], name: str = "do", **options: Any) -> SlashCommand:
    """Return a command of an extension with the name `pack`."""
    return make_command(name, function, source="extension pack", **options)


async def run(
    commands: ExtensionCommands, command: SlashCommand, agent: Agent, text: dict[str, str] | None = None
) -> UserActionResult:
    """Return the result of `command` for `agent`."""
    return await commands.run(command, text or {}, commands.context(command, agent))


async def ran(
    folder: Path, function: Callable[..., Any], text: dict[str, str] | None = None, **options: Any
) -> UserActionResult:
    """Run a command with this function, and return the result."""
    commands = ExtensionCommands(ToolContext(folder))
    try:
        return await run(commands, made(function, **options), Agent(folder), text or {})
    finally:
        commands.close()


@pytest.mark.parametrize(
    ("expected", "argument"),
    [
        ("path", Argument("path", required=True)),
        ("[path]", Argument("path")),
        ("text...", Argument("text", required=True, rest=True)),
        ("[text...]", Argument("text", rest=True)),
        ("--to=", Argument("to", option=True)),
        ("--dry", Argument("dry", "choice", option=True)),
    ],
)
def test_command_arguments_follow_the_usage_line(expected: str, argument: Argument) -> None:
    """Arguments in brackets are optional."""
    assert argument_of("do", expected) == argument


def test_command_usage_and_description_come_from_the_function() -> None:
    """The parameters and the docstring of the function are the defaults."""

    def do(args: dict[str, str], ctx: Any) -> None:
        """deploy it

        And more."""

    row = made(do, arguments=["place", "[note...]", "--dry"], aliases=["d"]).row
    assert (row.usage, row.summary) == ("/do PLACE [NOTE...] [--dry]", "deploy it")
    assert (row.group, row.source, row.aliases) == ("pack", "extension pack", ("d",))
    assert made(do, summary="other").row.usage == "/do [TEXT...]"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "Do it"}, "invalid command name"),
        ({"function": 3}, "the handler must be a function; got 3"),
        ({"function": lambda: None}, "must take the parameters (args, ctx)"),
        ({"timeout": 0}, "a number of seconds, at most 600"),
        ({"timeout": float("nan")}, "a number of seconds, at most 600"),
        ({"aliases": ["UP"]}, "invalid alias 'UP'"),
        ({"arguments": ["Path!"]}, "invalid argument 'Path!'"),
        ({"arguments": ["[open"]}, "invalid argument '[open'"),
        ({"arguments": ["a...", "b"]}, "only the last argument can be the remainder"),
    ],
)
def test_invalid_command_function_is_refused_at_registration(options: dict[str, Any], why: str) -> None:
    """The error names the problem."""
    with pytest.raises(ConfigError) as raised:
        make_command(**({"name": "do", "function": lambda args, ctx: None} | options))  # noqa: ARG005
    assert why in str(raised.value)


async def test_command_returns_text_data_and_effects(tmp_path: Path) -> None:
    """None results in an empty result, and data is shown as JSON."""
    assert await ran(tmp_path, lambda args, _: f"to {args['to']}", {"to": "Oslo"}) == UserActionResult(
        "to Oslo", {"text": "to Oslo"}
    )
    assert await ran(tmp_path, lambda *_: None) == UserActionResult()
    assert await ran(tmp_path, lambda *_: Effect("ask", text="why?")) == UserActionResult(
        effect=Effect("ask", text="why?")
    )
    did = await ran(tmp_path, lambda *_: {"pumps": [1, 2]})
    assert did.data == {"pumps": [1, 2]}
    assert '"pumps"' in did.text

    async def later(args: dict[str, str], ctx: Any) -> str:  # noqa: ARG001
        return ctx.messages[0].role

    assert (await ran(tmp_path, later)).text == "user"


async def test_exception_in_a_command_is_reported(tmp_path: Path) -> None:
    """The agent's process continues. A value that JSON cannot represent is an error, too."""

    def broken(args: dict[str, str], ctx: Any) -> str:  # noqa: ARG001
        raise KeyError("pump")

    did = await ran(tmp_path, broken)
    assert (did.text, did.is_error) == ("/do of extension pack failed: KeyError: 'pump'", True)
    assert (await ran(tmp_path, lambda *_: object())).is_error


async def test_hanging_command_times_out(tmp_path: Path) -> None:
    """Later calls are refused until its thread returns."""
    go = threading.Event()
    commands = ExtensionCommands(ToolContext(tmp_path))
    slow = made(lambda *_: go.wait(10), timeout=0.01)
    try:
        assert "did not answer within 0.01 s" in (await run(commands, slow, Agent(tmp_path))).text
        assert "still at work" in (await run(commands, slow, Agent(tmp_path))).text

        async def sleepy(args: dict[str, str], ctx: Any) -> None:  # noqa: ARG001
            await asyncio.Event().wait()

        assert "did not answer" in (await run(commands, made(sleepy, "z", timeout=0.01), Agent(tmp_path))).text
    finally:
        go.set()
        commands.close()


async def test_command_context_can_steer_and_keep_state(tmp_path: Path) -> None:
    """`ctx.state` persists between calls."""
    agent, commands = Agent(tmp_path), ExtensionCommands(ToolContext(tmp_path))

    def count(args: dict[str, str], ctx: Any) -> str:  # noqa: ARG001
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.steer(f"asked {ctx.state['n']}")
        return str(ctx.state["n"])

    command = made(count)
    assert [(await run(commands, command, agent)).text for _ in range(2)] == ["1", "2"]
    await asyncio.sleep(0)
    assert agent.said == [("asked 1", False), ("asked 2", False)]
    commands.close()
