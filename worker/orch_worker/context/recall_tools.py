"""The recall tools, cheapest first: search archives, read archives, and ask their holders."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.core.taint import TaintLabel, inherited_labels
from orch_protocol.services.agents.query import ASK_ALL, AskAll
from orch_protocol.services.archives.recall import (
    LIST_TAINT_LABELS,
    READ_ARCHIVE,
    SEARCH_ARCHIVE,
    ListTaintLabels,
    ReadArchive,
    SearchArchive,
)

from ..conversation.recalled import shown_entries, shown_hits
from ..conversation.tokens import clip
from ..tools.api.base import ToolContext, ToolOutput, tool

__all__ = ["map_subagents", "read_archive", "search_archive"]

ANSWER_CHARS: Final = 4_000
Number = Annotated[int, Meta(ge=1)]


def _archives(context: ToolContext) -> bool:
    return context.archives


@tool(available=_archives)
async def search_archive(context: ToolContext, query: str, limit: Number = 10) -> ToolOutput:
    """Search the archived turns of this conversation for words, paths, numbers or errors.

    Returns id, entry and passage of each match.

    Args:
        query: What to search for. Exact terms work best.
        limit: Maximum number of matches.
    """
    hits = await context.call_root(SEARCH_ARCHIVE, SearchArchive(query, limit), context.seconds)
    return ToolOutput(shown_hits(hits), marks=await _marks(context, *(hit.id for hit in hits)))


@tool(available=_archives)
async def read_archive(context: ToolContext, id: str, first: Number = 1, last: Number | None = None) -> ToolOutput:
    """Show entries of an archived turn exactly as they were. Without first and last, from the beginning.

    Args:
        id: The id of the archived turn, as in its record.
        first: The first entry to show.
        last: The last entry to show.
    """
    asked = ReadArchive(id, first, last)
    entries = await context.call_root(READ_ARCHIVE, asked, context.seconds)
    return ToolOutput(shown_entries(first, entries), marks=await _marks(context, id))


@tool(available=_archives)
async def map_subagents(context: ToolContext, ids: tuple[str, ...], prompt: str) -> ToolOutput:
    """Ask several holders of archived turns, or other subagents, the same question.

    Args:
        ids: The ids of the subagents to ask.
        prompt: The question.
    """
    asked = AskAll(ids, prompt, max(context.seconds - 2.0, context.seconds / 2), context.taint_labels)
    answers = await context.call_root(ASK_ALL, asked, context.seconds)
    text = "\n\n".join(
        f"{each.ref}: {clip(each.reply.text, ANSWER_CHARS, 'ask this one alone')}"
        if each.reply is not None
        else f"{each.ref}: no answer: {each.error}"
        for each in answers
    )
    replies = [each.reply for each in answers if each.reply is not None]
    return ToolOutput(
        text,
        local=any(reply.local for reply in replies),
        marks=tuple(mark for reply in replies for mark in inherited_labels(reply.marks, reply.id)),
    )


async def _marks(context: ToolContext, *ids: str) -> tuple[TaintLabel, ...]:
    """Return the taint labels of the archives `ids`."""
    marks = await context.call_root(LIST_TAINT_LABELS, ListTaintLabels(ids), context.seconds) if ids else []
    return tuple(marks)
