"""The commands that every session has: what each is, as data, beside the function that it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.resources.slash_commands import Argument, CommandCatalog, CommandRow, Effect, Executed, Kind, usage
from orch_protocol.services.service import AnyService
from orch_protocol.wire.frames import DECODE_ERRORS

from ..policy.caller import USER, Caller
from ..services.dispatch.call import call

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor
    from ..tree.agents.state import AgentRecord

__all__ = ["BuiltinCommand", "CommandResult", "SessionContext", "command", "flag", "option", "positional", "remainder"]


class SessionContext:
    """The session that a command is executed in: the agent `id`, and the root that serves it.

    `said` are the arguments by name, and `look_up` returns the catalog of the session. What a command asks of the root
    goes through the services that everybody uses.
    """

    def __init__(
        self,
        root: Supervisor,
        node: AgentRecord,
        said: dict[str, str],
        look_up: Callable[[SessionContext], Awaitable[CommandCatalog]],
    ) -> None:
        self.root = root
        self.node = node
        self.said = said
        self._look_up = look_up

    @property
    def id(self) -> str:
        """The id of the agent."""
        return self.node.spec.id

    @property
    def spec(self) -> AgentSpec:
        """What the agent was made as."""
        return self.node.spec

    async def catalog(self) -> CommandCatalog:
        """Return all that can be executed in this session."""
        return await self._look_up(self)

    def get(self, name: str) -> str | None:
        """Return the argument `name`, None when it was not said."""
        return self.said.get(name)

    async def ask(self, service: AnyService, *, by: Caller = USER, **params: Any) -> Any:
        """Call `service` with the fields `params` and return its result as JSON data.

        Raises ConfigError for values of a wrong type, and the service's errors.
        """
        try:
            asked = msgspec.convert(params, service.params)
        except DECODE_ERRORS as error:
            raise ConfigError(f"{service.name}: {error}") from error
        return msgspec.to_builtins(await call(self.root, by, service, asked))


class CommandResult(Struct, frozen=True):
    """What a command says: `text` for people, `data` for programs, and what is to be done."""

    text: str = ""
    data: Any = None
    effect: Effect | None = None
    is_error: bool = False

    def as_of(self, name: str) -> Executed:
        """Return it as what came of the command `name`, with data such as JSON has it, wherever it is asked for."""
        data = scrub(msgspec.to_builtins(self.data))
        return Executed(name, scrub(self.text), data, self.effect, self.is_error)


Run = Callable[[SessionContext], Awaitable[CommandResult]]


class BuiltinCommand(Struct, frozen=True):
    """A command that every session has, and what it does."""

    row: CommandRow
    run: Run


def command(
    name: str, summary: str, *arguments: Argument, group: str, aliases: Iterable[str] = (), moves: bool = False
) -> Callable[[Run], BuiltinCommand]:
    """Make a command of the function that it runs."""

    def make(run: Run) -> BuiltinCommand:
        row = CommandRow(name, summary, usage(name, arguments), group, tuple(aliases), arguments, moves=moves)
        return BuiltinCommand(row, run)

    return make


def positional(name: str, kind: Kind = "text", *choices: str, required: bool = False) -> Argument:
    """Return an argument that is one word."""
    return Argument(name, kind, required, choices=choices)


def remainder(name: str, kind: Kind = "text", *, required: bool = False) -> Argument:
    """Return an argument that is the remainder of the line."""
    return Argument(name, kind, required, rest=True)


def option(name: str, kind: Kind = "text", *, required: bool = False) -> Argument:
    """Return an argument that is `--name VALUE`."""
    return Argument(name, kind, required, option=True)


def flag(name: str) -> Argument:
    """Return an argument that is `--name`, or is not there."""
    return Argument(name, "choice", option=True)
