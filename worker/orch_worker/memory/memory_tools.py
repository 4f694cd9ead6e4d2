"""What the agent remembers from one conversation to the next: notes it writes, and finds again."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.core.errors import OrchError
from orch_protocol.core.taint import join_labels

from ..tools.api.base import MemoryNotes, ToolContext, ToolError, ToolOutput, tool
from .notes import NOTHING, list_notes

__all__ = ["recall", "remember"]

MOST_TOKENS: Final = 4_000


def _remembers(context: ToolContext) -> bool:
    return context.memory is not None


@tool(category="notes", available=_remembers)
async def remember(context: ToolContext, text: Annotated[str, Meta(min_length=1, max_length=100_000)]) -> str:
    """Note something that is worth knowing in later conversations about this project, such as a decision and why.

    Args:
        text: One fact, in words that are clear without this conversation.
    """
    try:
        note = await _memory(context).remember(text)
    except OrchError as error:
        raise ToolError(str(error)) from error
    return f"Noted as {note.id}."


@tool(category="notes", available=_remembers)
async def recall(context: ToolContext, query: str) -> ToolOutput:
    """Find notes of earlier conversations about this project.

    Args:
        query: What they are to be about, in a few words.
    """
    try:
        notes = await _memory(context).recall(query, MOST_TOKENS)
    except OrchError as error:
        raise ToolError(str(error)) from error
    marks = join_labels((), [mark for note in notes for mark in note.marks])
    return ToolOutput(list_notes(notes) if notes else NOTHING, marks=marks)


def _memory(context: ToolContext) -> MemoryNotes:
    assert context.memory is not None  # else the tools are not available
    return context.memory
