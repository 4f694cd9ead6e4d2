"""What some agents have and most do not: extensions, memory, skills, a workspace. Imported where one has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec

from ..policy.taint import TaintLabels
from ..session.transcript import Transcript
from ..tools.api.base import ToolContext

if TYPE_CHECKING:
    from ..extensions.loader import LoadedExtensions
    from ..memory.memory_session import MemorySession
    from ..skills.catalog import SkillCatalog
    from ..workspace.workspace import WorkspaceSession

__all__ = ["extensions_of", "memory_of", "shelf_of", "workbench_of"]


def extensions_of(spec: AgentSpec) -> LoadedExtensions | None:
    """Return what its extensions brought, None without any; those that are left out are told of in its log."""
    if not spec.extensions:
        return None
    from ..extensions.loader import load_all

    found = load_all(spec.extensions)
    for line in found.left_out:
        print(line, flush=True)
    return found


def memory_of(spec: AgentSpec, marks: TaintLabels, bound: Callable[[], bool]) -> MemorySession | None:
    """Return what it remembers; `bound` says whether its conversation is to stay on this machine."""
    if spec.memory is None:
        return None
    from ..memory.memory_session import MemorySession

    return MemorySession(spec.memory, spec.id, marks, bound)


def shelf_of(spec: AgentSpec, transcript: Transcript) -> SkillCatalog | None:
    """Return its skills."""
    if not spec.skills.skills:
        return None
    from ..skills.catalog import SkillCatalog

    return SkillCatalog(spec.skills, transcript)


def workbench_of(
    spec: AgentSpec, context: ToolContext, transcript: Transcript, size: Callable[[str], int]
) -> WorkspaceSession | None:
    """Return what keeps track of what it has at hand; `size` says how many tokens a text has."""
    if spec.workspace is None:
        return None
    from ..workspace.workspace import WorkspaceSession

    return WorkspaceSession(spec.workspace, context, transcript, size)
