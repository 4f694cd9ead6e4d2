"""Renders archived messages for their holder: for each message a numbered text without tool calls, and its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.messages import Message, Text, images_in, user

from ..conversation.rendering import fit_texts, render_block
from ..conversation.tokens import CHARS_PER_TOKEN, image_tokens
from ..session.archived_entries import ArchivedEntry, entries_in
from ..session.session_reader import NAME

__all__ = ["DAMAGED", "archived_text", "entry_message", "entry_text", "render_messages"]

SHARE: Final = 0.6
"""Share of the context window for archived messages. The rest is for questions and answers."""
HINT: Final = "the archive has all of it: read_archive"
DAMAGED: Final = user("(This entry is damaged on the disk and cannot be read.)")


def archived_text(source: ArchiveSource, context_limit: int) -> tuple[Message, ...]:
    """Return the content of `source`, one message per entry, within 60 % of `context_limit` tokens (0 means no limit).

    The longest entries are cut first. A note replaces a damaged entry. Raise DamagedError or StoreError if the archive
    cannot be read.
    """
    messages = list(source.shown)
    if source.spans:
        messages = [
            entry_message(entry) for entry in entries_in(Path(source.folder) / NAME, source.spans, source.sha256)
        ]
    return render_messages(messages, context_limit)


def entry_message(entry: ArchivedEntry) -> Message:
    """Return the message of an entry. If the entry is damaged, return a note about the damage."""
    return entry.entry.message if entry.entry is not None else DAMAGED


def render_messages(messages: Sequence[Message], context_limit: int) -> tuple[Message, ...]:
    """Return `messages` as numbered texts within 60 % of `context_limit` tokens (0 means no limit).

    The images of a message follow its text. If all images take more than half of the tokens, the images are left out.
    """
    texts = ["\n".join(map(render_block, message.content)) or "(nothing)" for message in messages]
    images = [tuple(images_in(message.content)) if message.role == "user" else () for message in messages]
    if context_limit:
        tokens = sum(image_tokens(*image.size) for each in images for image in each)
        if tokens > context_limit * SHARE / 2:
            images, tokens = [()] * len(images), 0
        texts = fit_texts(texts, int((context_limit * SHARE - tokens) * CHARS_PER_TOKEN), HINT)
    return tuple(
        Message(message.role, (Text(entry_text(number, text)), *shown))
        for number, (message, text, shown) in enumerate(zip(messages, texts, images, strict=True), 1)
    )


def entry_text(number: int, text: str) -> str:
    """Return `text` with the heading of the entry `number`."""
    return f"[entry {number}]\n{text}"
