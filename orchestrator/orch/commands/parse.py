"""How a line that a person types is read: as a prompt, a command with arguments, or a line for the shell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import Argument, is_flag, usage

__all__ = ["NAME", "SHELL", "ParsedLine", "bind", "find", "read"]

NAME: Final = re.compile(r"/([A-Za-z][\w.:@?-]*|\?)(?=\s|\Z)")
OPTION: Final = re.compile(r"(?:(?<=\s)|\A)--([a-z][a-z-]*)(?:=|\s+|\Z)")
WORD: Final = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|(\S+))(?=\s|\Z)", re.DOTALL)
SHELL: Final = "sh"
NEAR: Final = 3
MOST: Final = 1 << 20


class ParsedLine(Struct, frozen=True):
    """What was typed: a `prompt` to be said, or the command `name` with all that stands behind it, in `text`."""

    kind: Literal["prompt", "command"]
    text: str
    name: str = ""


def read(typed: str) -> ParsedLine:
    """Return what `typed` is: `/name ...` is a command, `!...` one for the shell, everything else a prompt.

    A prompt that is to begin with a slash, or with `!`, is written with two slashes, or with a backslash. What only
    looks like a command, such as the path of a file, is a prompt.
    """
    text = typed.strip()
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


def find(name: str, known: Mapping[str, object]) -> str:
    """Return the name in `known` that `name` is, in any case. Raises ConfigError, which names those that are near."""
    if name in known:
        return name
    if (lower := name.lower()) in known:
        return lower
    near = get_close_matches(lower, known, n=NEAR, cutoff=0.6) or [each for each in known if each.startswith(lower)]
    hint = f"did you mean {' or '.join(f'/{each}' for each in near[:NEAR])}?" if near else "/help lists those there are"
    raise ConfigError(f"there is no command /{name}; {hint}")


def bind(name: str, arguments: Sequence[Argument], text: str) -> dict[str, str]:
    """Return what of `text` each of `arguments` is, by name; those that are not said are left out.

    Options may stand anywhere, before code alone; behind `--` nothing is one. Raises ConfigError that shows how the
    command is written.
    """
    if len(text) > MOST:
        raise ConfigError(f"/{name}: a line of {len(text):,} characters is too long for a command: at most {MOST:,}")
    found: dict[str, str] = {}
    plain = [each for each in arguments if not each.option]
    text = _take_options(name, arguments, text, found)
    for each in plain:
        text = text.strip()
        if not text:
            break
        if each.rest:
            found[each.name], text = text if each.kind == "code" else _unquoted(text), ""
        else:
            word, text = _word(name, arguments, text)
            found[each.name] = word
    if text.strip():
        raise _wrong(name, arguments, f"it takes no {text.strip()[:40]!r}")
    for each in arguments:
        said = found.get(each.name)
        if said is None and each.required:
            raise _wrong(name, arguments, f"it needs {each.name.upper()}")
        if said is not None and each.choices and said not in each.choices and not each.option:
            raise _wrong(name, arguments, f"{each.name.upper()} is {' or '.join(each.choices)}, not {said[:40]!r}")
        if said is not None and each.kind == "number" and not (said.isascii() and said.isdigit() and len(said) < 10):
            raise _wrong(name, arguments, f"{each.name.upper()} is a number, not {said[:40]!r}")
    return found


def _take_options(name: str, arguments: Sequence[Argument], text: str, found: dict[str, str]) -> str:
    """Put the options in `text` into `found`, and return what is left of it."""
    known = {each.name: each for each in arguments if each.option}
    if not known:
        return text.removeprefix("-- ")
    kept: list[str] = []
    at = 0
    if any(each.kind == "code" for each in arguments):
        text, dash, behind = _before_code(known, text)
    else:
        text, dash, behind = f" {text}".partition(" -- ")
    text = text.strip()
    for match in OPTION.finditer(text):
        each = known.get(match[1])
        if each is None or match.start() < at:
            continue
        if each.name in found:
            raise _wrong(name, arguments, f"--{each.name} is given twice")
        kept.append(text[at : match.start()])
        at = match.end()
        found[each.name] = "yes"
        if not is_flag(each):
            value = WORD.match(text, at)
            if value is None:
                raise _wrong(name, arguments, f"--{each.name} needs a value")
            found[each.name], at = _value(value), value.end()
    kept.append(text[at:])
    left = " ".join(part.strip() for part in kept if part.strip())
    return f"{left} {behind}".strip() if dash else left


def _before_code(known: Iterable[str], text: str) -> tuple[str, str, str]:
    """Return the options that `text` begins with, a mark of their end, and the code behind: what is in that is its."""
    opening = re.match(rf"\s*(?:--(?:{'|'.join(known)})(?:\s+|\Z))*", text)
    end = opening.end() if opening is not None else 0
    return text[:end], "--", text[end:].removeprefix("-- ")


def _word(name: str, arguments: Sequence[Argument], text: str) -> tuple[str, str]:
    match = WORD.match(text)
    if match is None or (match[3] or "").startswith(('"', "'")):
        raise _wrong(name, arguments, f"a quote is not closed: {text[:40]}")
    return _value(match), text[match.end() :]


def _value(match: re.Match[str]) -> str:
    if match[1] is not None:
        return re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)
    return match[2] if match[2] is not None else match[3]


def _unquoted(text: str) -> str:
    """Return the text in quotes, when all of it is one."""
    match = WORD.fullmatch(text)
    return _value(match) if match is not None and match[3] is None else text


def _wrong(name: str, arguments: Sequence[Argument], what: str) -> ConfigError:
    return ConfigError(f"/{name}: {what}; it is written {usage(name, arguments)}")
