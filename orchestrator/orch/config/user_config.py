"""Adds items to lists in the user's config.toml. The rest of the file stays unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_worker.system.atomic_json import file_lock

from . import config, paths
from .output_file import write_output_file

__all__ = ["add_to_list"]

LIST: Final = re.compile(r"[^=]*=\s*\[")


def add_to_list(home: Path, section: str, name: str, item: str) -> bool:
    """Add `item` to the list `name` in `[section]` of the user's config.toml. Return whether the item was missing.

    If the file is invalid, or the list cannot be edited in its present form, raises ConfigError and changes nothing.
    """
    path = paths.private_dir(home) / "config.toml"
    with file_lock(path.with_name(f"{path.name}.lock")):
        try:
            text = path.read_bytes().decode() if path.exists() else ""
            tables = tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path} ({error}); repair it first") from error
        there = _list(tables, section, name)
        if item in there:
            return False
        changed = _with_item(text, section, name, item)
        if _list(_loaded(changed), section, name) != [item, *there]:
            raise ConfigError(f"cannot edit {section}.{name} in {path}: add {_quoted(item)} to this list")
        config.check(path, changed.encode(), home)
        write_output_file(str(path), [changed])
    return True


def _list(tables: dict[str, Any], section: str, name: str) -> list[str]:
    table = tables.get(section)
    found = table.get(name, []) if isinstance(table, dict) else []
    return found if isinstance(found, list) else []


def _loaded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _with_item(text: str, section: str, name: str, item: str) -> str:
    """Return the TOML `text` with `item` at the beginning of the list."""
    lines = text.splitlines(keepends=True)
    tables = _loaded(text)
    if name in tables.get(section, ()):
        place = config.line_of(text, f"{section}.{name}") - 1
        if (start := LIST.match(lines[place])) is not None:
            comma = ", " if _list(tables, section, name) else ""
            lines[place] = f"{start[0]}{_quoted(item)}{comma}{lines[place][start.end() :]}"
        return "".join(lines)
    line = f"{name} = [{_quoted(item)}]\n"
    for place, each in enumerate(lines):
        if re.fullmatch(rf"\s*\[\s*{re.escape(section)}\s*\]\s*(?:#.*)?", each.rstrip("\r\n")):
            lines[place] = each if each.endswith("\n") else f"{each}\n"
            return "".join((*lines[: place + 1], line, *lines[place + 1 :]))
    before = f"{text.rstrip()}\n\n" if text.strip() else ""
    return f"{before}[{section}]\n{line}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
