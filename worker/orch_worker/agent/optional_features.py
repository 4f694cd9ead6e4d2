"""Optional features of an agent: extensions, tool executor, memory, skills, workspace. Imported only if used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError

from ..policy.taint import TaintLabels
from ..session.transcript import Transcript
from ..tools.api.base import Tool, ToolContext

if TYPE_CHECKING:
    from ..extensions.loader import LoadedExtensions
    from ..memory.memory_session import MemorySession
    from ..skills.catalog import SkillCatalog
    from ..tools.api.executor import ToolSource
    from ..workspace.workspace import WorkspaceSession

__all__ = ["executor_of", "extensions_of", "memory_of", "skills_of", "workspace_of"]


def extensions_of(spec: AgentSpec) -> LoadedExtensions | None:
    """Load the extensions of the agent. Return None if the agent has no extensions.

    Log extensions that fail to load.
    """
    if not spec.extensions:
        return None
    from ..extensions.loader import load_all

    found = load_all(spec.extensions)
    for line in found.left_out:
        print(line, flush=True)
    return found


def executor_of(spec: AgentSpec, context: ToolContext, extension_tools: Iterable[Tool]) -> ToolSource | None:
    """Return the executor of the agent, or None. Blocks for at most 30 s.

    `extension_tools` are the tools of the agent's extensions.

    Raise ConfigError if the executor cannot be created, and for a tool with the name of another tool.
    """
    if spec.executor is None:
        return None
    from ..tools.api.base import root_tool
    from ..tools.api.executor import FunctionExecutor
    from ..tools.dispatch.custom_executor import load_executor

    if spec.executor.in_program:
        executor: ToolSource = FunctionExecutor(map(root_tool, spec.executor_tools), context, spec.executor.name)
    else:
        executor = load_executor(spec.executor)
    other_names = {tool.name for tool in spec.root_tools} | {tool.name for tool in extension_tools}
    if clash := [name for name in executor.tools if name in other_names]:
        raise ConfigError(
            f"tool executor {executor.name!r} lists {clash[0]!r}, which is also a tool of the program or an extension: "
            "rename one of them, or name the tools to grant with tools=[...]"
        )
    return executor


def memory_of(spec: AgentSpec, taint_labels: TaintLabels, is_local_only: Callable[[], bool]) -> MemorySession | None:
    """Return the memory of the agent, or None if memory is off.

    `is_local_only` returns whether the conversation may be sent to local models only.
    """
    if spec.memory is None:
        return None
    from ..memory.memory_session import MemorySession

    return MemorySession(spec.memory, spec.id, taint_labels, is_local_only)


def skills_of(spec: AgentSpec, transcript: Transcript) -> SkillCatalog | None:
    """Return the skills of the agent, or None if the agent has no skills."""
    if not spec.skills.skills:
        return None
    from ..skills.catalog import SkillCatalog

    return SkillCatalog(spec.skills, transcript)


def workspace_of(
    spec: AgentSpec, context: ToolContext, transcript: Transcript, count_tokens: Callable[[str], int]
) -> WorkspaceSession | None:
    """Return the workspace of the agent, or None if the workspace is off.

    `count_tokens` returns the number of tokens of a text.
    """
    if spec.workspace is None:
        return None
    from ..workspace.workspace import WorkspaceSession

    return WorkspaceSession(spec.workspace, context, transcript, count_tokens)
