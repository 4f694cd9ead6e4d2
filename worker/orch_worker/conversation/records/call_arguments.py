"""The names that tools of many programs give their arguments, and the command of a call."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["CONTENT_KEYS", "OLD_AND_NEW", "PATCH_KEYS", "PATH_KEYS", "command_in", "command_of", "paths_in"]

PATH_KEYS: Final = (
    *("path", "file_path", "filepath", "filePath", "file", "filename", "notebook_path", "target_file"),
    *("relative_path", "absolute_path", "paths", "files"),
)
COMMAND_KEYS: Final = ("command", "cmd", "script", "commands", "shell_command")
CODE_KEY: Final = "code"
"""The argument with a program for an interpreter."""
EDITOR_COMMANDS: Final = frozenset(("view", "create", "str_replace", "insert", "undo_edit"))
"""Values of the argument `command` that are not shell commands if there is a path."""
OLD_AND_NEW: Final = (
    ("old_string", "new_string"),
    ("oldText", "newText"),
    ("old_text", "new_text"),
    ("old_str", "new_str"),
    ("search", "replace"),
    ("old", "new"),
)
CONTENT_KEYS: Final = (
    *("content", "file_text", "new_source", "contents", "new_content", "new_str", "insert_text", "text"),
)
PATCH_KEYS: Final = ("patch", "diff", "input", "patch_text")


def command_in(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the text of the argument with a command or with code. Both are "" if there is none."""
    for key in COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            if value in EDITOR_COMMANDS and paths_in(arguments):
                return "", ""
            return key, value
        if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
            return key, value[-1] if len(value) > 2 and value[1] in ("-c", "-lc") else shlex.join(value)
    code = arguments.get(CODE_KEY)
    return (CODE_KEY, code) if isinstance(code, str) else ("", "")


def command_of(arguments: Mapping[str, Any]) -> str:
    """Return the command that a call with these arguments runs in a shell, or "" if it runs none."""
    key, command = command_in(arguments)
    return "" if key == CODE_KEY else command


def paths_in(arguments: Mapping[str, Any]) -> list[str]:
    """Return the paths in the arguments of a call."""
    found = []
    for key in PATH_KEYS:
        value = arguments.get(key)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            path = item.get("path") if isinstance(item, dict) else item
            if isinstance(path, str) and path.strip() and "\n" not in path:
                found.append(path.strip())
    return found
