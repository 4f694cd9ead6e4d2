"""Definitions of built-in slash commands. A definition contains a description as data, and the function to run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.resources.slash_commands import Argument, CommandCatalog, CommandRow, Effect, Kind, usage
from orch_protocol.services.resources.slash_commands import Executed
from orch_protocol.services.service import AnyService
from orch_protocol.wire.frames import DECODE_ERRORS

from ..policy.caller import USER, Caller
from ..services.dispatch.call import call

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor
    from ..tree.agents.state import AgentRecord

__all__ = ["BuiltinCommand", "CommandResult", "SessionContext", "command", "flag", "option", "positional", "remainder"]


class SessionContext:
    """The session in which a command is executed. The context contains the agent `id` and its root.

    `arguments` contains the arguments by name. `load_catalog` returns the catalog of the session. Commands call
    services of the root, like all other callers.
    """

    def __init__(
        self,
        root: Supervisor,
        node: AgentRecord,
        arguments: dict[str, str],
        load_catalog: Callable[[SessionContext], Awaitable[CommandCatalog]],
    ) -> None:
        self.root = root
        self.node = node
        self.arguments = arguments
        self._load_catalog = load_catalog

    @property
    def id(self) -> str:
        """The id of the agent."""
        return self.node.spec.id

    @property
    def spec(self) -> AgentSpec:
        """The agent's spec."""
        return self.node.spec

    async def catalog(self) -> CommandCatalog:
        """Return the command catalog of this session."""
        return await self._load_catalog(self)

    def get(self, name: str) -> str | None:
        """Return the argument `name`. Return None if the argument was not given."""
        return self.arguments.get(name)

    async def ask(self, service: AnyService, *, caller: Caller = USER, **params: Any) -> Any:
        """Call `service` with the fields `params` and return its result as JSON data.

        Raises ConfigError for values of a wrong type. Raises the errors of the service.
        """
        try:
            request = msgspec.convert(params, service.params)
        except DECODE_ERRORS as error:
            raise ConfigError(f"{service.name}: {error}") from error
        return msgspec.to_builtins(await call(self.root, caller, service, request))


class CommandResult(Struct, frozen=True):
    """The result of a command. `text` is for people, `data` is for programs, and the effect is for the front end."""

    text: str = ""
    data: Any = None
    effect: Effect | None = None
    is_error: bool = False

    def as_of(self, name: str) -> Executed:
        """Return the result of the command `name`, with data as plain JSON values."""
        data = scrub(msgspec.to_builtins(self.data))
        return Executed(name, scrub(self.text), data, self.effect, self.is_error)


Run = Callable[[SessionContext], Awaitable[CommandResult]]


class BuiltinCommand(Struct, frozen=True):
    """A built-in command with its description and its function."""

    row: CommandRow
    run: Run


def command(
    name: str, summary: str, *arguments: Argument, group: str, aliases: Iterable[str] = (), moves: bool = False
) -> Callable[[Run], BuiltinCommand]:
    """Return a decorator that turns a function into a command."""

    def make(run: Run) -> BuiltinCommand:
        row = CommandRow(name, summary, usage(name, arguments), group, tuple(aliases), arguments, moves=moves)
        return BuiltinCommand(row, run)

    return make


def positional(name: str, kind: Kind = "text", *choices: str, required: bool = False) -> Argument:
    """Return an argument of one word."""
    return Argument(name, kind, required, choices=choices)


def remainder(name: str, kind: Kind = "text", *, required: bool = False) -> Argument:
    """Return an argument that takes the rest of the line."""
    return Argument(name, kind, required, rest=True)


def option(name: str, kind: Kind = "text", *, required: bool = False) -> Argument:
    """Return an argument `--name VALUE`."""
    return Argument(name, kind, required, option=True)


def flag(name: str) -> Argument:
    """Return an argument `--name` without a value."""
    return Argument(name, "choice", option=True)
