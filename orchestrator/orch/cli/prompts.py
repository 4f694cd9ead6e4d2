"""The verb about templates of prompts; and prompts as pages for people."""

from __future__ import annotations

import os
import sys

from ..client.connection import replace_invalid_utf8
from ..client.failure import CommandError
from ..render import terminal
from ..render.resources.prompts import template_data, template_row, template_table
from . import command
from .command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


__all__ = ["VERBS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a template, or a file that is one")
    parser.add_argument("--var", metavar="NAME=VALUE", type=command.pair, action="append", help="a variable of it")


def _prompts(arguments: Namespace) -> int:
    """List the templates that are configured here; or print one, with values for its variables if there are any."""
    from pathlib import Path

    from ..config import config, paths
    from ..resources.extensions import templates_for

    home = paths.home(os.environ)
    there = templates_for(config.load(Path.cwd(), os.environ).config, Path.cwd(), home)
    if arguments.name is None and arguments.var:
        raise CommandError("UsageError", "--var is for a template: name it; orch prompts lists them", 2)
    if arguments.name is None:
        from ..resources.prompt_templates import usable_templates

        templates, faults = usable_templates(there.all())
        rows = template_data(templates)
        command.print_result(
            arguments,
            rows,
            template_table(rows) if rows else f"no templates; put one into {home / 'prompts'}, as NAME.md",
        )
        for each in faults:
            print(f"orch: {terminal.safe(each)}", file=sys.stderr)
        return 0
    name = replace_invalid_utf8(arguments.name)
    found = there.find(name)
    text = there.asked(name, replace_invalid_utf8(dict(arguments.var))).identity or "" if arguments.var else found.text
    command.print_result(
        arguments,
        template_row(found.name, found.variables, found.source) | {"text": text},
        terminal.safe_for_stdout(text),
    )
    return 0


VERBS = {
    "prompts": CliCommand(
        "List templates of prompts, with their variables; or print one of them.",
        "orch prompts review --var language=Rust",
        _arguments,
        _prompts,
    )
}
