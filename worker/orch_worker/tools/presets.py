"""Which tools there are, and the named sets in which they are granted."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from msgspec import Struct

from orch_protocol.errors import ConfigError, ToolNotGrantedError
from orch_protocol.spec import ToolSpec

from .base import Tool, Toolbox, ToolContext, root_tool

__all__ = ["BUILTIN", "DEFAULT_PRESET", "PRESETS", "Builtin", "load", "make_toolbox", "resolve"]


class Builtin(Struct, frozen=True):
    """Where a built-in tool is defined. Its module is imported when a worker is to run it."""

    module: str
    category: str


_LOOK: Final = ("list_files", "grep_files", "read_file")
_AGENTS: Final = (
    "spawn_subagent",
    "query_subagent",
    "collect_subagent",
    "wait_subagents",
    "list_subagents",
    "kill_subagent",
)

BUILTIN: Final[dict[str, Builtin]] = {
    **dict.fromkeys(_LOOK, Builtin("orch_worker.tools.files", "file")),
    **dict.fromkeys(_AGENTS, Builtin("orch_worker.tools.subagents", "agents")),
}
PRESETS: Final[dict[str, tuple[str, ...]]] = {"holder": (), "investigate": _LOOK, "minimal": _LOOK}
DEFAULT_PRESET: Final = "investigate"


def resolve(preset: str | None = None, tools: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of the tools that `tools`, or else `preset`, grants; neither means the default preset.

    No tools at all is a choice like any other. Raises ConfigError for an unknown preset and ToolNotGrantedError for
    an unknown tool; both say what there is.
    """
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"Unknown preset {preset!r}. Use: {', '.join(PRESETS)}{_similar(preset, PRESETS)}")
    if tools is None:
        return PRESETS[preset or DEFAULT_PRESET]
    if isinstance(tools, str):
        raise ConfigError(f"tools is a list of names, not the text {tools!r}")
    names = tuple(dict.fromkeys(tools))
    for name in names:
        if name not in BUILTIN:
            known = ", ".join(BUILTIN)
            raise ToolNotGrantedError(f"Unknown tool {name!r}. Known: {known}{_similar(str(name), BUILTIN)}")
    return names


def load(names: Iterable[str]) -> tuple[Tool, ...]:
    """Return the built-in tools called `names`, imported."""
    return tuple(getattr(import_module(BUILTIN[name].module), name) for name in resolve(tools=names))


def make_toolbox(tools: Iterable[str], root_tools: Iterable[ToolSpec], context: ToolContext) -> Toolbox:
    """Return the toolbox of an agent: exactly the built-in `tools` and the `root_tools` it was granted."""
    return Toolbox((*load(tools), *map(root_tool, root_tools)), context)


def _similar(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
