"""Changes single settings in the user's config.toml. The rest of the file stays unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import UTF8_MARK, decode_text
from orch_worker.system.atomic_json import file_lock

from . import config, paths
from .output_file import write_output_file

__all__ = ["add_to_list", "set_text", "text_setting"]

LIST: Final = re.compile(r"[^=]*=\s*\[")
TEXT: Final = re.compile(r"""(?P<key>[^=]*=\s*)(?:"(?:[^"\\]|\\.)*"|'[^']*')(?=\s*(?:#.*)?$)""")


def add_to_list(home: Path, section: str, name: str, item: str) -> bool:
    """Add `item` to the list `name` in `[section]` of the user's config.toml. Return whether the item was missing.

    If the file is invalid, or the list cannot be edited in its present form, raises ConfigError and changes nothing.
    """
    path = paths.private_dir(home) / "config.toml"
    with file_lock(path.with_name(f"{path.name}.lock")):
        data, text, tables = _read(path)
        there = _list(tables, section, name)
        if item in there:
            return False
        changed = _with_item(text, section, name, item)
        if _list(_loaded(changed), section, name) != [item, *there]:
            raise ConfigError(f"cannot edit {section}.{name} in {path}: add {_quoted(item)} to this list")
        _write(path, data, changed, home)
    return True


def text_setting(home: Path, name: str) -> str | None:
    """Return the text that the user's config.toml sets for `name`, which is in no section. None: it sets none.

    Raises ConfigError for an invalid file.
    """
    found = _read(home / "config.toml")[2].get(name)
    return found if isinstance(found, str) else None


def set_text(home: Path, name: str, value: str) -> bool:
    """Set `name`, a text in no section, in the user's config.toml. Return whether this changed the file.

    If the file is invalid, or the setting cannot be edited in its present form, raises ConfigError and changes nothing.
    """
    path = paths.private_dir(home) / "config.toml"
    with file_lock(path.with_name(f"{path.name}.lock")):
        data, text, tables = _read(path)
        if tables.get(name) == value:
            return False
        changed = _with_text(text, name, value, replaces=name in tables)
        if _loaded(changed) != tables | {name: value}:
            raise ConfigError(f"cannot edit {name} in {path}: write {name} = {_quoted(value)} there")
        _write(path, data, changed, home)
    return True


def _read(path: Path) -> tuple[bytes, str, dict[str, Any]]:
    """Return the content of the file as bytes, as text and as tables. Raises ConfigError."""
    try:
        data = path.read_bytes() if path.exists() else b""
        text = decode_text(data, keep_line_ends=True)
        return data, text, tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; make it a readable file, or move it away") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}; correct the file, or move it away") from error


def _write(path: Path, data: bytes, changed: str, home: Path) -> None:
    config.check(path, changed.encode(), home)
    mark = UTF8_MARK.decode() if data.startswith(UTF8_MARK) else ""
    write_output_file(str(path), [mark, changed])


def _with_text(text: str, name: str, value: str, *, replaces: bool) -> str:
    """Return the TOML `text` with `name` set to `value`: in its line, or else before the first section."""
    lines = text.splitlines(keepends=True)
    if replaces:
        place = config.line_of(text, name) - 1
        if (found := TEXT.match(lines[place].rstrip("\r\n"))) is not None:
            lines[place] = f"{found['key']}{_quoted(value)}{lines[place][found.end() :]}"
        return "".join(lines)
    line = f"{name} = {_quoted(value)}\n"
    place = next((number for number, each in enumerate(lines) if each.lstrip().startswith("[")), len(lines))
    if place < len(lines):
        line += "\n"
    elif lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join((*lines[:place], line, *lines[place:]))


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
