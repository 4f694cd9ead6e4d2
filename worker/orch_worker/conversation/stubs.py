"""What stays in a conversation in place of what was archived, and how it is known again."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    """Return what the conversation keeps of the archive `id`: `record`, and the final `answer` if there was one."""
    ending = f"\n\nFinal answer:\n{answer}" if answer else ""
    return f"{HEADS[kind]}\nsubagent_id: {id}\n\n{record}{ending}"


def deletion_marker(when: str) -> str:
    """Return what stands where something was deleted for good; `when` is ISO 8601, of which the day is told."""
    return f"{DELETED}{when[:10]}]"


def body_of(stub: str) -> str:
    """Return what a stub says below its head."""
    return stub[match.end() :].lstrip("\n") if (match := _STUB.match(stub)) else stub


def with_body(stub: str, body: str) -> str:
    """Return `stub` with `body` below its head."""
    return f"{match[0]}\n{body}" if (match := _STUB.match(stub)) else body


def era_prompt(turns: int) -> str:
    """Return the user message that stands before the stub of `turns` merged turns."""
    return f"[{turns} earlier turns of this conversation]"


def summary_message(text: str, stubs: Iterable[str] = ()) -> Message:
    """Return the message that stands in place of what was compacted, with the `stubs` that stood there."""
    said = f"{SUMMARY}\n\n{text}" if text else ""
    return Message("user", tuple(map(Text, filter(None, (said, *stubs)))))


def is_summary(message: Message) -> bool:
    """Return whether `message` stands in place of what was compacted."""
    return message.role == "user" and text_of(message).startswith(SUMMARY)


def shorten_record(stub: str, task: str) -> str:
    """Return what is left of `stub` where a summary tells the rest: the archive's id, and its `task`.

    One that says that its archive was deleted, and of which no task is known, still says that.
    """
    if not task and body_of(stub).startswith(DELETED):
        return stub
    return with_body(stub, f"{BRIEF}{task or 'what the summary tells'}")


def is_brief(stub: str) -> bool:
    """Return whether a summary tells the rest of `stub`: no better text is to take its place."""
    return body_of(stub).startswith(BRIEF)


def holder_of(text: str) -> str | None:
    """Return the id of the archive that `text` stands for, None when it is no stub."""
    match = _STUB.match(text)
    return match[1] if match else None


def holders_in(message: Message) -> list[str]:
    """Return the ids of the archives that the text blocks of `message` stand for, in order."""
    found = (holder_of(block.text) for block in message.content if isinstance(block, Text))
    return [id for id in found if id]


def stubs_in(message: Message) -> dict[str, str]:
    """Return the text blocks of `message` that stand for archives, by the archive's id."""
    texts = (block.text for block in message.content if isinstance(block, Text))
    return {holder: text for text in texts if (holder := holder_of(text))}


def replace_record(message: Message, stub: str) -> Message:
    """Return `message` with `stub` in place of the one of the same holder."""
    holder = holder_of(stub)
    blocks = (
        Text(stub) if isinstance(block, Text) and holder_of(block.text) == holder else block
        for block in message.content
    )
    return Message(message.role, tuple(blocks))
