"""The command `orch agent-types` lists, shows and trusts agent types."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from ...client.connection import replace_invalid_utf8
from ...client.failure import CommandError
from ...config import paths
from ...render import terminal
from ...render.columns import format_columns
from ...resources.agent_types import AgentType, find_types, trust, untrust
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["VERBS"]

HEAD: Final = ["AGENT TYPE", "FROM", "ON", "MODEL", "TOOLS", "DESCRIPTION"]
NOT_FOUND: Final = 3


def _folder_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="FOLDER", default=".", help="project folder (default: current folder)")


def _name_argument(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of an agent type, as in `orch agent-types list`")
    _folder_argument(parser)


def _available_types(arguments: Namespace) -> list[AgentType]:
    folder, home = Path(arguments.cwd).absolute(), paths.home(os.environ)
    loaded = command.load_config(folder)
    return list(find_types(folder, home, loaded.config).found)


def _list(arguments: Namespace) -> int:
    found = _available_types(arguments)
    for each in found:
        if each.why_off:
            command.print_off(each.name, each.why_off)
        elif each.ignored:
            name = terminal.truncate_line(each.name, 64)
            print(f"orch: {name}: these fields have no effect: {', '.join(each.ignored)}", file=sys.stderr)
    table = format_columns([HEAD, *map(_cells, found)], text={4, 5})
    text = table if found else "no agent types; see docs/guides/agents.md"
    command.print_result(arguments, [_row(each) for each in found], text)
    return 0


def _row(found: AgentType) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(found)
    return row | {"on": not found.why_off}


def _cells(found: AgentType) -> list[str]:
    on = "broken" if found.broken else "no" if found.why_off else "yes"
    tools = "default" if found.tools is None else ",".join(found.tools)
    texts = (found.name, found.where, on, found.model or "default", tools, found.description)
    return list(map(terminal.one_line, texts))


def _find_type(arguments: Namespace, *, project: bool = False) -> AgentType:
    """Return the agent type `name`.

    With `project`, the type must be an agent type of the project. Raises CommandError.
    """
    name, available = replace_invalid_utf8(arguments.name), _available_types(arguments)
    found = [each for each in available if each.name == name]
    if not found:
        known = ", ".join(each.name for each in available) or "none"
        raise CommandError("AgentTypeNotFoundError", f"no agent type named {name!r}; known: {known}", NOT_FOUND)
    chosen = next((each for each in found if each.where == "project" or not project), None)
    if chosen is None:
        raise CommandError("ConfigError", f"agent type {name!r} is your own ({found[0].path}): it needs no trust", 2)
    return chosen


def _show(arguments: Namespace) -> int:
    found = _find_type(arguments)
    fields = {
        "name": found.name,
        "description": found.description,
        "tools": "default" if found.tools is None else " ".join(found.tools) or "none",
        "excluded": " ".join(found.excluded),
        "model": found.model or "default",
        "file": found.path,
        "off": found.why_off,
        "ignored": ", ".join(found.ignored),
    }
    lines = [f"{name + ':':15}{terminal.truncate_line(value, 2000)}" for name, value in fields.items() if value]
    command.print_result(arguments, _row(found), "\n".join((*lines, "", terminal.safe_for_stdout(found.prompt))))
    return 0


def _trust(arguments: Namespace) -> int:
    found = _find_type(arguments, project=True)
    trust(found, paths.home(os.environ))
    command.print_trusted(arguments, found.name, found.path, hash=found.hash)
    return 0


def _untrust(arguments: Namespace) -> int:
    found = _find_type(arguments, project=True)
    command.print_untrusted(arguments, found.path, was_trusted=untrust(found, paths.home(os.environ)))
    return 0


VERBS = {
    "agent-types": CommandGroup(
        "Agent types: presets of your own, with tools, a model and a prompt. Without an action, they are listed.",
        "orch agent-types",
        {
            "list": (
                "list agent types of a folder",
                CliCommand(
                    "List the agent types of a folder: tools, model, and the reason why one is off.",
                    "orch agent-types --json",
                    _folder_argument,
                    _list,
                ),
            ),
            "show": (
                "print an agent type",
                CliCommand(
                    "Print an agent type: tools, model and prompt.",
                    "orch agent-types show reviewer",
                    _name_argument,
                    _show,
                ),
            ),
            "trust": (
                "trust the present version of a project's agent type",
                CliCommand(
                    "Trust the present version of a project's agent type. Read it first. Changes require new trust.",
                    "orch agent-types trust reviewer",
                    _name_argument,
                    _trust,
                ),
            ),
            "untrust": (
                "revoke the trust of a project's agent type",
                CliCommand(
                    "Revoke the trust of a project's agent type.",
                    "orch agent-types untrust reviewer",
                    _name_argument,
                    _untrust,
                ),
            ),
        },
        default="list",
    )
}
