"""Which tools there are, and the named sets in which they are granted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Final

from msgspec import Struct

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.resources.skills import READ_SKILL

from ..api.base import Tool, ToolContext, root_tool
from .guard import Guard
from .toolbox import Toolbox

__all__ = [
    "BUILTIN",
    "CATEGORIES",
    "DEFAULT_PRESET",
    "DESK",
    "NOTES",
    "PRESETS",
    "RECALL",
    "BuiltinTool",
    "granted_tools",
    "load",
    "make_toolbox",
]


class BuiltinTool(Struct, frozen=True):
    """Where a built-in tool is defined. Its module is imported when a worker is to run it."""

    module: str
    category: str


_LOOK: Final = ("list_files", "grep_files", "read_file")
_CHANGE: Final = ("write_file", "replace_in_file")
_SHELL: Final = ("bash", "bg_status", "bg_kill")
_GIT: Final = ("git_status", "git_diff", "git_log")
_WEB: Final = ("web_search", "fetch_url")
_PYTHON: Final = ("run_python", "run_python_script", "py_help", "installed_packages")
_DATA: Final = ("describe_data", "describe_variables")
_MEMORY: Final = ("read_handle",)
NOTES: Final = ("remember", "recall")
DESK: Final = ("pin_object",)
_PLAN: Final = ("exit_plan_mode",)
_TASKS: Final = ("task_create", "task_update")
_CHAT: Final = ("chat", "list_models")
RECALL: Final = ("search_archive", "read_archive", "map_subagents")
_AGENTS: Final = (
    "spawn_subagent",
    "query_subagent",
    "collect_subagent",
    "wait_subagents",
    "list_subagents",
    "kill_subagent",
)

BUILTIN: Final[dict[str, BuiltinTool]] = {
    **dict.fromkeys(_LOOK, BuiltinTool("orch_worker.tools.files.read", "file")),
    **dict.fromkeys(_CHANGE, BuiltinTool("orch_worker.tools.files.edit", "file")),
    **dict.fromkeys(_SHELL, BuiltinTool("orch_worker.tools.shell.shell", "code")),
    **dict.fromkeys(_GIT, BuiltinTool("orch_worker.tools.shell.git", "git")),
    **dict.fromkeys(_WEB, BuiltinTool("orch_worker.tools.web.web", "web")),
    **dict.fromkeys(_PYTHON, BuiltinTool("orch_worker.tools.python.python", "python")),
    **dict.fromkeys(_DATA, BuiltinTool("orch_worker.tools.python.data", "data")),
    **dict.fromkeys(_MEMORY, BuiltinTool("orch_worker.tools.values.handles", "memory")),
    **dict.fromkeys(NOTES, BuiltinTool("orch_worker.memory.memory_tools", "notes")),
    READ_SKILL: BuiltinTool("orch_worker.skills.read_skill", "skills"),
    **dict.fromkeys(DESK, BuiltinTool("orch_worker.workspace.workspace_tools", "workspace")),
    **dict.fromkeys(_PLAN, BuiltinTool("orch_worker.tools.agents.plan", "plan")),
    **dict.fromkeys(_TASKS, BuiltinTool("orch_worker.tools.agents.plan", "tasks")),
    **dict.fromkeys(_CHAT, BuiltinTool("orch_worker.tools.agents.chat", "chat")),
    **dict.fromkeys(RECALL, BuiltinTool("orch_worker.context.recall_tools", "archive")),
    **dict.fromkeys(_AGENTS, BuiltinTool("orch_worker.tools.agents.subagents", "agents")),
}

_INVESTIGATE: Final = (*_LOOK, *_GIT, "py_help", *_WEB, *_MEMORY)
PRESETS: Final[dict[str, tuple[str, ...]]] = {
    "holder": (),
    "investigate": _INVESTIGATE,
    "minimal": _LOOK,
    "work": (*_INVESTIGATE, *_CHANGE, *_SHELL, "run_python", "run_python_script", "installed_packages"),
}
DEFAULT_PRESET: Final = "investigate"

_CORE: Final = ("file", "code", "git", "memory")
CATEGORIES: Final[dict[str, tuple[str, ...]]] = {
    **{
        category: tuple(name for name, row in BUILTIN.items() if row.category == category)
        for category in dict.fromkeys(row.category for row in BUILTIN.values())
    },
    "core": tuple(name for name, row in BUILTIN.items() if row.category in _CORE),
    "all": tuple(BUILTIN),
}
"""Names that stand for several tools wherever tools are named."""


def granted_tools(preset: str | None = None, tools: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of the tools that `tools`, or else `preset`, grants; neither means the default preset.

    The name of a category stands for its tools. No tools at all is a choice like any other. Raises ConfigError for an
    unknown preset and ToolNotGrantedError for an unknown tool; both say what there is.
    """
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"Unknown preset {preset!r}. Use: {', '.join(PRESETS)}{_similar(preset, PRESETS)}")
    if tools is None:
        return PRESETS[preset or DEFAULT_PRESET]
    if isinstance(tools, str):
        raise ConfigError(f"tools is a list of names, not the text {tools!r}")
    names: dict[str, None] = {}
    for name in tools:
        if name in CATEGORIES:
            names |= dict.fromkeys(CATEGORIES[name])
        elif name in BUILTIN:
            names[name] = None
        else:
            known = f"{', '.join(BUILTIN)}; or all of a category: {', '.join(CATEGORIES)}"
            similar = _similar(str(name), (*BUILTIN, *CATEGORIES))
            raise ToolNotGrantedError(f"Unknown tool {name!r}. Known: {known}{similar}")
    return tuple(names)


def load(names: Iterable[str]) -> tuple[Tool, ...]:
    """Return the built-in tools called `names`, imported."""
    return tuple(map(_imported, granted_tools(tools=names)))


@cache
def _imported(name: str) -> Tool:
    found: Tool = getattr(import_module(BUILTIN[name].module), name)
    return found


def make_toolbox(
    tools: Iterable[str],
    root_tools: Iterable[ToolSpec],
    context: ToolContext,
    guard: Guard | None = None,
    more: Iterable[Tool] = (),
) -> Toolbox:
    """Return the toolbox of an agent: exactly the built-in `tools`, the `root_tools`, and `more`, it was granted."""
    own = load(tools)
    # An agent without skills or archives has none to hand over: it is not offered the parameter.
    for name in (*(["skills"] if context.skills is None else []), *([] if context.archives else ["archives"])):
        own = tuple(each.without(name) if each.name == "spawn_subagent" else each for each in own)
    return Toolbox((*own, *map(root_tool, root_tools), *more), context, guard)


def _similar(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
