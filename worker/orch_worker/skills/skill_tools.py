"""The tools that skills name, as other agents call them or as we do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from orch_protocol.resources.skills import READ_SKILL

__all__ = ["FREE", "tools_named"]

FREE: Final = frozenset({READ_SKILL, "read_handle", "exit_plan_mode", "task_create", "task_update"})
"""Tools that no skill needs to name."""
OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
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
    "Task": ("spawn_subagent", "query_subagent", "collect_subagent", "wait_subagents", "list_subagents"),
}
"""What tools are called in skills that were written for other agents."""


def tools_named(names: Iterable[str]) -> frozenset[str]:
    """Return the tools of ours that `names`, as skills write them, mean; what is in parentheses does not count."""
    bare = [name.partition("(")[0] for name in names]
    return frozenset(tool for name in bare for tool in OTHERS.get(name, (name,)))
