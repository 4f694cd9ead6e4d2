"""Slash commands of extensions. A command is a function that is called in the agent's process."""

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

from ..hooks.hook import HookContext, call_async
from ..system.threads import DeadlineExceeded, ThreadPool, describe_exception, run_coroutine
from ..tools.api.base import ToolContext

__all__ = [
    "CommandContext",
    "CommandRunner",
    "ExtensionCommands",
    "Function",
    "SlashCommand",
    "argument_of",
    "make_command",
]

Function: TypeAlias = Callable[..., Any]
"""The function of a command, which takes the arguments by name and a context. The function may be async."""
NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
ARGUMENT_PATTERN: Final = re.compile(
    r"(?P<open>\[)?(?P<option>--)?(?P<name>[a-z][a-z0-9_-]*)(?P<value>=)?(?P<rest>\.\.\.)?(?P<close>\])?"
)
SECONDS: Final = 30.0
MAX_SECONDS: Final = 600.0
MAX_CHARACTERS: Final = 1 << 20
TEXT_ARGUMENT: Final = Argument("text", rest=True)


class SlashCommand(Struct, frozen=True):
    """A command of an extension, and the function of the command."""

    row: CommandRow
    function: Function
    seconds: float


class CommandContext(Protocol):
    """The interface of the agent that commands use."""

    spec: AgentSpec

    @property
    def backend(self) -> Any:
        """The backend of the agent, which contains the agent's conversation."""

    def queue_own_message(self, text: str, follow_up: bool) -> None:
        """Send `text` to the agent, as a steering message or with its next query."""


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
    """Return the command `/name`, which calls `function(args, ctx)`. `args` contains the given arguments by name.

    `arguments` lists the arguments: `path`, `[path]` if optional, `text...` for the rest of the line, `--to=` for an
    option, and `--dry` for an option without a value. None means `[text...]`. The default of `summary` is the first
    line of the function's docstring. `timeout` is in seconds. Raise ConfigError for invalid values.
    """
    if NAME_PATTERN.fullmatch(name) is None:
        raise ConfigError(
            f"invalid command name {name!r}: use lower-case letters, digits, '-' and '_', beginning with a letter"
        )
    if not callable(function):
        raise ConfigError(f"command /{name}: the handler must be a function; got {function!r}")
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise ConfigError(f"command /{name}: the handler must take the parameters (args, ctx): {error}") from error
    if not (isinstance(timeout, (int, float)) and 0 < timeout <= MAX_SECONDS and math.isfinite(timeout)):
        raise ConfigError(
            f"command /{name}: timeout must be a number of seconds, at most {MAX_SECONDS:g}; got {timeout!r}"
        )
    alias_names = tuple(aliases)
    if invalid := [each for each in alias_names if not isinstance(each, str) or NAME_PATTERN.fullmatch(each) is None]:
        raise ConfigError(f"command /{name}: invalid alias {invalid[0]!r}: it must be a valid command name")
    parsed_arguments = (TEXT_ARGUMENT,) if arguments is None else tuple(argument_of(name, each) for each in arguments)
    if any(each.rest for each in [each for each in parsed_arguments if not each.option][:-1]):
        raise ConfigError(f"command /{name}: only the last argument can be the remainder of the line")
    description = summary or (inspect.getdoc(function) or "").partition("\n")[0] or f"a command of {source}"
    row = CommandRow(
        name,
        scrub(description),
        usage(name, parsed_arguments),
        source.removeprefix("extension "),
        alias_names,
        parsed_arguments,
        source,
    )
    return SlashCommand(row, function, float(timeout))


def argument_of(name: str, pattern: str) -> Argument:
    """Return the argument of the command `name` described by `pattern`. Raise ConfigError if `pattern` is invalid."""
    match = ARGUMENT_PATTERN.fullmatch(pattern) if isinstance(pattern, str) else None
    if match is None or bool(match["open"]) != bool(match["close"]) or (match["value"] and not match["option"]):
        raise ConfigError(
            f"command /{name}: invalid argument {pattern!r}: use path, [path], text..., [text...], --to= or --dry"
        )
    if match["option"]:
        return Argument(match["name"], "text" if match["value"] else "choice", option=True)
    return Argument(match["name"], required=not match["open"], rest=bool(match["rest"]))


class CommandRunner:
    """Runs commands: sync functions in threads, async functions on the event loop. Each command has a deadline."""

    def __init__(self) -> None:
        self._threads = ThreadPool()

    def close(self) -> None:
        """End the idle threads."""
        self._threads.close()

    async def run(self, command: SlashCommand, arguments: dict[str, str], context: HookContext) -> UserActionResult:
        """Call the command and return its result. An exception or a timeout becomes an error result."""
        name, seconds = command.row.name, command.seconds
        if self._threads.overdue[name]:
            return UserActionResult(
                f"/{name} of {command.row.source} is still at work on an earlier line", is_error=True
            )
        try:
            if inspect.iscoroutinefunction(command.function):
                value = await run_coroutine(call_async(command.function, dict(arguments), context), seconds)
            else:
                value = await self._threads.run(name, lambda: command.function(dict(arguments), context), seconds)
            return _result_of(value)
        except DeadlineExceeded:
            reason = f"it did not answer within {seconds:g} s"
        except Exception as error:
            reason = describe_exception(error)
        return UserActionResult(f"/{name} of {command.row.source} failed: {reason}", is_error=True)


class ExtensionCommands(CommandRunner):
    """Runs the commands of one agent's extensions. Each command keeps its context as long as the process runs."""

    def __init__(self, context: ToolContext) -> None:
        super().__init__()
        self._call_root = context.call_root
        self._contexts: dict[str, HookContext] = {}

    def context(self, command: SlashCommand, agent: CommandContext) -> HookContext:
        """Return the context of `command`."""
        name = command.row.name
        if name not in self._contexts:

            def messages() -> Sequence[Message]:
                found: Sequence[Message] = agent.backend.transcript()
                return found

            loop = asyncio.get_running_loop()

            def send_message(text: str, follow_up: bool) -> None:
                loop.call_soon_threadsafe(agent.queue_own_message, text, follow_up)

            self._contexts[name] = HookContext(
                f"/{name}",
                agent.spec,
                send_message=send_message,
                call_root=self._call_root,
                emit=lambda _: None,
                messages=messages,
            )
        return self._contexts[name]


def _result_of(value: Any) -> UserActionResult:
    """Return the result of a command, which may be text, an Effect or JSON data."""
    if value is None:
        return UserActionResult()
    if isinstance(value, str):
        text = scrub(value)
        clipped = text[:MAX_CHARACTERS]
        return UserActionResult(clipped, {"text": clipped})
    if isinstance(value, Effect):
        return UserActionResult(effect=value)
    data = scrub(msgspec.to_builtins(value))
    return UserActionResult(msgspec.json.format(msgspec.json.encode(data)).decode(), data)
