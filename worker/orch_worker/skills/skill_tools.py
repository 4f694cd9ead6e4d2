"""Maps the tool names in skills and agent types to orch's tools. Tool names of other programs are recognized."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from orch_protocol.resources.skills import READ_SKILL

__all__ = ["ALWAYS_ALLOWED", "implied_tools", "tools_named"]

ALWAYS_ALLOWED: Final = frozenset({READ_SKILL, "read_handle", "exit_plan_mode", "task_create", "task_update"})
"""Tools that are allowed even if a skill does not name them."""
SUBAGENTS: Final = ("spawn_subagent", "query_subagent", "collect_subagent", "wait_subagents", "list_subagents")
FOREIGN_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "Read": ("read_file", "describe_data"),
    "Write": ("write_file",),
    "Edit": ("replace_in_file",),
    "MultiEdit": ("replace_in_file",),
    "Glob": ("list_files",),
    "LS": ("list_files",),
    "Grep": ("grep_files",),
    "Bash": ("bash", "bg_status", "bg_kill"),
    "WebFetch": ("fetch_url",),
    "WebSearch": ("web_search",),
    "Task": SUBAGENTS,
    "Agent": SUBAGENTS,
    "BashOutput": ("bg_status",),
    "KillBash": ("bg_kill",),
    "KillShell": ("bg_kill",),
    "TodoWrite": ("task_create", "task_update"),
    "ExitPlanMode": (),
    "Skill": (),
}
"""Tool names of other programs, and the corresponding tools of orch, beginning with the most similar one.

The list of corresponding tools is empty if agents get the tool without a grant.
"""


def tools_named(names: Iterable[str]) -> frozenset[str]:
    """Return the tools that the names in a file refer to. Restrictions in parentheses are ignored."""
    plain_names = [name.partition("(")[0] for name in names]
    return frozenset(tool for name in plain_names for tool in FOREIGN_TOOLS.get(name, (name,)))


def implied_tools(names: Collection[str]) -> frozenset[str]:
    """Return the tools that `names` of other programs add to the most similar tool, such as describe_data for Read."""
    return frozenset(tool for name in names for tool in FOREIGN_TOOLS.get(name, ())[1:] if tool not in names)
