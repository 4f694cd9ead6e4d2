"""Commands that extensions bring to the sessions of agents: made of functions, called in the agent's process."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.resources.slash_commands import Argument, CommandRow, Effect, UserActionResult, usage

from ..hooks.hook import HookContext
from ..system.threads import DeadlineExceeded, ThreadPool, describe_exception
from ..tools.api.base import ToolContext

__all__ = ["CommandContext", "ExtensionCommands", "Function", "SlashCommand", "argument_of", "make_command"]

Function: TypeAlias = Callable[..., Any]
"""Called with the arguments by name, and a context; may be async."""
NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
WORD: Final = re.compile(
    r"(?P<open>\[)?(?P<option>--)?(?P<name>[a-z][a-z0-9_-]*)(?P<value>=)?(?P<rest>\.\.\.)?(?P<close>\])?"
)
SECONDS: Final = 30.0
MOST_SECONDS: Final = 600.0
MOST_CHARACTERS: Final = 1 << 20
TEXT: Final = Argument("text", rest=True)


class SlashCommand(Struct, frozen=True):
    """A command of an extension, and what it calls."""

    row: CommandRow
    function: Function
    seconds: float


class CommandContext(Protocol):
    """The agent as far as its commands are concerned."""

    spec: AgentSpec

    @property
    def backend(self) -> Any:
        """What answers for it, which has its conversation."""

    def say_to_itself(self, text: str, follow_up: bool) -> None:
        """Let the agent hear `text` while it works, or with its next query."""


def make_command(
    name: str,
    function: Function,
    *,
    summary: str = "",
    arguments: Iterable[str] | None = None,
    aliases: Iterable[str] = (),
    timeout: float = SECONDS,
    source: str = "",
) -> SlashCommand:
    """Make the command `/name` of `function(args, ctx)`; `args` are its arguments by name, those that were said.

    `arguments` say which there are: `path`, `[path]` for one that may be missing, `text...` for the remainder of the
    line, `--to=` for an option and `--dry` for one without a value; None means `[text...]`. `summary` is the first line
    of the function's docstring unless said. It has `timeout` seconds. Raises ConfigError, saying what is wrong.
    """
    if NAME.fullmatch(name) is None:
        raise ConfigError(f"command {name!r}: a name is small letters, digits, - and _, beginning with a letter")
    if not callable(function):
        raise ConfigError(f"command /{name}: the handler must be a function; got {function!r}")
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise ConfigError(
            f"command /{name}: it is called with (args, ctx), and takes something else: {error}"
        ) from error
    if not (isinstance(timeout, (int, float)) and 0 < timeout <= MOST_SECONDS and math.isfinite(timeout)):
        raise ConfigError(f"command /{name}: timeout is a number of seconds up to {MOST_SECONDS:g}, not {timeout!r}")
    others = tuple(aliases)
    if wrong := [each for each in others if not isinstance(each, str) or NAME.fullmatch(each) is None]:
        raise ConfigError(f"command /{name}: invalid alias {wrong[0]!r}: it must be a valid command name")
    takes = (TEXT,) if arguments is None else tuple(argument_of(name, each) for each in arguments)
    if any(each.rest for each in [each for each in takes if not each.option][:-1]):
        raise ConfigError(f"command /{name}: only the last argument can be the remainder of the line")
    said = summary or (inspect.getdoc(function) or "").partition("\n")[0] or f"a command of {source}"
    row = CommandRow(name, scrub(said), usage(name, takes), source.removeprefix("extension "), others, takes, source)
    return SlashCommand(row, function, float(timeout))


def argument_of(name: str, said: str) -> Argument:
    """Return the argument of the command `name` that `said` describes. Raises ConfigError."""
    match = WORD.fullmatch(said) if isinstance(said, str) else None
    if match is None or bool(match["open"]) != bool(match["close"]) or (match["value"] and not match["option"]):
        raise ConfigError(
            f"command /{name}: argument {said!r} is none: path, [path], text..., [text...], --to= or --dry"
        )
    if match["option"]:
        return Argument(match["name"], "text" if match["value"] else "choice", option=True)
    return Argument(match["name"], required=not match["open"], rest=bool(match["rest"]))


class ExtensionCommands:
    """Runs the commands of one agent's extensions, each with a context that stays while the process lives."""

    def __init__(self, context: ToolContext) -> None:
        self._call_root = context.call_root
        self._threads = ThreadPool()
        self._contexts: dict[str, HookContext] = {}

    def close(self) -> None:
        """End the threads that do nothing."""
        self._threads.close()

    async def run(self, command: SlashCommand, said: dict[str, str], agent: CommandContext) -> UserActionResult:
        """Call the command and return what it says. What it raises, or that it is late, is an error in words."""
        name, seconds, context = command.row.name, command.seconds, self._context(command, agent)
        if self._threads.overdue[name]:
            return UserActionResult(
                f"/{name} of {command.row.source} is still at work on an earlier line", is_error=True
            )
        try:
            if inspect.iscoroutinefunction(command.function):
                async with asyncio.timeout(seconds):
                    value = await command.function(dict(said), context)
            else:
                value = await self._threads.run(name, lambda: command.function(dict(said), context), seconds)
            return _did(value)
        except (DeadlineExceeded, TimeoutError):
            why = f"it did not answer within {seconds:g} s"
        except Exception as error:
            why = describe_exception(error)
        return UserActionResult(f"/{name} of {command.row.source} failed: {why}", is_error=True)

    def _context(self, command: SlashCommand, agent: CommandContext) -> HookContext:
        name = command.row.name
        if name not in self._contexts:

            def messages() -> Sequence[Message]:
                found: Sequence[Message] = agent.backend.transcript()
                return found

            loop = asyncio.get_running_loop()

            def say(text: str, follow_up: bool) -> None:
                loop.call_soon_threadsafe(agent.say_to_itself, text, follow_up)

            self._contexts[name] = HookContext(
                f"/{name}", agent.spec, say=say, call=self._call_root, tell=lambda _: None, messages=messages
            )
        return self._contexts[name]


def _did(value: Any) -> UserActionResult:
    """Return what a command returned: text, an Effect, or JSON data, which is text then, too."""
    if value is None:
        return UserActionResult()
    if isinstance(value, str):
        text = scrub(value)
        cut = text[:MOST_CHARACTERS]
        return UserActionResult(cut, {"text": cut})
    if isinstance(value, Effect):
        return UserActionResult(effect=value)
    data = scrub(msgspec.to_builtins(value))
    return UserActionResult(msgspec.json.format(msgspec.json.encode(data)).decode(), data)
