"""Finds the description, the entry points and the test command in manifests and build files.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from orch_protocol.core.text import decode_text

__all__ = ["MANIFESTS", "TEST_FILES", "entry_points", "file_text", "find_test_command"]

MAX_ENTRIES: Final = 8
NAME: Final = re.compile(r"[\w@./-]{1,60}", re.ASCII)
STRING: Final = re.compile(r"""^(name|description)[ \t]*=[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')""", re.MULTILINE)
KEY: Final = re.compile(r"""^[ \t]*["']?([\w.-]{1,60})["']?[ \t]*=""", re.MULTILINE)
RULE: Final = re.compile(r"^([^\s#:=][^:=\n]*):(?!=)", re.MULTILINE)
"""Matches the targets of a Makefile rule, or a recipe of a justfile with its parameters."""
PYTEST: Final = re.compile(r"\bpytest\b")
BINARY: Final = re.compile(r"""^\[\[bin\]\][^\[]*?^name[ \t]*=[ \t]*["']([\w-]{1,60})["']""", re.DOTALL | re.MULTILINE)
MODULE: Final = re.compile(r"^module\s+(\S+)", re.MULTILINE)
NO_TESTS: Final = "no test specified"
"""A part of the test script written by `npm init`."""
LOCKS: Final = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun run", "bun.lockb": "bun run"}

TEST_FILES: Final = (
    *("Makefile", "makefile", "GNUmakefile", "justfile", "package.json", "pyproject.toml", "pytest.ini", "setup.cfg"),
    *("tox.ini", "Cargo.toml", "go.mod"),
)
"""Files that can define a test command, the most specific first."""


def file_text(data: bytes) -> str:
    """Return the text of a file without byte order mark, carriage returns and surrounding white space."""
    return decode_text(data, lossy=True).strip()


def entry_points(name: str, data: bytes) -> tuple[str, ...]:
    """Return the commands that a manifest installs, at most MAX_ENTRIES.

    `name` is the file name of the manifest, and `data` its content.
    """
    found: list[str] = []
    if name == "pyproject.toml":
        text = file_text(data)
        for table in ("project.scripts", "project.gui-scripts", "tool.poetry.scripts"):
            found += KEY.findall(_section(text, table))
    elif name == "package.json":
        manifest = _json(data)
        commands = manifest.get("bin")
        if isinstance(commands, dict):
            found += commands
        elif isinstance(commands, str):
            found.append(str(manifest.get("name", "")).rpartition("/")[2] or commands)
        elif isinstance(main := manifest.get("main"), str):
            found.append(main)
    elif name == "Cargo.toml":
        found += BINARY.findall(file_text(data))
    return tuple(each for each in dict.fromkeys(found) if NAME.fullmatch(each))[:MAX_ENTRIES]


def find_test_command(name: str, data: bytes, files: Collection[str]) -> str:
    """Return the test command that a file defines, or "" if the file defines no test command.

    `name` is the name of the file, and `data` its content. `files` are the names of all files in the same folder.
    """
    if name.lower() in ("makefile", "gnumakefile", "justfile"):
        rules = (rule.split() for rule in RULE.findall(file_text(data)))
        if name == "justfile":
            return "just test" if any(rule[0].lstrip("@") == "test" for rule in rules) else ""
        return "make test" if any("test" in rule for rule in rules) else ""
    if name == "package.json":
        scripts = _json(data).get("scripts")
        script = scripts.get("test") if isinstance(scripts, dict) else None
        tool = next((tool for lock, tool in LOCKS.items() if lock in files), "npm")
        return f"{tool} test" if isinstance(script, str) and script and NO_TESTS not in script else ""
    if name == "Cargo.toml":
        return "cargo test" if data else ""
    if name == "go.mod":
        return "go test ./..." if MODULE.search(file_text(data)) else ""
    return "python -m pytest" if name == "pytest.ini" or PYTEST.search(file_text(data)) else ""


def _section(text: str, table: str) -> str:
    """Return the lines of a TOML table.

    A text search is sufficient for names and texts. A parser would take longer than the whole scan.
    """
    found = re.search(rf"^\[{re.escape(table)}\][ \t]*(?:#[^\n]*)?$(.*?)(?=^\[|\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def _described(row: dict[str, Any]) -> str:
    return ": ".join(value for name in ("name", "description") if isinstance(value := row.get(name), str) and value)


def _toml(table: str) -> Callable[[bytes], str]:
    def entry(data: bytes) -> str:
        return _described({line[1]: _string(line[2]) for line in STRING.finditer(_section(file_text(data), table))})

    return entry


def _string(literal: str) -> str:
    if literal.startswith("'"):
        return literal[1:-1]
    try:
        return str(msgspec.json.decode(literal))
    except msgspec.MsgspecError:
        return literal[1:-1]


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(file_text(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _module(data: bytes) -> str:
    found = MODULE.search(file_text(data))
    return found[1] if found else ""


MANIFESTS: Final[dict[str, Callable[[bytes], str]]] = {
    "pyproject.toml": _toml("project"),
    "package.json": lambda data: _described(_json(data)),
    "Cargo.toml": _toml("package"),
    "go.mod": _module,
}
"""A function for each manifest. The function returns the name and description of the project."""
