"""The slash commands of service definitions: arguments go to the service, its result is the command's data."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.resources.slash_commands import Argument, Kind
from orch_protocol.services import verbs
from orch_protocol.services.registry import SERVICES
from orch_protocol.services.service import AnyService
from orch_protocol.services.verbs import Slash, Verb, VerbArgument

from ..render import terminal
from .registry import BuiltinCommand, CommandResult, SessionContext, command, flag, option, positional, remainder

__all__ = ["COMMANDS"]

KINDS: Final[dict[str, Kind]] = {"agent": "agent", "entry": "entry", "model": "model", "tools": "tools"}


def _command(service: AnyService, verb: Verb, slash: Slash) -> BuiltinCommand:
    taken = [each for each in verb.arguments if each.slash and not (slash.own and each.field == "ref")]
    places = [each for each in taken if not each.option]

    async def run(here: SessionContext) -> CommandResult:
        given = dict(verb.fixed) | ({"ref": here.id} if slash.own else {})
        given |= {each.field: _value(each, here.said[_name(each)]) for each in taken if _name(each) in here.said}
        result = await here.ask(service, **verbs.nested(given))
        return CommandResult(slash.done.format_map({name: _text(value) for name, value in result.items()}), result)

    arguments = [_argument(each, last=each in places[-1:]) for each in taken]
    return command(slash.name, verb.summary, *arguments, group=slash.group)(run)


def _argument(argument: VerbArgument, *, last: bool) -> Argument:
    name, kind = _name(argument), KINDS.get(argument.kind, "text")
    required = argument.required or argument.many
    if argument.kind == "flag":
        return flag(name)
    if argument.option:
        return option(name, kind, required=required)
    rest = last and kind == "text"
    return remainder(name, required=required) if rest else positional(name, kind, required=required)


def _name(argument: VerbArgument) -> str:
    return "id" if argument.kind == "agent" else argument.name.replace("_", "-")


def _value(argument: VerbArgument, said: str) -> Any:
    if argument.kind == "flag":
        return argument.default
    if argument.kind == "tools":
        return said.replace(",", " ").split()
    return [said] if argument.many else said


def _text(value: Any) -> str:
    return ", ".join(terminal.safe(str(each)) for each in (value if isinstance(value, list) else [value]))


COMMANDS: Final = tuple(
    _command(service, verb, verb.slash)
    for service in SERVICES.values()
    for verb in service.verbs
    if verb.slash is not None
)
