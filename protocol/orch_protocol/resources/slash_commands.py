"""Slash commands of a session: their definitions, their effects, and requests to the agent's process.

Commands belong to the session, not to a terminal. Every front end gets the same list of commands. The root executes a
line, and the front end displays the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ..core.errors import ErrorInfo
from ..hooks.stages import HookRow

__all__ = [
    "BUILT_IN",
    "AgentAction",
    "Argument",
    "CommandCatalog",
    "CommandRow",
    "Effect",
    "EffectKind",
    "Keybinding",
    "Kind",
    "ListCommands",
    "RecordCommand",
    "RunCommand",
    "RunUserTool",
    "UserAction",
    "UserActionResult",
    "Widget",
    "WidgetPlace",
    "is_flag",
    "usage",
]

BUILT_IN = "built-in"
Kind: TypeAlias = Literal[
    "text", "code", "number", "choice", "agent", "entry", "archive", "model", "tools", "template", "command", "pair"
]
"""The kind of an argument, for completion: the name of an existing object, a choice, or free text."""
EffectKind: TypeAlias = Literal["quit", "switch", "ask", "edit", "copy", "paste"]
WidgetPlace: TypeAlias = Literal["status", "panel"]


class Argument(Struct, frozen=True):
    """A positional argument of a command, or `--name VALUE` if it is an `option`.

    A `rest` argument takes the remainder of the line. orch removes only the options in the remainder, and quotes around
    the whole remainder. If the argument's kind is `code`, orch removes nothing. If only certain values are allowed,
    `choices` lists them.
    """

    name: str
    kind: Kind = "text"
    required: bool = False
    rest: bool = False
    option: bool = False
    choices: tuple[str, ...] = ()


def is_flag(argument: Argument) -> bool:
    """Return whether `argument` is an option without a value."""
    return argument.option and argument.kind == "choice" and not argument.choices


def usage(name: str, arguments: Iterable[Argument]) -> str:
    """Return the usage line of a command."""
    words = [f"/{name}"]
    for each in arguments:
        text = "|".join(each.choices) or each.name.upper()
        if each.option:
            text = f"--{each.name}" if is_flag(each) else f"--{each.name} {text}"
        elif each.rest:
            text += "..."
        words.append(text if each.required else f"[{text}]")
    return " ".join(words)


class CommandRow(Struct, frozen=True):
    """A slash command.

    `usage` is the usage line of the command, and `group` is its topic. `source` is `built-in`, `template`, or
    `extension NAME`. `key` is the key that runs the command, or "". If `moves` is True, the command may switch to
    another agent, which then receives the input.
    """

    name: str
    summary: str
    usage: str
    group: str = ""
    aliases: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = ()
    source: str = BUILT_IN
    key: str = ""
    moves: bool = False


class Keybinding(Struct, frozen=True):
    """A key, such as `c-t`, `f5` or `escape s`, that runs the line `command`.

    `source` names the origin of this definition.
    """

    key: str
    command: str
    source: str


class Widget(Struct, frozen=True):
    """A widget that a front end may show permanently: the output of the line `command`, with `title`, at `place`."""

    name: str
    command: str
    title: str = ""
    place: WidgetPlace = "status"
    source: str = ""


class CommandCatalog(Struct, frozen=True):
    """All commands of a session.

    `notes` lists the commands that were left out, with the reason, such as a name that is taken.

    If the content changes, `digest` changes.
    """

    commands: tuple[CommandRow, ...]
    keys: tuple[Keybinding, ...] = ()
    widgets: tuple[Widget, ...] = ()
    notes: tuple[str, ...] = ()
    digest: str = ""


class Effect(Struct, frozen=True):
    """An action that the front end must perform after a command, because the root cannot.

    - "quit": leave
    - "switch": continue with `agent`, and send the prompt `text` to this agent unless `text` is empty
    - "ask": send the prompt `text`
    - "edit": put `text` into the input field
    - "copy": put `text` on the clipboard
    - "paste": read several lines as one prompt that begins with `text`
    """

    kind: EffectKind
    agent: str = ""
    text: str = ""


class RunUserTool(Struct, frozen=True, tag="tool"):
    """Run the tool `name` with `input` for a person who typed `line`. The model is not involved.

    `heard`: the result becomes part of the conversation; otherwise the result is only recorded. `looks`: the tool only
    reads, and the result is not recorded.
    """

    name: str
    input: dict[str, Any]
    line: str
    heard: bool = True
    looks: bool = False


class RunCommand(Struct, frozen=True, tag="command"):
    """Run the command `name` of an extension with these arguments. If `line` is "", the command is not recorded."""

    name: str
    arguments: dict[str, str]
    line: str = ""


class RecordCommand(Struct, frozen=True, tag="record"):
    """Record a command that the root ran: the typed line `line`, and the result of the command."""

    line: str
    text: str
    is_error: bool = False


class ListCommands(Struct, frozen=True, tag="commands"):
    """List the commands, keys and widgets of the agent's extensions."""


AgentAction: TypeAlias = RunUserTool | RunCommand | RecordCommand | ListCommands


class UserAction(Struct, frozen=True):
    """An action that the agent's process performs for a person, without the model.

    The frame's id identifies the action.

    `hooks` has the same meaning as in Query.
    """

    action: AgentAction
    hooks: tuple[HookRow, ...] = ()


class UserActionResult(Struct, frozen=True, omit_defaults=True):
    """The result of a UserAction, or `error`. `catalog` is the result of ListCommands."""

    text: str = ""
    data: Any = None
    effect: Effect | None = None
    is_error: bool = False
    catalog: CommandCatalog | None = None
    error: ErrorInfo | None = None
