"""Records of archives in a conversation: their text, and functions that recognize them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from orch_protocol.core.archives import ArchiveKind
from orch_protocol.core.messages import Message, Text, text_of

__all__ = [
    "HEADS",
    "body_of",
    "deletion_marker",
    "era_prompt",
    "holder_of",
    "holders_in",
    "insert_after_records",
    "is_brief",
    "is_summary",
    "replace_record",
    "shorten_record",
    "stub_text",
    "stubs_in",
    "summary_message",
    "with_body",
]

HEADS: Final[dict[ArchiveKind, str]] = {
    "turn": "[archived turn]",
    "phase": "[archived phase]",
    "era": "[archived turns]",
}

SUMMARY: Final = "[Summary of the conversation so far]"
DELETED: Final = "[deleted on "
BRIEF: Final = "What came of it is in the summary above. It was about: "

_STUB: Final = re.compile(r"\[archived (?:turn|phase|turns)\]\nsubagent_id: ([a-f][0-9a-f]{11})\n")


def stub_text(kind: ArchiveKind, id: str, record: str, answer: str = "") -> str:
    """Return the text that stays in the conversation for the archive `id`.

    The text consists of `record` and of the final answer `answer`, if there is one.
    """
    ending = f"\n\nFinal answer:\n{answer}" if answer else ""
    return f"{HEADS[kind]}\nsubagent_id: {id}\n\n{record}{ending}"


def deletion_marker(when: str) -> str:
    """Return the text that replaces deleted content. `when` is an ISO 8601 time. The text contains only the date."""
    return f"{DELETED}{when[:10]}]"


def body_of(stub: str) -> str:
    """Return the text of a record below its heading."""
    return stub[match.end() :].lstrip("\n") if (match := _STUB.match(stub)) else stub


def with_body(stub: str, body: str) -> str:
    """Return `stub` with the text `body` below its heading."""
    return f"{match[0]}\n{body}" if (match := _STUB.match(stub)) else body


def era_prompt(turns: int) -> str:
    """Return the user message before the record of `turns` merged turns."""
    return f"[{turns} earlier turns of this conversation]"


def summary_message(text: str, stubs: Iterable[str] = ()) -> Message:
    """Return the message that replaces compacted messages. `stubs` are the records of archives among these messages."""
    body = f"{SUMMARY}\n\n{text}" if text else ""
    return Message("user", tuple(map(Text, filter(None, (body, *stubs)))))


def is_summary(message: Message) -> bool:
    """Return whether `message` replaces compacted messages."""
    return message.role == "user" and text_of(message).startswith(SUMMARY)


def shorten_record(stub: str, task: str) -> str:
    """Return a short form of the record `stub` for use next to a summary: the archive's id and its `task`.

    The record of a deleted archive is not changed if the task is unknown.
    """
    if not task and body_of(stub).startswith(DELETED):
        return stub
    return with_body(stub, f"{BRIEF}{task or 'what the summary tells'}")


def is_brief(stub: str) -> bool:
    """Return whether `stub` is a short form. A longer record must not replace a short form."""
    return body_of(stub).startswith(BRIEF)


def holder_of(text: str) -> str | None:
    """Return the archive id in the record `text`. Return None if `text` is not a record."""
    match = _STUB.match(text)
    return match[1] if match else None


def holders_in(message: Message) -> list[str]:
    """Return the archive ids of the records in `message`, in order."""
    found = (holder_of(block.text) for block in message.content if isinstance(block, Text))
    return [id for id in found if id]


def stubs_in(message: Message) -> dict[str, str]:
    """Return the records in `message`. Keys are archive ids."""
    texts = (block.text for block in message.content if isinstance(block, Text))
    return {holder: text for text in texts if (holder := holder_of(text))}


def insert_after_records(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """Return `messages` with `text` in the first user message at or after the last record of an archive.

    Without such a message, `text` becomes a user message at the end. If there is no record, or `text` is "", return
    `messages`.
    """
    last = next((index for index in reversed(range(len(messages))) if holders_in(messages[index])), None)
    if not text or last is None:
        return messages
    place = next((index for index in range(last, len(messages)) if messages[index].role == "user"), len(messages))
    content = messages[place].content if place < len(messages) else ()
    return [*messages[:place], Message("user", (*content, Text(text))), *messages[place + 1 :]]


def replace_record(message: Message, stub: str) -> Message:
    """Return `message`. `stub` replaces the record with the same archive id."""
    holder = holder_of(stub)
    blocks = (
        Text(stub) if isinstance(block, Text) and holder_of(block.text) == holder else block
        for block in message.content
    )
    return Message(message.role, tuple(blocks))
