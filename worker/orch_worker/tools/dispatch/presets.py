"""The presets and categories that grant built-in tools, and the import of these tools."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Final

from msgspec.structs import replace

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS

from ..api.base import Tool, ToolContext, root_tool
from ..api.executor import ToolSource
from ..shell.git_repository import repository_root
from .guard import Guard
from .toolbox import Toolbox

__all__ = [
    "CATEGORIES",
    "DEFAULT_PRESET",
    "NOTES",
    "PRESETS",
    "RECALL",
    "WORKSPACE_TOOLS",
    "granted_tools",
    "load",
    "make_toolbox",
    "preset_tools",
]


_LOOK: Final = ("list_files", "grep_files", "read_file")
_INVESTIGATE: Final = (*_LOOK, "git_status", "git_diff", "git_log", "py_help", "web_search", "fetch_url", "read_handle")
PRESETS: Final[dict[str, tuple[str, ...]]] = {
    "holder": (),
    "investigate": _INVESTIGATE,
    "minimal": _LOOK,
    "work": (
        *_INVESTIGATE,
        *("write_file", "replace_in_file", "bash", "bg_status", "bg_kill"),
        *("run_python", "run_python_script", "installed_packages"),
    ),
}
DEFAULT_PRESET: Final = "investigate"

SPAWN_PRESETS: Final = ("minimal", "investigate", "work")
"""The choices of the tool spawn_subagent."""
DELEGATING: Final = frozenset({"investigate", "work"})
"""Presets with which an agent that talks with a person can also use subagents."""

_CORE: Final = ("file", "code", "git", "memory")
CATEGORIES: Final[dict[str, tuple[str, ...]]] = {
    **{
        category: tuple(name for name, facts in BUILTIN_TOOLS.items() if facts.category == category)
        for category in dict.fromkeys(facts.category for facts in BUILTIN_TOOLS.values())
    },
    "core": tuple(name for name, facts in BUILTIN_TOOLS.items() if facts.category in _CORE),
    "all": tuple(BUILTIN_TOOLS),
}
"""Names that stand for several tools. Values are the names of these tools."""
NOTES: Final = CATEGORIES["notes"]
RECALL: Final = CATEGORIES["archive"]
WORKSPACE_TOOLS: Final = CATEGORIES["workspace"]


def preset_tools(preset: str, *, top_level: bool) -> tuple[str, ...]:
    """Return the tools of a preset. A `top_level` agent, which talks with a person, can also use subagents.

    The preset `minimal` has no tools for subagents. Raises ConfigError for an unknown preset.
    """
    tools = granted_tools(preset)
    return (*tools, *CATEGORIES["agents"]) if top_level and preset in DELEGATING else tools


def granted_tools(preset: str | None = None, tools: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of the tools in `tools`.

    If `tools` is None, return the tools of `preset` or of the default preset.

    A category name stands for its tools. `tools` may be empty. Raise ConfigError for an unknown preset, and
    ToolNotGrantedError for an unknown tool. The messages list the valid names.
    """
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"Unknown preset {preset!r}. Use: {', '.join(PRESETS)}{_suggestion(preset, PRESETS)}")
    if tools is None:
        return PRESETS[preset or DEFAULT_PRESET]
    if isinstance(tools, str):
        raise ConfigError(f"`tools` must be a list of names, not the string {tools!r}")
    names: dict[str, None] = {}
    for name in tools:
        if name in CATEGORIES:
            names |= dict.fromkeys(CATEGORIES[name])
        elif name in BUILTIN_TOOLS:
            names[name] = None
        else:
            known = f"{', '.join(BUILTIN_TOOLS)}; or all of a category: {', '.join(CATEGORIES)}"
            if name in PRESETS:
                raise ToolNotGrantedError(f"{name!r} is a preset, not a tool: pass it as the preset. Tools: {known}")
            similar = _suggestion(str(name), (*BUILTIN_TOOLS, *CATEGORIES))
            raise ToolNotGrantedError(f"Unknown tool {name!r}. Known: {known}{similar}")
    return tuple(names)


def load(names: Iterable[str]) -> tuple[Tool, ...]:
    """Import and return the built-in tools called `names`."""
    return tuple(map(_import_tool, granted_tools(tools=names)))


@cache
def _import_tool(name: str) -> Tool:
    facts = BUILTIN_TOOLS[name]
    found: Tool = getattr(import_module(facts.module), name)
    return replace(found, category=facts.category, is_builtin=True)


def make_toolbox(
    tools: Iterable[str],
    root_tools: Iterable[ToolSpec],
    context: ToolContext,
    guard: Guard | None = None,
    extra_tools: Iterable[Tool] = (),
    executors: Iterable[ToolSource] = (),
) -> Toolbox:
    """Return the toolbox of an agent with exactly the built-in tools `tools`, the root tools `root_tools`,
    `extra_tools`, and the tools of `executors`.
    """
    tools = tuple(tools)
    builtin_tools = load(tools)
    builtin_tools = tuple(
        _limit_parameters(each, context, frozenset(tools)) if each.name == "spawn_subagent" else each
        for each in builtin_tools
    )
    return Toolbox((*builtin_tools, *map(root_tool, root_tools), *extra_tools), context, guard, executors)


def _limit_parameters(spawn: Tool, context: ToolContext, tools: frozenset[str]) -> Tool:
    """Return the tool `spawn` without the parameters that the agent with the tools `tools` cannot use.

    The choices of agent types are the types that the agent may spawn. The description of `model` lists the models that
    the agent may choose, and the description of `preset` those presets of which the agent has all tools.
    """
    grantable = [name for name in SPAWN_PRESETS if tools.issuperset(PRESETS[name])]
    is_usable = {
        "preset": bool(grantable),
        "skills": context.skills is not None,
        "archives": context.archives,
        "agent": bool(context.agent_types),
        "isolation": repository_root(os.fspath(context.cwd)) != "",
    }
    for name in (name for name, usable in is_usable.items() if not usable):
        spawn = spawn.without(name)
    if grantable and len(grantable) < len(SPAWN_PRESETS):
        spawn = spawn.with_note("preset", f"With your tools you can grant: {', '.join(grantable)}.")
    if context.subagent_models:
        spawn = spawn.with_note("model", f"Allowed models: {', '.join(context.subagent_models)}.")
    return spawn.choosing("agent", context.agent_types) if context.agent_types else spawn


def _suggestion(name: str, known: Iterable[str]) -> str:
    import difflib

    similar_names = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {similar_names[0]!r}?" if similar_names else ""
