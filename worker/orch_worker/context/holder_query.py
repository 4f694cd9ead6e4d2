"""What a holder is shown of what it holds: every message as text, under its number, in a form that needs no tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.messages import Message, Text, user

from ..conversation.rendering import fit_texts, render_block
from ..conversation.tokens import CHARS_PER_TOKEN
from ..session.log_reader import ArchivedEntry, entries_in
from ..session.transcript import NAME

__all__ = ["archived_text", "entry_message", "entry_text", "render_messages"]

SHARE: Final = 0.6
"""Of the model's window; the rest is for questions and answers."""
HINT: Final = "the archive has all of it: read_archive"
DAMAGED: Final = user("(This entry is damaged on the disk and cannot be read.)")


def archived_text(source: ArchiveSource, context_limit: int) -> tuple[Message, ...]:
    """Return what `source` holds, one message an entry, within 60 % of `context_limit` tokens (0: all of it).

    What does not fit is cut, the longest entries first. An entry on a damaged line says so. Raises DamagedError,
    StoreError.
    """
    messages = list(source.shown)
    if source.spans:
        messages = [entry_message(held) for held in entries_in(Path(source.folder) / NAME, source.spans, source.sha256)]
    return render_messages(messages, context_limit)


def entry_message(held: ArchivedEntry) -> Message:
    """Return the message of an entry, or that it is damaged."""
    return held.entry.message if held.entry is not None else DAMAGED


def render_messages(messages: Sequence[Message], context_limit: int) -> tuple[Message, ...]:
    """Return `messages` as text, one each, under their numbers, within 60 % of `context_limit` tokens (0: whole)."""
    texts = ["\n".join(map(render_block, message.content)) or "(nothing)" for message in messages]
    if context_limit:
        texts = fit_texts(texts, int(context_limit * CHARS_PER_TOKEN * SHARE), HINT)
    return tuple(
        Message(message.role, (Text(entry_text(number, text)),))
        for number, (message, text) in enumerate(zip(messages, texts, strict=True), 1)
    )


def entry_text(number: int, text: str) -> str:
    """Return `text` as the entry with that number."""
    return f"[entry {number}]\n{text}"
