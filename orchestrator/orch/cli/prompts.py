"""`orch prompts`: list and print prompt templates."""

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
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of a template, or a template file")
    command.variables_argument(parser)


def _prompts(arguments: Namespace) -> int:
    """List the configured templates, or print one template with values for its variables."""
    from pathlib import Path

    from ..config import config, paths
    from ..resources.extensions import templates_for

    home = paths.home(os.environ)
    catalog = templates_for(config.load(Path.cwd(), os.environ).config, Path.cwd(), home)
    if arguments.name is None and arguments.var:
        raise CommandError("UsageError", "--var needs a template: list template names with `orch prompts`", 2)
    if arguments.name is None:
        from ..resources.prompt_templates import usable_templates

        templates, problems = usable_templates(catalog.all())
        rows = template_data(templates)
        command.print_result(
            arguments,
            rows,
            template_table(rows) if rows else f"no templates; put one into {home / 'prompts'}, as NAME.md",
        )
        for each in problems:
            print(f"orch: {terminal.safe(each)}", file=sys.stderr)
        return 0
    name = replace_invalid_utf8(arguments.name)
    found = catalog.find(name)
    text = (
        catalog.prompt_spec(name, replace_invalid_utf8(dict(arguments.var))).identity or ""
        if arguments.var
        else found.text
    )
    command.print_result(
        arguments,
        template_row(found.name, found.variables, found.source) | {"text": text},
        terminal.safe_for_stdout(text),
    )
    return 0


VERBS = {
    "prompts": CliCommand(
        "List prompt templates with their variables, or print one filled in.",
        "orch prompts review --var language=Rust",
        _arguments,
        _prompts,
    )
}
