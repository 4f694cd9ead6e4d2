"""Services that run tools of the user's program, and revoke tools of agents."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ...core.messages import Image, Usage
from ...core.taint import TaintLabel
from ..agents.status import AgentRow
from ..service import ROOT_TOOL_AGENTS, USERS_ONLY, AgentFields, Service

__all__ = ["REVOKE_TOOLS", "RUN_TOOL", "RevokeAgentTools", "RootToolResult", "RunTool"]


class RunTool(Struct, frozen=True):
    """Run the root tool `name` of the calling agent with `input`."""

    name: str
    input: dict[str, Any]


class RootToolResult(Struct, frozen=True):
    """The text and the images of a tool result. In the text, `Image.text` replaces each image.

    The other fields have the same meaning as in ToolOutput.
    """

    text: str
    is_error: bool = False
    files_changed: tuple[str, ...] = ()
    usage: Usage = Usage()
    local: bool = False
    origin: str | None = None
    marks: tuple[TaintLabel, ...] = ()
    images: tuple[Image, ...] = ()


class RevokeAgentTools(Struct, frozen=True, forbid_unknown_fields=True):
    """Revoke all tools of `ref` except the tools in `keep` (names and categories of tools).

    The subagents of `ref` lose the same tools. Revoked tools cannot be granted again.
    """

    ref: str
    keep: tuple[str, ...]


RUN_TOOL: Final = Service(
    "run_tool",
    RunTool,
    RootToolResult,
    ROOT_TOOL_AGENTS,
    "Run a tool of the user's program for the calling agent.",
    AgentFields(free=("name", "input")),
)
REVOKE_TOOLS: Final = Service(
    "revoke_tools", RevokeAgentTools, AgentRow, USERS_ONLY, "Revoke tools of an agent and of all agents below it."
)
