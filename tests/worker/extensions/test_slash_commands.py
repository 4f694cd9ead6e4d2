"""Commands that extensions bring: what can be one, what it is called with, what comes of it."""

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
    """As much of an agent as commands see."""

    def __init__(self, folder: Path) -> None:
        self.spec = AgentSpec("a1", 1, "a", "work", BackendSpec("scripted"), str(folder), str(folder), "")
        self.said: list[tuple[str, bool]] = []

    @property
    def backend(self) -> Any:
        """What has the conversation."""
        return self

    def transcript(self) -> list[Any]:
        """Return the conversation."""
        return [user("hello")]

    def say_to_itself(self, text: str, follow_up: bool) -> None:
        """Hear `text`."""
        self.said.append((text, follow_up))


def made(function: Callable[..., Any], name: str = "do", **options: Any) -> SlashCommand:
    """Return a command of an extension called pack."""
    return make_command(name, function, source="extension pack", **options)


async def ran(
    folder: Path, function: Callable[..., Any], said: dict[str, str] | None = None, **options: Any
) -> UserActionResult:
    """Return what comes of a command."""
    commands = ExtensionCommands(ToolContext(folder))
    try:
        return await commands.run(made(function, **options), said or {}, Agent(folder))
    finally:
        commands.close()


@pytest.mark.parametrize(
    ("said", "argument"),
    [
        ("path", Argument("path", required=True)),
        ("[path]", Argument("path")),
        ("text...", Argument("text", required=True, rest=True)),
        ("[text...]", Argument("text", rest=True)),
        ("--to=", Argument("to", option=True)),
        ("--dry", Argument("dry", "choice", option=True)),
    ],
)
def test_arguments_are_written_as_usage_shows_them(said: str, argument: Argument) -> None:
    """What is in brackets may be missing."""
    assert argument_of("do", said) == argument


def test_a_command_says_how_it_is_written() -> None:
    """By its arguments, and what it is for by its function's docstring, unless that is said."""

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
        ({"name": "Do it"}, "a name is small letters"),
        ({"function": 3}, "the handler must be a function; got 3"),
        ({"function": lambda: None}, "is called with (args, ctx)"),
        ({"timeout": 0}, "a number of seconds up to 600"),
        ({"timeout": float("nan")}, "a number of seconds up to 600"),
        ({"aliases": ["UP"]}, "invalid alias 'UP'"),
        ({"arguments": ["Path!"]}, "argument 'Path!' is none"),
        ({"arguments": ["[open"]}, "argument '[open' is none"),
        ({"arguments": ["a...", "b"]}, "only the last argument can be the remainder"),
    ],
)
def test_what_can_be_no_command_says_why(options: dict[str, Any], why: str) -> None:
    """When it is registered, not when somebody types it."""
    with pytest.raises(ConfigError) as raised:
        make_command(**({"name": "do", "function": lambda args, ctx: None} | options))  # noqa: ARG005
    assert why in str(raised.value)


async def test_text_data_and_effects_come_back(tmp_path: Path) -> None:
    """Nothing is nothing; data is JSON for people, too."""
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


async def test_what_it_raises_is_told(tmp_path: Path) -> None:
    """The agent's process goes on; so do values that JSON cannot be."""

    def broken(args: dict[str, str], ctx: Any) -> str:  # noqa: ARG001
        raise KeyError("pump")

    did = await ran(tmp_path, broken)
    assert (did.text, did.is_error) == ("/do of extension pack failed: KeyError: 'pump'", True)
    assert (await ran(tmp_path, lambda *_: object())).is_error


async def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    """Whoever asked is told so at its deadline, and the next one at once; it runs on in its thread."""
    go = threading.Event()
    commands = ExtensionCommands(ToolContext(tmp_path))
    slow = made(lambda *_: go.wait(10), timeout=0.01)
    try:
        assert "did not answer within 0.01 s" in (await commands.run(slow, {}, Agent(tmp_path))).text
        assert "still at work" in (await commands.run(slow, {}, Agent(tmp_path))).text

        async def sleepy(args: dict[str, str], ctx: Any) -> None:  # noqa: ARG001
            await asyncio.Event().wait()

        assert "did not answer" in (await commands.run(made(sleepy, "z", timeout=0.01), {}, Agent(tmp_path))).text
    finally:
        go.set()
        commands.close()


async def test_it_can_say_something_to_the_agent_and_remember(tmp_path: Path) -> None:
    """Its context is that of hooks: what it keeps in `ctx.state` is there the next time."""
    agent, commands = Agent(tmp_path), ExtensionCommands(ToolContext(tmp_path))

    def count(args: dict[str, str], ctx: Any) -> str:  # noqa: ARG001
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.steer(f"asked {ctx.state['n']}")
        return str(ctx.state["n"])

    command = made(count)
    assert [(await commands.run(command, {}, agent)).text for _ in range(2)] == ["1", "2"]
    await asyncio.sleep(0)
    assert agent.said == [("asked 1", False), ("asked 2", False)]
    commands.close()
