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

from ..conversation.recalled import line_range, shown_entries, shown_hits
from ..conversation.tokens import clip
from ..tools.api.base import ToolContext, ToolOutput, tool

__all__ = ["map_subagents", "read_archive", "search_archive"]

ANSWER_CHARS: Final = 4_000
Number = Annotated[int, Meta(ge=1)]


def _archives(context: ToolContext) -> bool:
    return context.archives


@tool(available=_archives)
async def search_archive(context: ToolContext, query: str, limit: Number | None = None) -> ToolOutput:
    """Search the archived turns of this conversation for words, identifiers, paths, numbers or errors.

    Returns for each match its archive, entry, turn and age, and the matching lines. A path finds its latest edit first.

    Args:
        query: What to search for: exact terms, or a regular expression.
        limit: Maximum number of matches. Without it, only the best of ten matches are shown in full.
    """
    asked = SearchArchive(query) if limit is None else SearchArchive(query, limit)
    hits = await context.call_root(SEARCH_ARCHIVE, asked, context.seconds)
    return ToolOutput(shown_hits(hits, whole=limit is not None), marks=await _marks(context, *(hit.id for hit in hits)))


@tool(available=_archives)
async def read_archive(
    context: ToolContext, id: str, first: Number = 1, last: Number | None = None, lines: str | None = None
) -> ToolOutput:
    """Show entries of an archived turn as text: edits as diffs, results as they were, long results shortened.

    Args:
        id: The id of the archived turn, as in its record.
        first: The first entry to show.
        last: The last entry to show. Without it, all entries from first.
        lines: Lines of the entry first, such as 40-80. Shows only these.
    """
    if lines is not None:
        line_range(lines)
        last = first
    asked = ReadArchive(id, first, last)
    entries = await context.call_root(READ_ARCHIVE, asked, context.seconds)
    return ToolOutput(shown_entries(id, first, entries, last, lines), marks=await _marks(context, id))


@tool(available=_archives)
async def map_subagents(context: ToolContext, ids: tuple[str, ...], prompt: str) -> ToolOutput:
    """Ask several holders of archived turns, or other subagents, the same question.

    Args:
        ids: The ids of the subagents to ask.
        prompt: The question.
    """
    asked = AskAll(ids, prompt, max(context.seconds - 2.0, context.seconds / 2))
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
