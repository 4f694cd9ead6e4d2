"""Commands generated from service definitions. Arguments become parameters, and fields of the result are printed."""

from __future__ import annotations

import json

from orch_protocol.services import verbs

from ..client.connection import Connection
from ..client.failure import CommandError
from ..render import terminal
from ..render.columns import format_columns
from ..render.terminal import to_json
from . import command
from .command import CliCommand, CommandGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from orch_protocol.services.verbs import Verb, VerbArgument

__all__ = ["VERBS", "actions"]


def actions(group: str) -> dict[str, tuple[str, CliCommand | CommandGroup]]:
    """Return the verbs with the first words `group`.

    The keys of the result are the next words; the values contain summary and command.
    """
    found: dict[str, tuple[str, CliCommand | CommandGroup]] = {}
    for service, each in verbs.VERBS.items():
        for verb in each:
            prefix, _, word = verb.words.rpartition(" ")
            if prefix == group:
                found[word] = (verb.summary, _command(service, verb))
    return found


def _command(service: str, verb: Verb) -> CliCommand:
    def arguments(parser: ArgumentParser) -> None:
        for each in verb.arguments:
            _add(parser, each)
        if _names_agents(verb):
            command.run_argument(parser)

    def action(namespace: Namespace) -> int:
        connection = Connection(run=namespace.run) if _names_agents(verb) else Connection()
        result = connection.call(service, _params(verb, namespace))
        command.print_result(namespace, result, "" if namespace.json else _text(verb, result))
        return 0

    return CliCommand(verb.description, verb.example, arguments, action)


def _names_agents(verb: Verb) -> bool:
    return any(each.kind == "agent" for each in verb.arguments)


def _add(parser: ArgumentParser, argument: VerbArgument) -> None:
    flag, metavar = _display_name(argument), argument.name.upper()
    if argument.kind == "flag":
        parser.add_argument(flag, dest=argument.field, action="store_true", help=argument.help)
    elif argument.option:
        parser.add_argument(
            flag,
            dest=argument.field,
            metavar="A,B" if argument.kind == "tools" else metavar,
            action=command.SetOnce,
            required=argument.required,
            help=argument.help,
        )
    else:
        nargs = ("+" if argument.required else "*") if argument.many else None if argument.required else "?"
        parser.add_argument(argument.field, metavar=metavar, nargs=nargs, help=argument.help)


def _params(verb: Verb, namespace: Namespace) -> dict[str, Any]:
    """Return the parameters of the service. Arguments that were not given are left out."""
    params = dict(verb.fixed)
    for argument in verb.arguments:
        value = vars(namespace)[argument.field]
        if argument.kind == "flag":
            value = argument.default if value else None
        elif value is None or value == []:
            value = argument.default
        elif not argument.many:
            value = _value(argument, value)
        if value is not None or (argument.kind == "json" and not argument.option):
            params[argument.field] = value
    if verb.any_of and not set(verb.any_of) & set(params):
        alternatives = " or ".join(_display_name(each) for each in verb.arguments if each.field in verb.any_of)
        raise CommandError("UsageError", f"no {alternatives} given; see: orch {verb.words} --help", 2)
    return verbs.nested(params)


def _display_name(argument: VerbArgument) -> str:
    name = argument.name.replace("_", "-")
    return f"--{name}" if argument.option else name.upper()


def _value(argument: VerbArgument, text: str) -> Any:
    if argument.kind == "tools":
        return command.names(text)
    if argument.kind == "text":
        return command.text(text)
    if argument.kind != "json":
        return text
    try:
        data = json.loads(command.text(text))
        json.dumps(data, allow_nan=False)  # Python's parser accepts NaN, and reads too large numbers as infinity
    except (ValueError, RecursionError) as error:
        example = '{"count": 3} or "text"'
        raise CommandError("UsageError", f"{argument.name} is not JSON, such as {example}: {error}", 2) from error
    return data


def _text(verb: Verb, result: Any) -> str:
    if isinstance(result, list):
        rows = [[_cell(row[field]) for field in verb.prints] for row in result]
        head = [field.upper() for field in verb.prints]
        return format_columns([head, *rows]) if rows else ""
    values = [result[field] for field in verb.prints if result[field] is not None]
    lines = [line for value in values for line in (value if isinstance(value, (list, tuple)) else [value])]
    return "\n".join(terminal.safe_for_stdout(str(line)) for line in lines)


def _cell(value: Any) -> str:
    return terminal.safe(value if isinstance(value, str) else to_json(value))


VERBS = {word: each for word, (_, each) in actions("").items()}
