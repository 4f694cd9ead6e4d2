"""All built-in slash commands by name. Some have a function, others are generated from service definitions."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.resources.slash_commands import Argument, Kind
from orch_protocol.services import verbs
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import AnyService
from orch_protocol.services.verbs import Slash, Verb, VerbArgument

from ..render import terminal
from . import agents, help, session, settings, user_actions
from .registry import BuiltinCommand, CommandResult, SessionContext, command, flag, option, positional, remainder

__all__ = ["BY_NAME", "COMMANDS"]

KINDS: Final[dict[str, Kind]] = {"agent": "agent", "entry": "entry", "model": "model", "tools": "tools"}


def _command(service: AnyService, verb: Verb, slash: Slash) -> BuiltinCommand:
    verb_arguments = [
        each for each in verb.arguments if each.slash and not (slash.acts_on_session and each.field == "ref")
    ]
    positionals = [each for each in verb_arguments if not each.option]

    async def run(ctx: SessionContext) -> CommandResult:
        fields = dict(verb.fixed) | ({"ref": ctx.id} if slash.acts_on_session else {})
        fields |= {
            each.field: _value(each, ctx.arguments[_name(each)])
            for each in verb_arguments
            if _name(each) in ctx.arguments
        }
        result = await ctx.ask(service, **verbs.nested(fields))
        return CommandResult(
            slash.output_template.format_map({name: _text(value) for name, value in result.items()}), result
        )

    arguments = [_argument(each, last=each in positionals[-1:]) for each in verb_arguments]
    return command(slash.name, verb.summary, *arguments, group=slash.group)(run)


def _argument(argument: VerbArgument, *, last: bool) -> Argument:
    name, kind = _name(argument), KINDS.get(argument.kind, "text")
    required = argument.required or argument.many
    if argument.kind == "flag":
        return flag(name)
    if argument.option:
        return option(name, kind, required=required)
    is_remainder = last and kind == "text"
    return remainder(name, required=required) if is_remainder else positional(name, kind, required=required)


def _name(argument: VerbArgument) -> str:
    return "id" if argument.kind == "agent" else argument.name.replace("_", "-")


def _value(argument: VerbArgument, text: str) -> Any:
    if argument.kind == "flag":
        return argument.default
    if argument.kind == "tools":
        return text.replace(",", " ").split()
    return [text] if argument.many else text


def _text(value: Any) -> str:
    return ", ".join(terminal.safe(str(each)) for each in (value if isinstance(value, list) else [value]))


SERVICE_COMMANDS: Final = tuple(
    _command(service, verb, verb.slash)
    for service in SERVICES.values()
    for verb in service.verbs
    if verb.slash is not None
)
"""Commands made from the verbs of services. Arguments become parameters, and the result becomes the command's data."""

COMMANDS: Final[tuple[BuiltinCommand, ...]] = (
    *help.COMMANDS,
    *session.CONVERSATION_COMMANDS,
    *agents.AGENT_INFO_COMMANDS,
    *agents.COMMANDS,
    *session.SESSIONS_COMMANDS,
    *user_actions.COMMANDS,
    *settings.COMMANDS,
    *SERVICE_COMMANDS,
)
BY_NAME: Final[dict[str, BuiltinCommand]] = {
    name: each for each in COMMANDS for name in (each.row.name, *each.row.aliases)
}
"""Each command by its name and aliases."""
