"""Finds and trusts agent types. An agent type is a preset in a Markdown file, with tools, a model and a prompt.

The user's agent types are in `$ORCH_HOME/agents`. A project's agent types are in `.orch/agents` and `.claude/agents`.
The files of a project may come from other people. Therefore an agent type of a project is off until its content is
trusted, and again after each change. A trusted agent type of a project can only restrict an agent's tools.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.core.text import TextEncodingError, decode_text, scrub
from orch_protocol.core.worktrees import Isolation
from orch_worker.skills.front_matter import (
    FrontMatterError,
    FrontMatterProblem,
    FrontMatterValue,
    parse_front_matter,
    split_front_matter,
    tool_names,
)
from orch_worker.skills.skill_tools import implied_tools, tools_named
from orch_worker.system.files import bytes_of
from orch_worker.tools.dispatch.presets import granted_tools

from ..config.trust import accept, revoke, trust_file
from .extensions import extension_specs
from .extensions import find as find_extensions

__all__ = ["FOLDERS", "AgentType", "AgentTypes", "find", "find_types", "trust", "untrust"]

FOLDERS: Final = (".orch/agents", ".claude/agents")
"""The folders of a project, in the order in which names are looked up."""
FIELDS: Final = ("name", "description", "tools", "disallowedTools", "model", "isolation")
IGNORED: Final = frozenset(
    {"background", "color", "effort", "hooks", "initialPrompt", "maxTurns", "mcpServers", "memory", "permissionMode"}
    | {"skills"}
)
"""Fields of other programs that have no effect here."""
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
PLAIN: Final = re.compile(r"([A-Za-z][\w-]*):[ \t]+([^\s\"'\[\]{}|>&*!%@#].*)")
"""A field on one line with a plain text value. The text may contain a colon, which YAML does not permit."""

Where: TypeAlias = Literal["user", "project"]


class AgentType(Struct, frozen=True):
    """An agent type.

    `why_off` is the reason why the type cannot be used, or "" if the type is on. A `broken` agent type is invalid.
    `tools` contains the tools in its file except those in `excluded`. `tools` is None if the file lists no tools.
    `ignored` contains the fields of the file that have no effect. `implied` contains the tools that only the tool names
    of other programs add, such as describe_data for Read.
    """

    name: str
    where: Where
    path: str
    description: str = ""
    tools: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    model: str = ""
    isolation: Isolation | None = None
    prompt: str = ""
    hash: str = ""
    why_off: str = ""
    broken: bool = False
    ignored: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()

    @property
    def grants_tools(self) -> bool:
        """Whether the agent type can give an agent tools that the caller's preset does not contain."""
        return self.where == "user" and self.tools is not None

    def describe_missing_tools(self, default_tools: Collection[str]) -> str:
        """Return a note about tools of the type that `default_tools` lacks, or "" if it lacks none.

        Implied tools are not reported.
        """
        expected = () if self.grants_tools else self.tools or ()
        missing = [tool for tool in expected if tool not in default_tools and tool not in self.implied]
        remedy = "pass a preset or tools to grant more than the default"
        return f"agent type {self.name!r} of the project does not get {', '.join(missing)}: {remedy}" if missing else ""


class AgentTypes(Struct, frozen=True):
    """The agent types for a folder, and the names of the tools of its extensions."""

    found: Sequence[AgentType] = ()
    extension_tools: tuple[str, ...] = ()

    def named(self, name: str) -> AgentType:
        """Return the type `name`. Raises ConfigError if there is no such type, or if it is off."""
        matching = [each for each in self.found if each.name == name]
        for each in matching:
            if not each.why_off:
                return each
        if matching:
            raise ConfigError(f"agent type {name!r} is off: {matching[0].path}: {matching[0].why_off}")
        names = ", ".join(each.name for each in self.found if not each.why_off) or "none"
        raise ConfigError(f"no agent type named {name!r}; available: {names}")


def find_types(folder: Path, home: Path, config: Config, registered: Sequence[str] = ()) -> AgentTypes:
    """Return the agent types for agents in `folder`. The types may name tools of extensions and `registered` tools.

    Raises ConfigError.
    """
    extensions = extension_specs(find_extensions(folder, home, config.extensions.load), home)
    tools = (*registered, *(tool for extension in extensions for tool in extension.tools))
    return AgentTypes(find(folder, home, tools), tools)


def find(folder: Path, home: Path, extension_tools: Collection[str] = ()) -> list[AgentType]:
    """Return the agent types for agents in `folder`. If several usable types have the same name, only the first is on.

    `extension_tools` contains the tools that a type may name in addition to built-in tools. Raises ConfigError if the
    list of trusted files cannot be read.
    """
    files = list(_files(folder, home))
    trusted = trust_file(home, "agent type").read()
    used_names: dict[str, str] = {}
    result = []
    for where, path in files:
        each = _read_type(where, path, extension_tools)
        if where == "project" and not each.broken and not trusted.accepts(path, each.hash):
            why = f"it {trusted.why_not(path)}: read it, then orch agent-types trust {each.name}"
            each = replace(each, why_off=why)
        if not each.why_off and each.name in used_names:
            each = replace(each, why_off=f"another agent type in {used_names[each.name]} has the same name")
        elif not each.why_off:
            used_names[each.name] = each.path
        result.append(each)
    return result


def trust(found: AgentType, home: Path) -> None:
    """Trust a project's agent type with the content that was `found`. Raises ConfigError if it is invalid."""
    if found.broken:
        raise ConfigError(f"not trusted: {found.path}: {found.why_off}")
    accept(home, "agent type", Path(found.path), found.hash)


def untrust(found: AgentType, home: Path) -> bool:
    """Stop trusting a project's agent type. Returns False if the type was not trusted."""
    return revoke(home, "agent type", Path(found.path))


def _files(folder: Path, home: Path) -> Iterator[tuple[Where, Path]]:
    folders: list[tuple[Where, Path]] = [("user", home / "agents"), *(("project", folder / each) for each in FOLDERS)]
    for where, parent in folders:
        try:
            names = sorted(os.listdir(parent))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(f"{parent} cannot be read: {error.strerror}") from error
        yield from ((where, parent / name) for name in names if name.endswith(".md") and not name.startswith("."))


def _read_type(where: Where, path: Path, extension_tools: Collection[str]) -> AgentType:
    try:
        data = bytes_of(path)
        return _parse_type(
            AgentType(path.stem, where, str(path), hash=hashlib.sha256(data).hexdigest()), data, extension_tools
        )
    except OSError as error:
        why = f"it cannot be read: {error.strerror or error}"
    except FrontMatterError as error:
        why = str(error.problem)
    except (TextEncodingError, ConfigError, ToolNotGrantedError) as error:
        why = str(error)
    return AgentType(path.stem, where, str(path), why_off=why, broken=True)


def _parse_type(found: AgentType, data: bytes, extension_tools: Collection[str]) -> AgentType:
    """Return `found` with the parsed content of its file. Raises ConfigError, ToolNotGrantedError, FrontMatterError."""
    fields, body = _fields(scrub(decode_text(data)))
    problems = [
        FrontMatterProblem(value.line, name, f"unknown field; known fields: {', '.join(FIELDS)}")
        for name, value in fields.items()
        if name not in FIELDS and name not in IGNORED
    ]
    texts = {}
    for name in ("name", "description", "model", "isolation"):
        value = fields.get(name, FrontMatterValue(1, ""))
        if not isinstance(value.is_, str):
            problems.append(FrontMatterProblem(value.line, name, "it must be a text"))
        else:
            texts[name] = " ".join(value.is_.replace("\\n", " ").split())
    if not texts.get("description", "-"):
        problems.append(FrontMatterProblem(1, "description", "it is missing: describe when to use this agent"))
    type_name = texts.get("name") or found.name
    if not NAME.fullmatch(type_name):
        problems.append(FrontMatterProblem(1, "name", f"invalid name {type_name!r}: use letters, digits, '-' and '_'"))
    if texts.get("isolation") not in ("", None, *get_args(Isolation)):
        problems.append(FrontMatterProblem(1, "isolation", f"unknown isolation {texts['isolation']!r}: use worktree"))
    if not body:
        problems.append(FrontMatterProblem(0, "", "the prompt is missing: write it below the front matter"))
    tool_fields = {}
    implied: frozenset[str] = frozenset()
    for name in ("tools", "disallowedTools"):
        tools, invalid = tool_names(name, fields.get(name))
        problems += invalid
        if name == "tools":
            implied = implied_tools(tools or ())
        tool_fields[name] = None if tools is None else _tools(name, tools, extension_tools, problems)
    if problems:
        raise ConfigError("; ".join(map(str, problems)))
    excluded = tool_fields["disallowedTools"] or ()
    tools = tool_fields["tools"]
    return replace(
        found,
        name=type_name,
        description=texts["description"],
        model=texts["model"],
        isolation=texts["isolation"] or None,
        tools=None if tools is None else tuple(name for name in tools if name not in excluded),
        excluded=excluded,
        prompt=body,
        ignored=tuple(sorted(IGNORED & fields.keys())),
        implied=tuple(sorted(implied)),
    )


def _tools(
    field: str, names: Collection[str], extension_tools: Collection[str], problems: list[FrontMatterProblem]
) -> tuple[str, ...]:
    """Return the names of the tools selected by `names`. For each invalid name, add a problem to `problems`."""
    if restricted := [name for name in names if "(" in name]:
        message = f"{restricted[0]!r}: a type can only grant whole tools; limit calls with policy.permissions"
        problems.append(FrontMatterProblem(0, field, message))
    selected: dict[str, None] = {}
    for name in names:
        for each in sorted(tools_named([name])):
            try:
                selected |= dict.fromkeys((each,) if each in extension_tools else granted_tools(None, [each]))
            except ToolNotGrantedError as error:
                problems.append(FrontMatterProblem(0, field, str(error)))
    return tuple(selected)


def _fields(text: str) -> tuple[Mapping[str, FrontMatterValue], str]:
    """Return the fields and the body of `text`. Raises FrontMatterError.

    Other programs accept a colon in a description, which is invalid YAML. Therefore this function also accepts plain
    lines.
    """
    try:
        return parse_front_matter(text)
    except FrontMatterError:
        head, body = split_front_matter(text)
        found: dict[str, Any] = {}
        for number, line in enumerate(head.split("\n"), 2):
            match = PLAIN.fullmatch(line.rstrip())
            if match is None or match[1] in found:
                raise
            found[match[1]] = FrontMatterValue(number, match[2])
        return found, body
