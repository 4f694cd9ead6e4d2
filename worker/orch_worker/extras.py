"""What some agents have and most do not: extensions, memory, skills, a workspace. Imported where one has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.spec import AgentSpec

from .marks import Marks
from .tools.base import ToolContext
from .transcript import Transcript

if TYPE_CHECKING:
    from .artifacts.workbench import Workbench
    from .extensions import Loaded
    from .recollection import Recollection
    from .shelf import Shelf

__all__ = ["extensions_of", "memory_of", "shelf_of", "workbench_of"]


def extensions_of(spec: AgentSpec) -> Loaded | None:
    """Return what its extensions brought, None without any; those that are left out are told of in its log."""
    if not spec.extensions:
        return None
    from .extensions import load_all

    found = load_all(spec.extensions, Path(spec.cwd))
    for line in found.left_out:
        print(line, flush=True)
    return found


def memory_of(spec: AgentSpec, marks: Marks, bound: Callable[[], bool]) -> Recollection | None:
    """Return what it remembers; `bound` says whether its conversation is to stay on this machine."""
    if spec.memory is None:
        return None
    from .recollection import Recollection

    return Recollection(spec.memory, spec.id, marks, bound)


def shelf_of(spec: AgentSpec, transcript: Transcript) -> Shelf | None:
    """Return its skills."""
    if not spec.skills.skills:
        return None
    from .shelf import Shelf

    return Shelf(spec.skills, transcript)


def workbench_of(
    spec: AgentSpec, context: ToolContext, transcript: Transcript, size: Callable[[str], int]
) -> Workbench | None:
    """Return what keeps track of what it has at hand; `size` says how many tokens a text has."""
    if spec.workspace is None:
        return None
    from .artifacts.workbench import Workbench

    return Workbench(spec.workspace, context, transcript, size)
