"""Commands of a session as data: what can be typed behind a slash, what a line of it asks for, and what comes of that.

They belong to the session and not to a terminal: a console, a program and a shell are told the same of them, let the
root execute the same line, and show what comes back as they like.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ..core.errors import ErrorInfo
from ..hooks.stages import HookRow

__all__ = [
    "BUILT_IN",
    "Argument",
    "CommandCatalog",
    "CommandRow",
    "Deed",
    "Effect",
    "EffectKind",
    "Execute",
    "Executed",
    "Keybinding",
    "Kind",
    "ListCommands",
    "RunCommand",
    "RunUserTool",
    "ShowCommands",
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
"""What an argument is, for completion: the name of a thing there is some of, one of its choices, or free text."""
EffectKind: TypeAlias = Literal["quit", "switch", "ask", "edit", "copy", "paste"]
WidgetPlace: TypeAlias = Literal["status", "panel"]


class Argument(Struct, frozen=True):
    """Something that a command takes: by its place, or as `--name VALUE` when it is an `option`.

    A `rest` takes the remainder of the line as it stands, but for quotes around all of it, and options in it; one of
    kind `code` takes those too, since they are the code's own. `choices` are all that it may be, if any.
    """

    name: str
    kind: Kind = "text"
    required: bool = False
    rest: bool = False
    option: bool = False
    choices: tuple[str, ...] = ()


def is_flag(argument: Argument) -> bool:
    """Return whether it is said, or not, and has no value."""
    return argument.option and argument.kind == "choice" and not argument.choices


def usage(name: str, arguments: Iterable[Argument]) -> str:
    """Return how a command is written."""
    words = [f"/{name}"]
    for each in arguments:
        said = "|".join(each.choices) or each.name.upper()
        if each.option:
            said = f"--{each.name}" if is_flag(each) else f"--{each.name} {said}"
        elif each.rest:
            said += "..."
        words.append(said if each.required else f"[{said}]")
    return " ".join(words)


class CommandRow(Struct, frozen=True):
    """A command. `usage` is how it is written, `group` what it is about; `source` is `built-in`, `template`, or
    `extension NAME`. `key` is the binding that runs it, "" for none. With `moves` its effect may be to talk to another
    agent: what is typed behind it is for that one."""

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
    """A key, such as `c-t`, `f5` or `escape s`, that runs the line `command`; `source` is who brings it."""

    key: str
    command: str
    source: str


class Widget(Struct, frozen=True):
    """Something that a front end may show all the time: what the line `command` says, under `title`, at `place`."""

    name: str
    command: str
    title: str = ""
    place: WidgetPlace = "status"
    source: str = ""


class CommandCatalog(Struct, frozen=True):
    """All that can be executed in a session. `notes` say what was left out and why: names and keys that are taken.

    `digest` is another one when something of it is.
    """

    commands: tuple[CommandRow, ...]
    keys: tuple[Keybinding, ...] = ()
    widgets: tuple[Widget, ...] = ()
    notes: tuple[str, ...] = ()
    digest: str = ""


class ShowCommands(Struct, frozen=True, forbid_unknown_fields=True):
    """What can be executed in the session of `ref`."""

    ref: str


class Execute(Struct, frozen=True, forbid_unknown_fields=True):
    """Execute the line `text`, which begins with a slash, or with `!` for the shell, in the session of `ref`.

    With `shows` nobody typed it: a front end shows what it says, as a widget, and it is not put on record. Only
    commands of extensions are executed so.
    """

    ref: str
    text: str
    shows: bool = False


class Effect(Struct, frozen=True):
    """What is to be done by whoever had a command executed: a root cannot, and it is theirs to leave.

    `quit`: leave. `switch`: talk to `agent` from now on, and ask it `text` if there is some. `ask`: ask `text`. `edit`:
    put `text` where the next prompt is written. `copy`: put `text` on the clipboard. `paste`: take many lines as one
    prompt, which begins with `text`.
    """

    kind: EffectKind
    agent: str = ""
    text: str = ""


class Executed(Struct, frozen=True):
    """What came of a command of a session.

    `text` is for people, `data` the same for programs (rows or an object, as the verb of the command line prints it
    with `--json`), `effect` what is to be done, if anything is. `is_error`: what was run has failed.
    """

    command: str
    text: str = ""
    data: Any = None
    effect: Effect | None = None
    is_error: bool = False


class RunUserTool(Struct, frozen=True, tag="tool"):
    """Let the tool `name` run with `input`, asked for by a person who typed `line`; no model has a say in it.

    `heard`: the model is told of it, and it stands in the conversation; else it is on record alone. With `looks` it
    changes nothing, and is not even that.
    """

    name: str
    input: dict[str, Any]
    line: str
    heard: bool = True
    looks: bool = False


class RunCommand(Struct, frozen=True, tag="command"):
    """Let the command `name` of an extension run with these arguments; without `line` it is not put on record."""

    name: str
    said: dict[str, str]
    line: str = ""


class ListCommands(Struct, frozen=True, tag="commands"):
    """Say which commands, keys and widgets the agent's extensions have brought."""


Deed: TypeAlias = RunUserTool | RunCommand | ListCommands


class UserAction(Struct, frozen=True):
    """Something that the agent's process is to do for a person, without a model; the frame's id names it. For `hooks`
    see Query."""

    deed: Deed
    hooks: tuple[HookRow, ...] = ()


class UserActionResult(Struct, frozen=True, omit_defaults=True):
    """What came of it, or `error` says why nothing did. `catalog` is the answer to ListCommands."""

    text: str = ""
    data: Any = None
    effect: Effect | None = None
    is_error: bool = False
    catalog: CommandCatalog | None = None
    error: ErrorInfo | None = None
