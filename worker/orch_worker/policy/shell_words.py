"""Finds the paths in the arguments of a call: plain paths, words of shell commands, and strings in Python code.

Only the text is analyzed. A path that the command computes while it runs, for example by reading a file, is not found.
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
    "MAX_TEXT",
    "MAX_WORDS",
    "WORD",
    "ShellContext",
    "attached_option_values",
    "command_words",
    "mentioned_paths",
    "normalize_command",
    "path_suffixes",
    "strip_separator_options",
]


# --- Shell syntax ---

UNKNOWN: Final = "$__"
MAX_PATH_PARTS: Final = 16

_ESCAPED: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[xu]([0-9A-Fa-f]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
_SUBSTITUTION: Final = re.compile(r"(?<=/)(?:\$\([^()]*\)|`[^`\n]*`)|(?:\$\([^()]*\)|`[^`\n]*`)(?=/)")
"""A command substitution that is part of a path."""
_DATE: Final = re.compile(r"..?date\s+(?:-u\s+)?['\"]?\+['\"]?%[FHMSTYdjmsy][%\w:-]*['\"]?\W")
NUMBER: Final = "[0-9]*"
_SEQUENCE: Final = re.compile(
    r"\{(?:(?P<number>\d+\.\.\d+)|(?P<letter>[A-Za-z]\.\.[A-Za-z])|-?\d+\.\.-?\d+)(?:\.\.-?\d+)?\}|(?<=/)\{\}|\{\}(?=/)"
)
"""Sequences such as `{a..c}`, and the placeholder `{}` of the programs `find` and `xargs`."""
_QUOTED_CD: Final = re.compile(
    r"(?<![^\s;&|(`{])[\\'\"]*(?:c[\\'\"]*d|p[\\'\"]*u[\\'\"]*s[\\'\"]*h[\\'\"]*d)[\\'\"]*(?=\s)"
)
_PROC_CWD: Final = re.compile(r"/proc/[^/\s]+/(?:task/[^/\s]+/)?cwd\b")
"""The working folder of a process, as a path below /proc."""
_LINK_COMMAND: Final = re.compile(r"\b(?:ln|(?P<copies>cp))\s([^;&|\n]*)|\bsymlink(?:_to|Sync)?\(([^\n;]*)")
_LINK_OPTION: Final = re.compile(r"(?:^|\s)-(?:[a-zA-Z]*s|-symbolic-link)")
WORD: Final = re.compile(r"(?:[^\s'\"`;|&<>(){}\[\],]+|\[0-9\])+")
_ATTACHED_VALUE: Final = re.compile(r"-[A-Za-z]+(?=[./~*]|\$[^\s/]*/)")
_SEPARATOR_OPTION: Final = re.compile(
    r"(\b(?:[gmn]?awk|column|cut|join|paste|sort)\s+(?:-[\w,.=-]+\s+)*-[A-Za-z]*[Fdst])/(?=\s|$)"
)
"""A slash that is a field separator and not part of a path."""


def normalize_command(text: str) -> str:
    """Return the shell code `text` in a simpler form that is easier to search for paths.

    Escapes are decoded, sequences such as `{a..c}` become patterns, and quotes around `cd` are removed.
    """
    text = text.replace("\\\n", "")
    if "$'" in text:
        text = _ESCAPED.sub(_decode_escapes, text)
    text = _SUBSTITUTION.sub(_replace_substitution, _PROC_CWD.sub(".", text))
    return _QUOTED_CD.sub(_unquote_cd, _SEQUENCE.sub(_replace_sequence, text))


def strip_separator_options(text: str) -> str:
    """Return `text` without slashes that are field separators, as in `cut -d/`."""
    return _SEPARATOR_OPTION.sub(r"\1", text)


def attached_option_values(word: str) -> Iterator[str]:
    """Yield possible values that are attached to the option in `word`. Example: `../file` in `-T../file`.

    A variable alone, as in `-n$N`, does not count, because its value is usually a number.
    """
    if word.startswith("-") and "/" in word[2:]:
        yield word[2:]
    if found := _ATTACHED_VALUE.match(word):
        yield word[found.end() :]


def command_words(text: str) -> Iterator[list[str]]:
    """Yield the words of each command or call in `text` that creates links."""
    for found in _LINK_COMMAND.finditer(text):
        unquoted = found[2] or found[3] or ""
        if not found["copies"] or _LINK_OPTION.search(unquoted):
            yield [word for word in WORD.findall(unquoted) if not word.startswith("-")]


def path_suffixes(path: str) -> Iterator[str]:
    """Yield the rest of `path` after each of its folders, because each folder may be a link."""
    parts = path.strip("/").split("/")
    yield from ("/".join(parts[start:]) for start in range(1, min(len(parts), MAX_PATH_PARTS)))


def _decode_escapes(found: re.Match[str]) -> str:
    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1] or escape[2], 16 if escape[1] else 8)) if escape[1] or escape[2] else escape[3]

    return f"'{_ESCAPE.sub(character, found[1])}'"


def _replace_substitution(found: re.Match[str]) -> str:
    return NUMBER if _DATE.fullmatch(found[0]) else UNKNOWN


def _replace_sequence(found: re.Match[str]) -> str:
    return NUMBER if found["number"] else "?" if found["letter"] else "*"


def _unquote_cd(found: re.Match[str]) -> str:
    word = found[0]
    bare = word.lstrip("'\"")
    return word if bare.isalpha() else re.sub(r"[\\'\"]", "", word)


MAX_WORDS: Final = 20_000
MAX_TEXT: Final = 400_000
MAX_BASES: Final = 128
MAX_NAMED_FOLDERS: Final = 6
MAX_LINK_TARGETS: Final = 20_000
MAX_PATHS: Final = 180_000
MAX_STRING_CHARS: Final = 16_000_000
MAX_TOTAL_CHARS: Final = 64_000_000
MAX_VARIANTS: Final = 64
MAX_DATA: Final = 8_000
MAX_BRACE_EXPANSIONS: Final = 256
"""Maximum number of brace expansions of a word. Words that look like data, such as JSON, have a lower maximum."""
MAX_WORD_CHARS: Final = 4_096
MAX_NESTING: Final = 3
QUOTES: Final = "\"'"
HARMLESS: Final = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"})

_URL: Final = re.compile(r"\b(?!file:)[A-Za-z][\w+.-]{0,30}://[^\s'\"`;|<>)]*")
_FILE_URL: Final = re.compile(r"\bfile://(?:localhost)?(/[^\s'\"`;|<>)]*)", re.IGNORECASE)
_VALUE_SEPARATOR: Final = re.compile(r"[=:@,]")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_ASSIGNMENT: Final = re.compile(r"(?:^|[\s;&|(])(\w+)(\+?)=(\"[^\"]*\"|'[^']*'|[^\s;&|]+)")
_LOOKS_LIKE_DATA: Final = re.compile(r"[\"']\s*[:,}\]]|[\s:]\{")
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_FOLDER_CHANGE: Final = re.compile(
    r"""(?:(?P<stays>(?:^|[\s;&|(`'"])(?:cd|pushd)(?=[\s;])|\bchdir\b)|\bcwd\s*[=:]|(?:^|\s)-C|--(?:chdir|directory)\b)
    [ \t=:]*(?P<code>\()?(?:-[\w@]*[ \t]+)*
    (?P<to>"[^"\n]*"|'[^'\n]*'|[^\s;&|<>)`'"(]*[(`]?)""",
    re.VERBOSE,
)
"""Changes of the working folder in a command or in code: `cd x`, `-C x`, `chdir(x)`, `cwd=x`.

Without the group `stays`, the change applies to one command.
"""
_REST_OF_COMMAND: Final = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^;&|\n\\"'])*""", re.DOTALL)
"""The rest of one command."""
_CD_HOME: Final = re.compile(r"(?:^|[;&|(]\s*|\n\s*)cd\s*(?:$|[;&|)\n])")
_PERCENT: Final = re.compile(r"%(?:\(\w*\))?[-+ #0-9.*]*[A-Za-z]")
_FIELD: Final = re.compile(r"\{[^{}]*\}")
_CWD_IN_CODE: Final = re.compile(r"(?:process|os|Path)\.(?:get)?cwd\(")
_CALL_END: Final = re.compile(r"\)\s*(?:[,;)}\]]|$)")
_HOME_IN_CODE: Final = re.compile(r"\bhome\(|expanduser|\bHOME\b")


class ShellContext(Struct, frozen=True):
    """The working folder, the possible home folders (`~`), and the environment variables of an agent's commands."""

    cwd: str
    homes: tuple[str, ...]
    env: Mapping[str, str] = {}


def mentioned_paths(values: Iterable[Any], shell: ShellContext) -> tuple[str, ...] | None:
    """Return the paths that the nested `values` contain. The paths are absolute and without duplicates.

    Return None if there are too many paths to check. Relative paths are resolved against the agent's folder and against
    the folders that a command changes to.
    """
    words: dict[str, None] = {}
    bases: dict[str, None] = {shell.cwd: None}
    variables = dict(shell.env)
    texts = [text.replace("\0", "") for value in values for text in _strings_in(value)]
    if sum(map(len, texts)) > MAX_TEXT:
        return None
    texts += [plain for text in texts if (plain := normalize_command(text)) != text]
    for text in texts:
        for name, appends, value in _ASSIGNMENT.findall(text):
            variables[name] = f"{variables.get(name, '') if appends else ''}{value.strip(QUOTES)}"
        if _HOME_IN_CODE.search(text) or _CD_HOME.search(text):
            bases |= dict.fromkeys(shell.homes)
        try:
            _add_texts(words, _split_words(text), MAX_WORDS)
        except (_TooComplexError, RecursionError):
            return None
    expanded: dict[str, None] = {}
    try:
        _add_texts(expanded, (each for word in words for each in _expand_word(word, variables, shell)), MAX_PATHS)
    except _TooComplexError:
        return None
    paths = list(expanded)
    if any(_FOLDER_CHANGE.search(text) for text in texts):
        temporary_bases: dict[str, None] = {}
        for text in texts:
            _collect_folders(text, bases, temporary_bases, variables, shell)
            if len(bases) + len(temporary_bases) > MAX_BASES:
                return None
        bases |= temporary_bases
        bases |= {
            os.path.normpath(os.path.join(shell.cwd, each)): None for each in variables.get("CDPATH", "").split(":")
        }
        # A command may also change to any other folder that the command names.
        others = (os.path.normpath(os.path.join(shell.cwd, each)) for each in paths if "/" in each)
        bases |= dict.fromkeys(islice(others, MAX_NAMED_FOLDERS))
    link_words = [
        [each for word in words for each in _expand_word(word, variables, shell)]
        for t in texts
        for words in command_words(t)
    ]
    if link_words:
        # A path may lead through a link that the command creates.
        if len(bases) * sum(len(names) ** 2 for names in link_words) > MAX_LINK_TARGETS:
            return None
        bases |= {path: None for names in link_words for path in _link_targets(names, tuple(bases))}
        paths = list(dict.fromkeys((*paths, *(suffix for each in paths for suffix in path_suffixes(each)))))
    if len(bases) * len(paths) > MAX_PATHS:
        return None
    absolute: dict[str, None] = {}
    for each in paths:
        for path in [each] if each[:1] == "/" else _join_each(bases, each):
            absolute[os.path.normpath(path)] = None
            if ".." in path:
                absolute[path] = None  # The parent of a link's target differs from the parent of the link.
    return tuple(path for path in absolute if path not in HARMLESS)


def _add_texts(target: dict[str, None], texts: Iterable[str], limit: int) -> None:
    """Add `texts` to `target`. Raise _TooComplexError if the texts exceed the limits."""
    remaining = MAX_TOTAL_CHARS
    for text in texts:
        target[text] = None
        remaining -= len(text)
        if remaining < 0 or len(target) > limit:
            raise _TooComplexError


def _link_targets(names: list[str], bases: Iterable[str]) -> dict[str, None]:
    """Return the possible targets of links that a command creates from `names` in one of `bases`."""
    folders = {os.path.join(base, os.path.dirname(each)): None for base in bases for each in ("", *names)}
    return {os.path.normpath(path): None for each in names for path in _join_each(folders, each)}


def _collect_folders(
    text: str,
    bases: dict[str, None],
    temporary_bases: dict[str, None],
    variables: Mapping[str, str],
    shell: ShellContext,
) -> None:
    """Collect the possible working folders after the commands in `text`.

    A folder is added to `temporary_bases` if the change of folder applies to one command only, otherwise to `bases`.

    Stop when there are too many folders.
    """
    command_folders: dict[str, None] = {}  # Folders of one command and of its child commands.
    end = 0
    for found in _FOLDER_CHANGE.finditer(text):
        if found.start() >= end:
            command_folders = {}
        # Because of subshells and failed commands, any earlier folder may be the current folder.
        starts = bases | command_folders
        targets = {
            os.path.normpath(path): None
            for target in _destinations(found, variables, shell)
            for path in _join_each(starts, target)
        }
        if found["stays"] is not None:
            bases |= targets
        else:
            if found.start() >= end:
                rest_of_command = _REST_OF_COMMAND.match(text, found.end())
                end = rest_of_command.end() if rest_of_command is not None else len(text)
            command_folders |= targets
            temporary_bases |= targets
        if len(bases) + len(temporary_bases) > MAX_BASES:
            return


def _destinations(found: re.Match[str], variables: Mapping[str, str], shell: ShellContext) -> list[str]:
    """Return the folders that the match `found` may refer to.

    If the target is unknown, return the parent folders and the home folders.
    """
    target = found["to"]
    plain = target.strip("\"'")
    variants = list(_expand_word(plain, variables, shell)) if plain else []
    if _CWD_IN_CODE.fullmatch(plain) and _CALL_END.match(found.string, found.end()):
        return [shell.cwd]
    is_unknown = "(" in plain or "`" in plain or plain.startswith("-") or "*" in _expand_variables(plain, variables)
    if is_unknown or (found["code"] and plain == target):
        parents = (shell.cwd, *map(str, PurePosixPath(shell.cwd).parents))
        variants += [*shell.homes, *parents]
    return variants


def _join_each(bases: Iterable[str], name: str) -> list[str]:
    return [os.path.join(base, name) for base in bases]


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings_in(name)
            yield from _strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings_in(item)


def _split_words(text: str, depth: int = 0) -> Iterator[str]:
    """Yield the possible paths in `text`: the whole text, and each word according to shell or Python syntax."""
    for path in _FILE_URL.findall(text):
        yield unquote(path)
    text = strip_separator_options(_URL.sub(" ", text))
    if "\n" not in text and len(text) < MAX_WORD_CHARS:
        yield text
    if not re.search(r"\s|[^\w./-]", text):
        return
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        lexed = list(lexer)
    except ValueError:  # The text is not a shell command, because a quote is not closed.
        lexed = []
    for word in (*WORD.findall(text), *lexed, *_python_strings(text)):
        yield word
        yield from (
            word[start:]
            for found in _VALUE_SEPARATOR.finditer(word)
            if len(word) - (start := found.end()) <= MAX_WORD_CHARS
        )
        yield from attached_option_values(word)
        if (
            depth < MAX_NESTING
            and word != text
            and re.search(r"\s" if len(word) > MAX_WORD_CHARS else r"[\s'\"]|\(.", word)
        ):
            yield from _split_words(word, depth + 1)


def _expand_word(word: str, variables: Mapping[str, str], shell: ShellContext) -> Iterator[str]:
    """Yield the expansions of `word`: variables, braces and `~`."""
    word = word.strip()
    if not word or len(word) > MAX_WORD_CHARS:
        return
    for plain in _expand_braces(word):
        expanded = _expand_variables(plain, variables)
        if expanded.startswith("~"):
            name, slash, rest = expanded.partition("/")
            if name in ("~+", "~-"):
                yield f"{shell.cwd}{slash}{rest}"
            if name in ("~", "~-"):
                yield from (f"{home}{slash}{rest}" for home in shell.homes)
            elif name != "~+":
                yield os.path.expanduser(expanded)
        elif plain.startswith("$") and expanded.startswith("*"):  # The variable is unknown.
            yield from (f"{start}{expanded[1:]}" for start in (*shell.homes, shell.cwd))
        elif re.match(r"\$\{?HOME\b", plain):
            yield expanded
            rest = _VARIABLE.sub("", plain, count=1)
            yield from (f"{home}{_expand_variables(rest, variables)}" for home in shell.homes)
        else:
            yield expanded
            if plain.startswith("-") and expanded != plain and "*" not in expanded:
                yield from attached_option_values(expanded)


def _expand_variables(text: str, variables: Mapping[str, str]) -> str:
    for _ in range(MAX_NESTING):  # The value of a variable may contain another variable.
        text = _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], "*"), text)[:MAX_WORD_CHARS]
    return text


def _expand_braces(word: str) -> list[str]:
    """Return the brace expansions of `word`. For words that look like data, return only some expansions.

    Raise _TooComplexError if there are too many.
    """
    found, is_data = [word], _LOOKS_LIKE_DATA.search(word) is not None
    limit = min(MAX_VARIANTS, max(2, MAX_DATA // len(word))) if is_data else MAX_BRACE_EXPANSIONS
    while len(found) < limit and (match := _BRACES.search(found[0])):
        first = found.pop(0)
        found += [first[: match.start()] + each + first[match.end() :] for each in match[1].split(",")]
    if not is_data and len(found) >= limit and any(_BRACES.search(each) for each in found):
        raise _TooComplexError
    return found


class _TooComplexError(Exception):
    """There are more paths than the limits allow."""


class _AssignedTexts(dict[str, str]):
    """The string values of variables in code. `remaining_chars` is the number of characters that may still be added."""

    remaining_chars = MAX_STRING_CHARS

    def spend(self, characters: int) -> None:
        """Reduce the limit by `characters`. Raise _TooComplexError if too few characters are left."""
        self.remaining_chars -= characters
        if self.remaining_chars < 0:
            raise _TooComplexError


def _python_strings(text: str) -> list[str]:
    """Return the string values in Python code, including concatenated strings. Return [] if `text` is not Python.

    Raise _TooComplexError for too many characters, and RecursionError for deeply nested code.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    texts = _AssignedTexts()
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (value := _string_value(node.value, texts)) is not None:
            texts.spend(len(value))
            texts |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = texts.get(node.target.id, "") + (_string_value(node.value, texts) or "*")
            texts.spend(len(value))
            texts[node.target.id] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (value := _string_value(node, texts)) and value not in found:
            texts.spend(len(value))
            found[value] = None
    return list(found)


def _string_value(node: ast.expr, names: _AssignedTexts) -> str | None:
    """Return the string or path value of `node`, with "*" for unknown parts. Return None if `node` is not a string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(data)):
            return data.decode("utf-8", "replace")
        case ast.Name(id=name):
            names.spend(len(names.get(name, "")))
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            front, back = _string_value(left, names), _string_value(right, names)
            return front + back if front is not None and back is not None else back or front
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _join_nodes(left, right, names=names)
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return _fill_template(_PERCENT, left, right.elts if isinstance(right, ast.Tuple) else [right], names)
        case ast.Call(func=ast.Attribute(attr="format", value=value), args=parts, keywords=keyword_nodes):
            return _fill_template(_FIELD, value, [*parts, *(each.value for each in keyword_nodes)], names)
        case ast.Attribute(attr="parent", value=value):
            return os.path.join(_string_value(value, names) or ".", "..")
        case ast.Call(func=ast.Attribute(attr="cwd" | "getcwd")):
            return "."
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, _, *_] as parts) if "Path" in name:
            return _join_nodes(*parts, names=names)
        case ast.JoinedStr(values=parts):
            return "".join(_string_value(part, names) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return _string_value(value, names) or "*"
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            return f"${name}"
        case ast.Call(func=ast.Attribute(attr="home")):
            return "~"
        case ast.Call(func=ast.Attribute(attr="join" | "joinpath") as function, args=parts):
            start = _string_value(function.value, names)
            # `str.join` puts the string between the parts. `Path.joinpath` starts with the path.
            if function.attr == "join" and start is not None and not isinstance(function.value, ast.Name):
                names.spend(len(start) * len(_elements(parts)))
                return start.join(_string_value(each, names) or "" for each in _elements(parts))
            return _join_nodes(*([function.value] if start else []), *parts, names=names)
        case ast.Call(args=[first, *_]):  # Path(x), str(x), open(x), expanduser(x), getenv(x)
            function_name, argument = (
                getattr(node.func, "attr", getattr(node.func, "id", "")),
                _string_value(first, names),
            )
            return f"${argument}" if function_name in ("getenv", "get") and argument else argument
    return None


def _fill_template(
    fields: re.Pattern[str], template: ast.expr, parts: Iterable[ast.expr], names: _AssignedTexts
) -> str | None:
    """Return the text of `template` with `parts` in place of its fields, in order.

    Unknown parts become "*". Return None if the text of `template` is unknown.
    """
    text, values = _string_value(template, names), (_string_value(part, names) or "*" for part in parts)
    return fields.sub(lambda _: next(values, "*"), text) if text is not None else None


def _elements(parts: list[ast.expr]) -> list[ast.expr]:
    return parts[0].elts if len(parts) == 1 and isinstance(parts[0], (ast.List, ast.Tuple)) else parts


def _join_nodes(*nodes: ast.expr, names: _AssignedTexts) -> str | None:
    parts = [value for node in nodes if (value := _string_value(node, names))]
    return os.path.join(*parts) if parts else None
