"""Parses input lines.

A line is a prompt, a slash command with arguments, or a shell command. The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import Argument, is_flag, usage

__all__ = ["NAME", "SHELL", "SHELL_COMMANDS", "ParsedLine", "bind", "find", "read", "shell_command_note"]

NAME: Final = re.compile(r"/([A-Za-z][\w.:@?-]*|\?)(?=\s|\Z)")
OPTION: Final = re.compile(r"(?:(?<=\s)|\A)--([a-z][a-z-]*)(?:=|\s+|\Z)")
WORD: Final = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|(\S+))(?=\s|\Z)", re.DOTALL)
SHELL: Final = "sh"
SHELL_COMMANDS: Final = {
    "agent-types": "",
    "budget": "/usage",
    "chat": "/new, or /switch ID",
    "completion": "",
    "costs": "/usage",
    "daemon": "",
    "demo": "",
    "events": "/audit",
    "execute": "type the command",
    "forget": "",
    "fsck": "",
    "import": "",
    "init": "",
    "list": "/agents",
    "map": "",
    "prompts": "/templates",
    "proxy": "",
    "query": "type the prompt for this agent, or /ask ID PROMPT for another agent",
    "replay": "",
    "run": "/spawn TASK",
    "runs": "",
    "send": "type the text, or /steer ID TEXT for another agent",
    "show": "/status, or /agents",
    "version": "",
    "wrap": "",
}
"""The commands `orch NAME` that are no slash commands, each with its counterpart in a chat, or "" if it has none."""
MAX_SUGGESTIONS: Final = 3
MAX_CHARS: Final = 1 << 20


class ParsedLine(Struct, frozen=True):
    """A parsed line. The line is a `prompt`, or the command `name` with its arguments in `text`."""

    kind: Literal["prompt", "command"]
    text: str
    name: str = ""


def read(line: str) -> ParsedLine:
    """Parse the line `line`. `/name ...` is a command, `!...` is a shell command, everything else is a prompt.

    A prompt that starts with a slash or `!` is escaped by a second slash or a backslash. A line that only looks like a
    command, such as a file path, is a prompt.
    """
    text = line.strip()
    if text.startswith("//"):
        return ParsedLine("prompt", text[1:])
    if text.startswith(("\\/", "\\!")):
        return ParsedLine("prompt", text[1:])
    if text.startswith("!"):
        quiet = text.startswith("!!")
        command = text.lstrip("!").strip()
        return ParsedLine("command", f"--quiet {command}" if quiet else command, SHELL)
    if (match := NAME.match(text)) is not None:
        return ParsedLine("command", text[match.end() :].strip(), match[1])
    return ParsedLine("prompt", text)


def find(name: str, commands: Mapping[str, object]) -> str:
    """Return the name in `commands` that equals `name`. The comparison ignores upper and lower case.

    If there is no such name, raises ConfigError with similar names.
    """
    if name in commands:
        return name
    if (lower := name.lower()) in commands:
        return lower
    suggestions = get_close_matches(lower, commands, n=MAX_SUGGESTIONS, cutoff=0.6) or [
        each for each in commands if each.startswith(lower)
    ]
    if lower in SHELL_COMMANDS:
        raise ConfigError(f"unknown command /{name}; {shell_command_note(lower)}")
    hint = (
        f"did you mean {' or '.join(f'/{each}' for each in suggestions[:MAX_SUGGESTIONS])}?"
        if suggestions
        else "/help lists all commands"
    )
    raise ConfigError(f"unknown command /{name}; {hint}")


def shell_command_note(name: str) -> str:
    """Return a text that says where the command `name`, one of SHELL_COMMANDS, can be used."""
    counterpart = f" Here: {SHELL_COMMANDS[name]}." if SHELL_COMMANDS[name] else ""
    return (
        f"{name} is a command of the shell, not a slash command. In another terminal: orch {name} (`orch help {name}` "
        f"shows its usage).{counterpart}"
    )


def bind(name: str, arguments: Sequence[Argument], text: str) -> dict[str, str]:
    """Parse `text` and return the values of `arguments` by name. Arguments that were not given are left out.

    Options may be at any position before an argument of kind `code`. After `--`, words are not options. Raises
    ConfigError with the usage of the command.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(
            f"/{name}: a line of {len(text):,} characters is too long for a command: at most {MAX_CHARS:,}"
        )
    found: dict[str, str] = {}
    positionals = [each for each in arguments if not each.option]
    text = _take_options(name, arguments, text, found)
    for each in positionals:
        text = text.strip()
        if not text:
            break
        if each.rest:
            found[each.name], text = text if each.kind == "code" else _unquote(text), ""
        else:
            word, text = _take_word(name, arguments, text)
            found[each.name] = word
    if text.strip():
        raise _usage_error(name, arguments, f"unexpected argument {text.strip()[:40]!r}")
    for each in arguments:
        value = found.get(each.name)
        if value is None and each.required:
            raise _usage_error(name, arguments, f"it needs {each.name.upper()}")
        if value is not None and each.choices and value not in each.choices and not each.option:
            raise _usage_error(
                name, arguments, f"{each.name.upper()} is {' or '.join(each.choices)}, not {value[:40]!r}"
            )
        if (
            value is not None
            and each.kind == "number"
            and not (value.isascii() and value.isdigit() and len(value) < 10)
        ):
            raise _usage_error(name, arguments, f"{each.name.upper()} is a number, not {value[:40]!r}")
    return found


def _take_options(name: str, arguments: Sequence[Argument], text: str, found: dict[str, str]) -> str:
    """Move the options in `text` into `found`, and return the remaining text."""
    options = {each.name: each for each in arguments if each.option}
    if not options:
        return text.removeprefix("-- ")
    parts: list[str] = []
    position = 0
    if any(each.kind == "code" for each in arguments):
        text, separator, code = _before_code(options, text)
    else:
        text, separator, code = f" {text}".partition(" -- ")
    text = text.strip()
    for match in OPTION.finditer(text):
        each = options.get(match[1])
        if each is None or match.start() < position:
            continue
        if each.name in found:
            raise _usage_error(name, arguments, f"--{each.name} is given twice")
        parts.append(text[position : match.start()])
        position = match.end()
        found[each.name] = "yes"
        if not is_flag(each):
            value = WORD.match(text, position)
            if value is None:
                raise _usage_error(name, arguments, f"--{each.name} needs a value")
            found[each.name], position = _value(value), value.end()
    parts.append(text[position:])
    remaining = " ".join(piece.strip() for piece in parts if piece.strip())
    return f"{remaining} {code}".strip() if separator else remaining


def _before_code(option_names: Iterable[str], text: str) -> tuple[str, str, str]:
    """Return the options at the beginning of `text`, an end marker, and the code after them."""
    match = re.match(rf"\s*(?:--(?:{'|'.join(option_names)})(?:\s+|\Z))*", text)
    end = match.end() if match is not None else 0
    return text[:end], "--", text[end:].removeprefix("-- ")


def _take_word(name: str, arguments: Sequence[Argument], text: str) -> tuple[str, str]:
    match = WORD.match(text)
    if match is None or (match[3] or "").startswith(('"', "'")):
        raise _usage_error(name, arguments, f"a quote is not closed: {text[:40]}")
    return _value(match), text[match.end() :]


def _value(match: re.Match[str]) -> str:
    if match[1] is not None:
        return re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)
    return match[2] if match[2] is not None else match[3]


def _unquote(text: str) -> str:
    """Return the content of `text` if it is one quoted string, otherwise `text`."""
    match = WORD.fullmatch(text)
    return _value(match) if match is not None and match[3] is None else text


def _usage_error(name: str, arguments: Sequence[Argument], problem: str) -> ConfigError:
    return ConfigError(f"/{name}: {problem}; usage: {usage(name, arguments)}")
