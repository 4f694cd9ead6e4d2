"""The paths that a call's arguments name: as they are, as words of a shell command, or put together in Python code.

What is looked at is text: a name that is made up only as a command runs (read from a file, decoded) is not seen.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct

__all__ = ["MOST_TEXT", "MOST_WORDS", "Where", "mentions"]

MOST_WORDS: Final = 20_000
MOST_TEXT: Final = 400_000
MOST_BASES: Final = 6
MOST_VARIANTS: Final = 64
LONGEST: Final = 4_096
DEEPEST: Final = 3
HARMLESS: Final = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"})

_WORD: Final = re.compile(r"""[^\s'"`;|&<>(){}\[\],]+""")
_URL: Final = re.compile(r"\b(?!file:)[A-Za-z][\w+.-]*://[^\s'\"`;|<>)]*")
_FILE_URL: Final = re.compile(r"\bfile://(?:localhost)?(/[^\s'\"`;|<>)]*)", re.IGNORECASE)
_INNER: Final = re.compile(r"[=:@,]")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_SET: Final = re.compile(r"(?:^|[\s;&|(])(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;&|]+)")
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_GOES: Final = re.compile(r"(?:^|[\s;&|(])(?:cd|pushd|chdir)\b|-C\b")
_GOES_HOME: Final = re.compile(r"(?:^|[;&|(]\s*|\n\s*)cd\s*(?:$|[;&|)\n])")
_HOME_IN_CODE: Final = re.compile(r"\bhome\(|expanduser|\bHOME\b")


class Where(Struct, frozen=True):
    """Where an agent works: its folder, the folders that `~` may mean, and the variables that its commands see."""

    cwd: str
    homes: tuple[str, ...]
    env: Mapping[str, str] = {}


def mentions(values: Iterable[Any], where: Where) -> tuple[str, ...] | None:
    """Return each path that `values`, however nested, name: absolute, once; None when there is too much to look at.

    Relative ones are taken from the agent's folder, and from those that a command goes to.
    """
    words: dict[str, None] = {}
    bases: dict[str, None] = {where.cwd: None}
    known = dict(where.env)
    texts = [text.replace("\0", "") for value in values for text in _texts(value)]
    if sum(map(len, texts)) > MOST_TEXT:
        return None
    for text in texts:
        known |= {name: value.strip("\"'") for name, value in _SET.findall(text)}
        if _HOME_IN_CODE.search(text) or _GOES_HOME.search(text):
            bases |= dict.fromkeys(where.homes)
        words |= dict.fromkeys(_words(text))
        if len(words) > MOST_WORDS:
            return None
    named = list(dict.fromkeys(each for word in words for each in _variants(word, known, where)))
    if any(_GOES.search(text) for text in texts):
        # Where it may have gone: whatever folder is named in the command, from where relative names go on.
        bases |= dict.fromkeys(os.path.normpath(os.path.join(where.cwd, each)) for each in named if "/" in each)
    starts = list(bases)[: MOST_BASES + len(where.homes)]
    absolute = dict.fromkeys(
        os.path.normpath(path) for each in named for path in ([each] if each[:1] == "/" else _joined(starts, each))
    )
    return tuple(path for path in absolute if path not in HARMLESS)


def _joined(bases: Iterable[str], name: str) -> list[str]:
    return [os.path.join(base, name) for base in bases]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _words(text: str, depth: int = 0) -> Iterator[str]:
    """Yield what may be a path in `text`: all of it, and each word as a shell and as Python reads it."""
    for path in _FILE_URL.findall(text):
        yield unquote(path)
    text = _URL.sub(" ", text)
    if "\n" not in text and len(text) < LONGEST:
        yield text
    if not re.search(r"\s|[^\w./-]", text):
        return
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        read = list(lexer)
    except ValueError:  # no shell command: a quote stands alone
        read = []
    for word in (*_WORD.findall(text), *read, *_folded(text)):
        yield word
        yield from (word[found.end() :] for found in _INNER.finditer(word))
        if depth < DEEPEST and word != text and re.search(r"\s", word):
            yield from _words(word, depth + 1)


def _variants(word: str, known: Mapping[str, str], where: Where) -> Iterator[str]:
    """Yield what `word` comes to with its variables, braces and `~` put in."""
    word = word.strip()
    if not word or len(word) > LONGEST:
        return
    for plain in _unbraced(word):
        filled = _filled(plain, known)
        if filled.startswith("~"):
            name, slash, rest = filled.partition("/")
            if name == "~":
                yield from (f"{home}{slash}{rest}" for home in where.homes)
            else:
                yield os.path.expanduser(filled)
        elif plain.startswith("$") and filled.startswith("*"):  # nobody knows where that is
            yield from (f"{start}{filled[1:]}" for start in (*where.homes, where.cwd))
        elif re.match(r"\$\{?HOME\b", plain):
            yield filled
            rest = _VARIABLE.sub("", plain, count=1)
            yield from (f"{home}{_filled(rest, known)}" for home in where.homes)
        else:
            yield filled


def _filled(text: str, known: Mapping[str, str]) -> str:
    for _ in range(DEEPEST):  # one variable may hold another
        text = _VARIABLE.sub(lambda found: known.get(found[1] or found[2], "*"), text)[:LONGEST]
    return text


def _unbraced(word: str) -> list[str]:
    found = [word]
    while len(found) < MOST_VARIANTS and (match := _BRACES.search(found[0])):
        first = found.pop(0)
        found += [first[: match.start()] + each + first[match.end() :] for each in match[1].split(",")]
    return found


def _folded(text: str) -> list[str]:
    """Return the texts in Python code, those put together from parts too; nothing when `text` is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: dict[str, str] = {}
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (value := _text(node.value, names)) is not None:
            names |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (value := _text(node, names)):
            found[value] = None
    return list(found)


def _text(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Return the text or path that `node` is, as far as it can be said; None when it is something else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(data)):
            return data.decode("utf-8", "replace")
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            front, back = _text(left, names), _text(right, names)
            return front + back if front is not None and back is not None else back or front
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _path(left, right, names=names)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, names) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return _text(value, names) or "*"
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            return f"${name}"
        case ast.Call(func=ast.Attribute(attr="home")):
            return "~"
        case ast.Call(func=ast.Attribute(attr="join" | "joinpath") as function, args=parts):
            start = _text(function.value, names)
            # A text's own join puts it between the parts; a path's begins with it.
            if function.attr == "join" and start is not None and not isinstance(function.value, ast.Name):
                return start.join(_text(each, names) or "" for each in _elements(parts))
            return _path(*([function.value] if start else []), *parts, names=names)
        case ast.Call(args=[first, *_]):  # Path(x), str(x), open(x), expanduser(x), getenv(x)
            called, said = getattr(node.func, "attr", getattr(node.func, "id", "")), _text(first, names)
            return f"${said}" if called in ("getenv", "get") and said else said
    return None


def _elements(parts: list[ast.expr]) -> list[ast.expr]:
    return parts[0].elts if len(parts) == 1 and isinstance(parts[0], (ast.List, ast.Tuple)) else parts


def _path(*nodes: ast.expr, names: Mapping[str, str]) -> str | None:
    parts = [value for node in nodes if (value := _text(node, names))]
    return os.path.join(*parts) if parts else None
