"""The verb about templates of prompts; and prompts as pages for people."""

from __future__ import annotations

import os
import sys

from ..daemon.failure import Failure
from ..render import terminal
from . import command
from .command import Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from ..resources.prompt_templates import PromptTemplate

__all__ = ["VERBS", "listed", "listing", "page", "table"]

HEAD = ["TIER", "PART", "TOKENS", "OWNER", "SOURCE", "HASH", "SINCE THE LAST REQUEST"]
RIGHT = frozenset({2})


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
        raise Failure("UsageError", "--var is for a template: name it; orch prompts lists them", 2)
    if arguments.name is None:
        from ..resources.prompt_templates import usable

        templates, faults = usable(there.all())
        rows = listing(templates)
        command.say(
            arguments, rows, listed(rows) if rows else f"no templates; put one into {home / 'prompts'}, as NAME.md"
        )
        for each in faults:
            print(f"orch: {terminal.safe(each)}", file=sys.stderr)
        return 0
    name = command.clean(arguments.name)
    found = there.find(name)
    text = there.asked(name, command.clean(dict(arguments.var))).identity or "" if arguments.var else found.text
    command.say(arguments, _row(found.name, found.variables, found.source) | {"text": text}, terminal.shown(text))
    return 0


def listing(templates: list[PromptTemplate]) -> list[dict[str, Any]]:
    """Return templates as JSON data."""
    return [_row(template.name, template.variables, template.source) for template in templates]


def listed(rows: list[dict[str, Any]]) -> str:
    """Return templates as a table, one a line."""
    cells = [[terminal.line(row["name"]), " ".join(row["variables"]), terminal.safe(row["source"])] for row in rows]
    return terminal.columns([["NAME", "VARIABLES", "SOURCE"], *cells], frozenset())


def _row(name: str, variables: tuple[str, ...], source: str) -> dict[str, Any]:
    return {"name": name, "variables": list(variables), "source": source}


def page(prompt: dict[str, Any]) -> str:
    """Return the prompt of an agent as a page: its parts in a table, what is to be said of them, then their texts."""
    parts = prompt["parts"]
    notes = [f"note: {terminal.line(note, 200)}" for note in prompt["notes"]]
    gone = [f"said no more: {', '.join(map(terminal.line, prompt['gone']))}"] if prompt["gone"] else []
    texts = [f"\n== {terminal.line(part['name'])}\n{terminal.shown(part['text'])}" for part in parts]
    return "\n".join([table(prompt), *gone, *notes, *texts])


def table(prompt: dict[str, Any]) -> str:
    """Return the parts of a prompt as a table, with what they are together."""
    parts = prompt["parts"]
    rows = [_cells(part, asked=prompt["asked"]) for part in parts]
    total = ["", "", str(sum(part["tokens"] for part in parts)), "", "", "", ""]
    return terminal.columns([HEAD, *rows, total], RIGHT)


def _cells(part: dict[str, Any], *, asked: bool) -> list[str]:
    since = part["change"] or ("the same" if asked else "")
    texts = [terminal.line(part[key], 40) for key in ("owner", "source")]
    return [part["tier"], terminal.line(part["name"], 40), str(part["tokens"]), *texts, part["hash"], since]


VERBS = {
    "prompts": Verb(
        "List templates of prompts, with their variables; or print one of them.",
        "orch prompts review --var language=Rust",
        _arguments,
        _prompts,
    )
}
