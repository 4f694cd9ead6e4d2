"""The memory tools: remember and recall."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.core.errors import OrchError
from orch_protocol.core.taint import join_labels

from ..tools.api.base import MemoryNotes, ToolContext, ToolError, ToolOutput, tool
from .notes import NOTHING, list_notes

__all__ = ["recall", "remember"]

MAX_TOKENS: Final = 4_000


def _has_memory(context: ToolContext) -> bool:
    return context.memory is not None


@tool(available=_has_memory)
async def remember(context: ToolContext, text: Annotated[str, Meta(min_length=1, max_length=100_000)]) -> str:
    """Save a note for later conversations about this project, such as a decision and its reason.

    Args:
        text: One fact, understandable without this conversation.
    """
    try:
        note = await _memory(context).remember(text)
    except OrchError as error:
        raise ToolError(str(error)) from error
    return f"Noted as {note.id}."


@tool(available=_has_memory)
async def recall(context: ToolContext, query: str) -> ToolOutput:
    """Find notes from earlier conversations about this project.

    Args:
        query: The subject of the notes, in a few words.
    """
    try:
        notes = await _memory(context).recall(query, MAX_TOKENS)
    except OrchError as error:
        raise ToolError(str(error)) from error
    marks = join_labels((), [mark for note in notes for mark in note.marks])
    return ToolOutput(list_notes(notes) if notes else NOTHING, marks=marks)


def _memory(context: ToolContext) -> MemoryNotes:
    assert context.memory is not None  # Otherwise the tools are not available.
    return context.memory
