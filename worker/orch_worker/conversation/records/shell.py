"""Splits the text of a shell command into its simple commands, for display and for recognition.

The text is not expanded. A text that is no valid shell code is returned as one command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from posixpath import join, normpath
from typing import Final

from msgspec import Struct

__all__ = ["Step", "steps_of", "words_of"]

MAX_TEXT: Final = 20_000
_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_REDIRECTION: Final = re.compile(r"\s*(?:\d|&)?>>?\|?\s*(?:&\d|[^\s;&|<>()]+)|\s*<\s*[^\s;&|<>()]+")
_TARGET: Final = re.compile(r"(?<![\d&>])>>?\|?\s*([^\s;&|<>()]+)")
_ASSIGNMENT: Final = re.compile(r"\A(?:[A-Za-z_]\w*=(?:'[^']*'|\"[^\"]*\"|\S*)\s+)+")
_PREFIX: Final = re.compile(r"\A(?:(?:then|do|else|if|while|!|time|sudo|exec|nohup|command|env)\s+|timeout\s+\S+\s+)+")
_WRAPPER: Final = re.compile(r"^(?:ba|z|da)?sh\s+-l?c\s+")


class Step(Struct, frozen=True):
    """One simple command.

    `text` is the command without redirections and leading assignments. `folder` is the folder of an earlier `cd` in the
    same text, or "". `targets` are the files that its output is written to. `joint` is the operator before the command:
    "", "&&", "||", ";" or "|". `background` is True if the command ends with "&". `document` is the text of its
    heredocs.
    """

    text: str
    folder: str
    targets: tuple[str, ...]
    joint: str
    background: bool = False
    document: str = ""

    @property
    def words(self) -> list[str]:
        """The words of the command, without quotes."""
        return words_of(self.text)


def words_of(text: str) -> list[str]:
    """Return the words of one simple command, without quotes."""
    return list(_split(text))


@lru_cache(maxsize=64)
def _split(text: str) -> tuple[str, ...]:
    # Several facts about a command are computed from its words, and splitting is the slowest step.
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def steps_of(text: str) -> list[Step]:
    """Return the simple commands of `text` in order, without `cd` and without empty commands."""
    text = _unwrapped(text[:MAX_TEXT])
    steps: list[Step] = []
    folder = ""
    for joint, raw, document in _pieces(text):
        body, background = (raw[:-1].rstrip(), True) if raw.endswith("&") else (raw, False)
        outside = _blanked(body)
        targets = tuple(match[1].strip("'\"") for match in _TARGET.finditer(outside) if not match[1].startswith("&"))
        command = _without_redirections(body, outside).strip().lstrip("({ ").rstrip()
        command = _PREFIX.sub("", _ASSIGNMENT.sub("", command, count=1), count=1).strip()
        if command.endswith(")") and command.count(")") > command.count("("):
            command = command[:-1].rstrip()
        if (
            not command
            or command in ("fi", "done", "}", ")", "esac")
            or command.startswith(("for ", "case ", "until "))
        ):
            continue
        words = command.split(maxsplit=1)
        if words[0] in ("cd", "pushd"):
            folder = normpath(join(folder, words[1].strip("'\" "))) if len(words) > 1 else ""
            continue
        steps.append(Step(command, folder, targets, joint, background, document))
    return steps


def _unwrapped(text: str) -> str:
    """Return the command in `bash -c "..."`, or `text`."""
    stripped = text.strip()
    if _WRAPPER.match(stripped):
        words = words_of(stripped)
        if len(words) == 3:
            return words[2]
    return text


def _without_redirections(text: str, blanked: str) -> str:
    """Return `text` without redirections. `blanked` is `text` with quoted parts replaced by filler characters."""
    kept, end = [], 0
    for match in _REDIRECTION.finditer(blanked):
        kept.append(text[end : match.start()])
        end = match.end()
    return _HEREDOC.sub("", "".join([*kept, text[end:]]))


def _blanked(text: str) -> str:
    """Return `text` with the same length and with "x" in place of each quoted character."""
    out, quote, skip = [], "", False
    for char in text:
        if skip:
            out.append("x")
            skip = False
        elif quote:
            skip = char == "\\" and quote == '"'
            out.append(char if char == quote else "x")
            quote = "" if char == quote else quote
        else:
            skip = char == "\\"
            quote = char if char in "'\"" else ""
            out.append(char)
    return "".join(out)


def _pieces(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the operator before each simple command, the command, and the text of its heredocs."""
    begin, place, joint, quote, depth = 0, 0, "", "", 0
    waiting: list[str] = []
    document = ""
    size = len(text)

    def piece(stop: int) -> str:
        return " ".join(text[begin:stop].replace("\\\n", " ").split("\n")).strip()

    while place < size:
        char = text[place]
        if quote:
            if char == "\\" and quote == '"':
                place += 1
            elif quote == '"' and text.startswith("$(", place):
                end = _substitution_end(text, place)
                document = document or _document_in(text[place:end])
                place = end
                continue
            elif char == quote:
                quote = ""
        elif char == "\\":
            place += 1
        elif char in "'\"":
            quote = char
        elif text.startswith("$(", place):
            end = _substitution_end(text, place)
            document = document or _document_in(text[place:end])
            place = end
            continue
        elif char == "#" and (place == 0 or text[place - 1].isspace()) and not depth:
            if found := piece(place):
                yield joint, found, document
            joint, document = ";", ""
            place = text.find("\n", place)
            if place < 0:
                return
            begin = place
            continue
        elif char == "<" and not text.startswith("<<<", place) and (heredoc := _HEREDOC.match(text, place)):
            waiting.append(heredoc[2])
            place = heredoc.end()
            continue
        elif char == "\n" and waiting:
            head = text[begin:place]
            bodies = []
            for mark in waiting:
                last = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*$", re.MULTILINE).search(text, place + 1)
                stop = last.start() if last else size
                bodies.append(text[place + 1 : stop])
                place = last.end() if last else size
            yield joint, " ".join(head.split()), "\n".join(bodies)
            waiting, begin, joint, document = [], place, ";", ""
            continue
        else:
            operator = next((each for each in ("&&", "||", ";;", ";", "|", "\n") if text.startswith(each, place)), "")
            if not operator and char == "&" and _is_background(text, place):
                operator = "&"
            if operator:
                stop = place + 1 if operator == "&" else place
                if found := piece(stop):
                    yield joint, found, document
                    joint, document = ";", ""
                if operator not in ("\n", "&", ";;"):
                    joint = operator
                place += len(operator)
                begin = place
                continue
        place += 1
    if found := piece(size):
        yield joint, found, document


def _document_in(substitution: str) -> str:
    """Return the text of the first heredoc in a command substitution, or ""."""
    match = _HEREDOC.search(substitution)
    if not match:
        return ""
    body = substitution[match.end() :].partition("\n")[2]
    return re.split(rf"^[ \t]*{re.escape(match[2])}[ \t]*$", body, maxsplit=1, flags=re.MULTILINE)[0]


def _is_background(text: str, place: int) -> bool:
    """Return whether the "&" at `place` sends a command to the background, and is not part of a redirection."""
    before, after = text[place - 1 : place], text[place + 1 : place + 2]
    return before not in ("&", ">", "<") and after not in ("&", ">")


def _substitution_end(text: str, start: int) -> int:
    """Return the end of the command substitution that begins at `start`. Heredocs in it may contain parentheses."""
    depth, place = 0, start + 1
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 1
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return place + 1
        elif char == "<" and (match := _HEREDOC.match(text, place)):
            end = re.compile(rf"^[ \t]*{re.escape(match[2])}[ \t]*$", re.MULTILINE).search(text, match.end())
            place = end.end() if end else len(text)
            continue
        elif char in "'\"":
            closing = text.find(char, place + 1)
            place = closing if closing > 0 else place
        place += 1
    return len(text)
