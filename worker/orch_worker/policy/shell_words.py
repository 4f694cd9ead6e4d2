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
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct

__all__ = [
    "MOST_TEXT",
    "MOST_WORDS",
    "WORD",
    "ShellContext",
    "attached_option_values",
    "command_words",
    "mentioned_paths",
    "normalize_command",
    "path_suffixes",
    "strip_separator_options",
]


# --- How a shell reads the text of a command ---

UNKNOWN: Final = "$__"
SPELLING_DEEPEST: Final = 16

_ESCAPED: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[xu]([0-9A-Fa-f]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
_MADE_UP: Final = re.compile(r"(?<=/)(?:\$\([^()]*\)|`[^`\n]*`)|(?:\$\([^()]*\)|`[^`\n]*`)(?=/)")
"""What another command says, as a part of a path."""
_DATE: Final = re.compile(r"..?date\s+(?:-u\s+)?['\"]?\+['\"]?%[FHMSTYdjmsy][%\w:-]*['\"]?\W")
NUMBER: Final = "[0-9]*"
_SERIES: Final = re.compile(
    r"\{(?:(?P<number>\d+\.\.\d+)|(?P<letter>[A-Za-z]\.\.[A-Za-z])|-?\d+\.\.-?\d+)(?:\.\.-?\d+)?\}|(?<=/)\{\}|\{\}(?=/)"
)
"""One after the other: `{a..c}`, and what `find` and `xargs` put in."""
_SPELLING_GOES: Final = re.compile(
    r"(?<![^\s;&|(`{])[\\'\"]*(?:c[\\'\"]*d|p[\\'\"]*u[\\'\"]*s[\\'\"]*h[\\'\"]*d)[\\'\"]*(?=\s)"
)
_OWN: Final = re.compile(r"/proc/[^/\s]+/(?:task/[^/\s]+/)?cwd\b")
"""The folder that whoever looks works in."""
_LINKS: Final = re.compile(r"\b(?:ln|(?P<copies>cp))\s([^;&|\n]*)|\bsymlink(?:_to|Sync)?\(([^\n;]*)")
_AS_LINKS: Final = re.compile(r"(?:^|\s)-(?:[a-zA-Z]*s|-symbolic-link)")
WORD: Final = re.compile(r"(?:[^\s'\"`;|&<>(){}\[\],]+|\[0-9\])+")
_ATTACHED: Final = re.compile(r"-[A-Za-z]+(?=[./~*]|\$[^\s/]*/)")
_SEPARATED: Final = re.compile(
    r"(\b(?:[gmn]?awk|column|cut|join|paste|sort)\s+(?:-[\w,.=-]+\s+)*-[A-Za-z]*[Fdst])/(?=\s|$)"
)
"""A slash that is no folder, but between the fields of a line."""


def normalize_command(text: str) -> str:
    """Return `text` with what is written in a roundabout way as it is read; the same where there is nothing of it."""
    text = text.replace("\\\n", "")
    if "$'" in text:
        text = _ESCAPED.sub(_plain, text)
    text = _MADE_UP.sub(_made_up, _OWN.sub(".", text))
    return _SPELLING_GOES.sub(_goes, _SERIES.sub(_series, text))


def strip_separator_options(text: str) -> str:
    """Return `text` without slashes that are options of commands which take lines apart: `cut -d/`."""
    return _SEPARATED.sub(r"\1", text)


def attached_option_values(word: str) -> Iterator[str]:
    """Yield what may be the value in `word`, an option that it is written right behind: `-T../file`.

    A variable alone is none: how many or which one, as in `-n$N`, it says more often.
    """
    if word.startswith("-") and "/" in word[2:]:
        yield word[2:]
    if found := _ATTACHED.match(word):
        yield word[found.end() :]


def command_words(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in `text`, or of each call in that code, by which files get further names."""
    for found in _LINKS.finditer(text):
        said = found[2] or found[3] or ""
        if not found["copies"] or _AS_LINKS.search(said):
            yield [word for word in WORD.findall(said) if not word.startswith("-")]


def path_suffixes(path: str) -> Iterator[str]:
    """Yield what is left of `path` behind each folder of it, which may be a link."""
    parts = path.strip("/").split("/")
    yield from ("/".join(parts[start:]) for start in range(1, min(len(parts), SPELLING_DEEPEST)))


def _plain(found: re.Match[str]) -> str:
    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1] or escape[2], 16 if escape[1] else 8)) if escape[1] or escape[2] else escape[3]

    return f"'{_ESCAPE.sub(character, found[1])}'"


def _made_up(found: re.Match[str]) -> str:
    return NUMBER if _DATE.fullmatch(found[0]) else UNKNOWN


def _series(found: re.Match[str]) -> str:
    return NUMBER if found["number"] else "?" if found["letter"] else "*"


def _goes(found: re.Match[str]) -> str:
    said = found[0]
    bare = said.lstrip("'\"")
    return said if bare.isalpha() else re.sub(r"[\\'\"]", "", said)


MOST_WORDS: Final = 20_000
MOST_TEXT: Final = 400_000
MOST_BASES: Final = 128
MOST_GUESSED: Final = 6
MOST_LED: Final = 20_000
MOST_PATHS: Final = 180_000
MOST_FOLDED: Final = 16_000_000
MOST_KEPT: Final = 64_000_000
MOST_VARIANTS: Final = 64
MOST_DATA: Final = 8_000
MOST_PLAIN: Final = 256
"""Variants of a word that is no data, such as JSON, whose braces are no shell's."""
LONGEST: Final = 4_096
MENTIONS_DEEPEST: Final = 3
QUOTES: Final = "\"'"
HARMLESS: Final = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"})

_URL: Final = re.compile(r"\b(?!file:)[A-Za-z][\w+.-]{0,30}://[^\s'\"`;|<>)]*")
_FILE_URL: Final = re.compile(r"\bfile://(?:localhost)?(/[^\s'\"`;|<>)]*)", re.IGNORECASE)
_INNER: Final = re.compile(r"[=:@,]")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_SET: Final = re.compile(r"(?:^|[\s;&|(])(\w+)(\+?)=(\"[^\"]*\"|'[^']*'|[^\s;&|]+)")
_DATA: Final = re.compile(r"[\"']\s*[:,}\]]|[\s:]\{")
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MENTIONS_GOES: Final = re.compile(
    r"""(?:(?P<stays>(?:^|[\s;&|(`'"])(?:cd|pushd)(?=[\s;])|\bchdir\b)|\bcwd\s*[=:]|(?:^|\s)-C|--(?:chdir|directory)\b)
    [ \t=:]*(?P<code>\()?(?:-[\w@]*[ \t]+)*
    (?P<to>"[^"\n]*"|'[^'\n]*'|[^\s;&|<>)`'"(]*[(`]?)""",
    re.VERBOSE,
)
"""What a command, or code, goes to another folder by, and which: `cd x`, `-C x`, `chdir(x)`, `cwd=x`. What it does not
`stays` in holds for one command."""
_REST: Final = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^;&|\n\\"'])*""", re.DOTALL)
"""The rest of one command."""
_GOES_HOME: Final = re.compile(r"(?:^|[;&|(]\s*|\n\s*)cd\s*(?:$|[;&|)\n])")
_PERCENT: Final = re.compile(r"%(?:\(\w*\))?[-+ #0-9.*]*[A-Za-z]")
_FIELD: Final = re.compile(r"\{[^{}]*\}")
_HERE_IN_CODE: Final = re.compile(r"(?:process|os|Path)\.(?:get)?cwd\(")
_CLOSED: Final = re.compile(r"\)\s*(?:[,;)}\]]|$)")
_HOME_IN_CODE: Final = re.compile(r"\bhome\(|expanduser|\bHOME\b")


class ShellContext(Struct, frozen=True):
    """Where an agent works: its folder, the folders that `~` may mean, and the variables that its commands see."""

    cwd: str
    homes: tuple[str, ...]
    env: Mapping[str, str] = {}


def mentioned_paths(values: Iterable[Any], where: ShellContext) -> tuple[str, ...] | None:
    """Return each path that `values`, however nested, name: absolute, once; None when there is too much to look at.

    Relative ones are taken from the agent's folder, and from those that a command goes to.
    """
    words: dict[str, None] = {}
    bases: dict[str, None] = {where.cwd: None}
    known = dict(where.env)
    texts = [text.replace("\0", "") for value in values for text in _texts(value)]
    if sum(map(len, texts)) > MOST_TEXT:
        return None
    texts += [plain for text in texts if (plain := normalize_command(text)) != text]
    for text in texts:
        for name, more, value in _SET.findall(text):
            known[name] = f"{known.get(name, '') if more else ''}{value.strip(QUOTES)}"
        if _HOME_IN_CODE.search(text) or _GOES_HOME.search(text):
            bases |= dict.fromkeys(where.homes)
        try:
            _keep(words, _words(text), MOST_WORDS)
        except (_TooComplexError, RecursionError):
            return None
    kept: dict[str, None] = {}
    try:
        _keep(kept, (each for word in words for each in _variants(word, known, where)), MOST_PATHS)
    except _TooComplexError:
        return None
    named = list(kept)
    if any(_MENTIONS_GOES.search(text) for text in texts):
        passing: dict[str, None] = {}
        for text in texts:
            _go(text, bases, passing, known, where)
            if len(bases) + len(passing) > MOST_BASES:
                return None
        bases |= passing
        bases |= {os.path.normpath(os.path.join(where.cwd, each)): None for each in known.get("CDPATH", "").split(":")}
        # And whatever other folder is named in the command.
        others = (os.path.normpath(os.path.join(where.cwd, each)) for each in named if "/" in each)
        bases |= dict.fromkeys(islice(others, MOST_GUESSED))
    links = [
        [each for word in words for each in _variants(word, known, where)] for t in texts for words in command_words(t)
    ]
    if links:
        # What is named may lead through a link that is not there yet.
        if len(bases) * sum(len(names) ** 2 for names in links) > MOST_LED:
            return None
        bases |= {path: None for names in links for path in _led(names, tuple(bases))}
        named = list(dict.fromkeys((*named, *(tail for each in named for tail in path_suffixes(each)))))
    if len(bases) * len(named) > MOST_PATHS:
        return None
    absolute: dict[str, None] = {}
    for each in named:
        for path in [each] if each[:1] == "/" else _joined(bases, each):
            absolute[os.path.normpath(path)] = None
            if ".." in path:
                absolute[path] = None  # what is above a link is not what its spelling says
    return tuple(path for path in absolute if path not in HARMLESS)


def _keep(there: dict[str, None], texts: Iterable[str], most: int) -> None:
    """Add `texts` to those that are `there`. Raises _TooComplexError when that takes more room than there is."""
    left = MOST_KEPT
    for text in texts:
        there[text] = None
        left -= len(text)
        if left < 0 or len(there) > most:
            raise _TooComplexError


def _led(names: list[str], bases: Iterable[str]) -> dict[str, None]:
    """Return where links may lead that a command makes of `names`, as seen from wherever they may lie."""
    there = {os.path.join(base, os.path.dirname(each)): None for base in bases for each in ("", *names)}
    return {os.path.normpath(path): None for each in names for path in _joined(there, each)}


def _go(
    text: str, bases: dict[str, None], passing: dict[str, None], known: Mapping[str, str], where: ShellContext
) -> None:
    """Add to `bases`, from where the command or code `text` may begin, those where it goes, and to `passing` those
    where it goes for one command alone; no more when there are too many."""
    once: dict[str, None] = {}  # where one command goes, and what it starts
    end = 0
    for found in _MENTIONS_GOES.finditer(text):
        if found.start() >= end:
            once = {}
        # From wherever it was by then: a subshell, or what comes behind a failure, is not where it went last.
        starts = bases | once
        there = {
            os.path.normpath(path): None for to in _destinations(found, known, where) for path in _joined(starts, to)
        }
        if found["stays"] is not None:
            bases |= there
        else:
            if found.start() >= end:
                rest = _REST.match(text, found.end())
                end = rest.end() if rest is not None else len(text)
            once |= there
            passing |= there
        if len(bases) + len(passing) > MOST_BASES:
            return


def _destinations(found: re.Match[str], known: Mapping[str, str], where: ShellContext) -> list[str]:
    """Return the folders that may be meant where a command goes to one; when nobody knows, those above and homes."""
    to = found["to"]
    plain = to.strip("\"'")
    variants = list(_variants(plain, known, where)) if plain else []
    if _HERE_IN_CODE.fullmatch(plain) and _CLOSED.match(found.string, found.end()):
        return [where.cwd]
    unsaid = "(" in plain or "`" in plain or plain.startswith("-") or "*" in _filled(plain, known)
    if unsaid or (found["code"] and plain == to):
        above = (where.cwd, *map(str, PurePosixPath(where.cwd).parents))
        variants += [*where.homes, *above]
    return variants


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
    text = strip_separator_options(_URL.sub(" ", text))
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
    for word in (*WORD.findall(text), *read, *_folded(text)):
        yield word
        yield from (word[at:] for found in _INNER.finditer(word) if len(word) - (at := found.end()) <= LONGEST)
        yield from attached_option_values(word)
        if (
            depth < MENTIONS_DEEPEST
            and word != text
            and re.search(r"\s" if len(word) > LONGEST else r"[\s'\"]|\(.", word)
        ):
            yield from _words(word, depth + 1)


def _variants(word: str, known: Mapping[str, str], where: ShellContext) -> Iterator[str]:
    """Yield what `word` comes to with its variables, braces and `~` put in."""
    word = word.strip()
    if not word or len(word) > LONGEST:
        return
    for plain in _unbraced(word):
        filled = _filled(plain, known)
        if filled.startswith("~"):
            name, slash, rest = filled.partition("/")
            if name in ("~+", "~-"):
                yield f"{where.cwd}{slash}{rest}"
            if name in ("~", "~-"):
                yield from (f"{home}{slash}{rest}" for home in where.homes)
            elif name != "~+":
                yield os.path.expanduser(filled)
        elif plain.startswith("$") and filled.startswith("*"):  # nobody knows where that is
            yield from (f"{start}{filled[1:]}" for start in (*where.homes, where.cwd))
        elif re.match(r"\$\{?HOME\b", plain):
            yield filled
            rest = _VARIABLE.sub("", plain, count=1)
            yield from (f"{home}{_filled(rest, known)}" for home in where.homes)
        else:
            yield filled
            if plain.startswith("-") and filled != plain and "*" not in filled:
                yield from attached_option_values(filled)


def _filled(text: str, known: Mapping[str, str]) -> str:
    for _ in range(MENTIONS_DEEPEST):  # one variable may hold another
        text = _VARIABLE.sub(lambda found: known.get(found[1] or found[2], "*"), text)[:LONGEST]
    return text


def _unbraced(word: str) -> list[str]:
    """Expand the braces in `word`; of data only a part. Raises _TooComplexError for too large an expansion."""
    found, is_data = [word], _DATA.search(word) is not None
    most = min(MOST_VARIANTS, max(2, MOST_DATA // len(word))) if is_data else MOST_PLAIN
    while len(found) < most and (match := _BRACES.search(found[0])):
        first = found.pop(0)
        found += [first[: match.start()] + each + first[match.end() :] for each in match[1].split(",")]
    if not is_data and len(found) >= most and any(_BRACES.search(each) for each in found):
        raise _TooComplexError
    return found


class _TooComplexError(Exception):
    """What code puts together is more than can be looked at."""


class _AssignedTexts(dict[str, str]):
    """Texts by the names that code gives them; of these so much can be put together."""

    left = MOST_FOLDED

    def take(self, characters: int) -> None:
        """Raise _TooComplexError when there is no room for so much more."""
        self.left -= characters
        if self.left < 0:
            raise _TooComplexError


def _folded(text: str) -> list[str]:
    """Return the texts in Python code, those put together from parts too; nothing when `text` is no Python.

    Raises _TooComplexError; RecursionError for what is nested too deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = _AssignedTexts()
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (value := _text(node.value, names)) is not None:
            names.take(len(value))
            names |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = names.get(node.target.id, "") + (_text(node.value, names) or "*")
            names.take(len(value))
            names[node.target.id] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (value := _text(node, names)) and value not in found:
            names.take(len(value))
            found[value] = None
    return list(found)


def _text(node: ast.expr, names: _AssignedTexts) -> str | None:
    """Return the text or path that `node` is, as far as it can be said; None when it is something else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(data)):
            return data.decode("utf-8", "replace")
        case ast.Name(id=name):
            names.take(len(names.get(name, "")))
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            front, back = _text(left, names), _text(right, names)
            return front + back if front is not None and back is not None else back or front
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _path(left, right, names=names)
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return _put_in(_PERCENT, left, right.elts if isinstance(right, ast.Tuple) else [right], names)
        case ast.Call(func=ast.Attribute(attr="format", value=value), args=parts, keywords=named):
            return _put_in(_FIELD, value, [*parts, *(each.value for each in named)], names)
        case ast.Attribute(attr="parent", value=value):
            return os.path.join(_text(value, names) or ".", "..")
        case ast.Call(func=ast.Attribute(attr="cwd" | "getcwd")):
            return "."
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, _, *_] as parts) if "Path" in name:
            return _path(*parts, names=names)
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
                names.take(len(start) * len(_elements(parts)))
                return start.join(_text(each, names) or "" for each in _elements(parts))
            return _path(*([function.value] if start else []), *parts, names=names)
        case ast.Call(args=[first, *_]):  # Path(x), str(x), open(x), expanduser(x), getenv(x)
            called, said = getattr(node.func, "attr", getattr(node.func, "id", "")), _text(first, names)
            return f"${said}" if called in ("getenv", "get") and said else said
    return None


def _put_in(
    fields: re.Pattern[str], template: ast.expr, parts: Iterable[ast.expr], names: _AssignedTexts
) -> str | None:
    """Return what `template` says with the parts in its fields, one after the other."""
    text, filled = _text(template, names), (_text(part, names) or "*" for part in parts)
    return fields.sub(lambda _: next(filled, "*"), text) if text is not None else None


def _elements(parts: list[ast.expr]) -> list[ast.expr]:
    return parts[0].elts if len(parts) == 1 and isinstance(parts[0], (ast.List, ast.Tuple)) else parts


def _path(*nodes: ast.expr, names: _AssignedTexts) -> str | None:
    parts = [value for node in nodes if (value := _text(node, names))]
    return os.path.join(*parts) if parts else None
