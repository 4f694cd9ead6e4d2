"""Builds the text that replaces compacted messages: the prompt for the model, and facts computed without a model.

The facts are the task, the open question and the receipt of the calls. Each compaction passes the facts on to the next
compaction, so the facts do not depend on the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.messages import Image, Message, Text
from orch_protocol.session.entries import CompactionEntry

from ..conversation.framing import STEERING, is_project, question_in, split_first_prompt
from ..conversation.receipt import Receipt, merge, receipt_of
from ..conversation.receipt_text import render
from ..conversation.rendering import turn_pieces
from ..conversation.stubs import holder_of, is_summary, stubs_in
from ..conversation.tokens import clip
from ..conversation.turns import is_prompt, turns_of

__all__ = [
    "REMEMBER",
    "SYSTEM",
    "CompactionDigest",
    "details_of",
    "digest_of",
    "extract_summary",
    "in_context_prompt",
    "parts_of",
    "recorded_digest",
    "split_memory_items",
    "summary_prompt",
    "summary_text",
    "usable_summary",
]

REMEMBER: Final = """\
Remember: last of all, an item a line beginning with "- ": facts that will be worth knowing in other conversations \
about this project, such as a convention, a decision and why, or where something is. Each is to be clear by itself. \
Leave the heading out when there are none; most conversations have none, or one."""
HINT: Final = "the session file has it all"
MAX_TASK: Final = 2_000
MAX_QUESTION: Final = 2_000
RECEIPT_SHARE: Final = 4
MIN_LINE: Final = 120
MAX_LINE: Final = 1_200
CARRIED_SHARE: Final = 3
CHARS_A_WORD: Final = 6
NOT_LISTED: Final = "(What was said before this is not listed.)"
MAX_ANSWER: Final = 4
"""Maximum length of a model's summary, as a multiple of the requested length. Longer summaries are rejected."""

SYSTEM: Final = """\
You write notes for an agent whose conversation is too long for its context window. The agent can no longer see the \
first part. The agent knows only what you write about that part. Write plain notes under these headings, and leave out \
headings without content:

Goal: the goal, and what was ruled out or required, in the original words.
Done: what was done and found, with exact names, paths, figures, error texts and ids.
Decided: what was decided, and why.
Under way: the latest work, and what comes next.
Open: what is unknown, or what waits for a decision of a person.

Write only these notes. Do not add your own opinions, and do not address a reader. The latest events matter most; \
finished work may be short."""
_IN_CONTEXT_PROMPT: Final = """\
[This is not part of the conversation. Call no tools.]
{system}

Write these notes, in at most {words} words, about this conversation from its beginning up to where this was said: \
{place}"""


_REMEMBER: Final = re.compile(r"^[#*_ ]*Remember[*_ ]*:?[*_ ]*$", re.MULTILINE | re.IGNORECASE)
_ITEM: Final = re.compile(r"^\s*[-*•]\s+", re.MULTILINE)


class CompactionDigest(Struct, frozen=True):
    """The facts about compacted messages.

    `task` is the task of the agent. `question` is the open question, if its message was compacted. `body` is the text
    of the summary. `archives` is True if records of archives were among the messages.
    """

    task: str = ""
    question: str = ""
    body: str = ""
    receipt: Receipt = Receipt()
    archives: bool = False


def digest_of(
    replaced: Sequence[Message], before: CompactionDigest, *, within: bool, chars: int = MAX_TASK
) -> CompactionDigest:
    """Return the facts about the messages `replaced`, combined with `before`, the facts of the previous compaction.

    `within` is True if the messages end inside a turn. The task and the question each have at most `chars` characters.
    """
    prompts = [_words(message) for message in replaced if is_prompt(message) and not _is_summary_or_context(message)]
    tasks = [task for task, _ in map(split_first_prompt, prompts) if task]
    asked = [before.question]
    for text in map(question_in, prompts):
        asked = [*asked, text] if text.startswith(STEERING) else [text]
    return CompactionDigest(
        task=clip(tasks[0] if tasks else before.task, min(chars, MAX_TASK), HINT),
        question=clip("\n\n".join(filter(None, asked)), min(chars, MAX_QUESTION), HINT) if within else "",
        body=before.body,
        receipt=merge([before.receipt, receipt_of(replaced)]),
        archives=any(map(stubs_in, replaced)),
    )


def recorded_digest(entry: CompactionEntry | None) -> CompactionDigest:
    """Return the facts that a recorded compaction contains.

    An entry of another program contains only the text. A deleted entry contains only the task.
    """
    if entry is None:
        return CompactionDigest()
    if entry.writer is None:
        return CompactionDigest(body=entry.summary)
    return msgspec.convert(entry.details or {}, CompactionDigest)


def details_of(digest: CompactionDigest, body: str) -> Any:
    """Return the facts as JSON data for the next compaction."""
    return msgspec.to_builtins(msgspec.structs.replace(digest, body=body))


def summary_text(digest: CompactionDigest, body: str, chars: int) -> str:
    """Return the text that replaces the messages: `body` and the facts, in about `chars` characters."""
    done = render(digest.receipt, max(chars // RECEIPT_SHARE, MIN_LINE)) if digest.receipt.tools else ""
    parts = [
        f"Your task: {digest.task}" if digest.task else "",
        clip(body, chars, HINT),
        f"Calls that were made in all of this:\n{done}" if done else "",
        f"You are in the middle of a turn. You were asked:\n{digest.question}" if digest.question else "",
        "Archives of it can be searched, read and asked by these ids:" if digest.archives else "",
    ]
    return "\n\n".join(filter(None, parts))


def extract_summary(replaced: Sequence[Message], before: str, chars: int) -> str:
    """Return a summary of at most `chars` characters without a model: part of the text `before`, then prompts and
    answers.

    If not all turns fit, the latest turns are kept.
    """
    carried = clip(before, chars // CARRIED_SHARE, HINT)
    rows: list[str] = []
    left = chars - len(carried)
    for turn in reversed(turns_of(replaced)):
        prompts = [
            _words(message) for message in replaced[turn.start : turn.body] if not _is_summary_or_context(message)
        ]
        asked = _flat(" ".join(map(question_in, prompts)))
        replies = [_flat(_words(message)) for message in replaced[turn.body : turn.stop] if message.role == "assistant"]
        last = next(filter(None, reversed(replies)), "")
        limit = max(MIN_LINE, min(left // 3, MAX_LINE))
        pairs = (("Asked", asked), ("Said", last))
        row = "\n".join(f"{who}: {clip(text, limit, HINT)}" for who, text in pairs if text)
        if len(row) > left:
            rows.append(NOT_LISTED)
            break
        if row:
            rows.append(row)
            left -= len(row) + 1
    return "\n".join(filter(None, [carried, *reversed(rows)]))


def parts_of(replaced: Sequence[Message], limit: int) -> list[str]:
    """Return `replaced` as text, split into parts of at most `limit` characters. Earlier summaries are left out."""
    return turn_pieces([message for message in replaced if not _is_summary_or_context(message)], limit)


def summary_prompt(part: str, before: str, chars: int, number: int, parts: int) -> str:
    """Return the prompt for part `number` of `parts`. `before` is the summary of the earlier parts."""
    which = f" (part {number} of {parts})" if parts > 1 else ""
    words = chars // CHARS_A_WORD
    if not before:
        return f"Write the notes, in at most {words} words, from this conversation{which}:\n\n{part}"
    return (
        f"These are the notes so far:\n\n{before}\n\nThis was said and done after them{which}:\n\n{part}\n\n"
        f"Rewrite the notes, in at most {words} words, so that they cover the whole conversation."
    )


def in_context_prompt(place: str, chars: int) -> str:
    """Return the prompt for a model that already has the conversation in its context.

    The summary covers all messages before the message `place`.
    """
    where = f"«{_flat(place)[:MIN_LINE]}»" if place.strip() else "(the latest steps: they stay as they are)"
    return _IN_CONTEXT_PROMPT.format(system=SYSTEM, words=chars // CHARS_A_WORD, place=where)


def usable_summary(answer: str, chars: int) -> str:
    """Return the model's `answer`, or "" if the answer is empty or far too long."""
    text = answer.strip()
    return text if len(text) <= MAX_ANSWER * chars else ""


def split_memory_items(body: str) -> tuple[str, tuple[str, ...]]:
    """Return the summary without its "Remember" section, and the items of that section."""
    if (found := _REMEMBER.search(body)) is None:
        return body, ()
    items = (item.strip() for item in _ITEM.split(body[found.end() :]))
    return body[: found.start()].rstrip(), tuple(filter(None, items))


def _is_summary_or_context(message: Message) -> bool:
    """Return whether `message` is a summary or the project description."""
    return is_project(message) or is_summary(message)


def _words(message: Message) -> str:
    """Return the text of `message` without the records of archives."""
    texts = (block.text for block in message.content if isinstance(block, Text | Image))
    return "\n".join(text for text in texts if not holder_of(text))


def _flat(text: str) -> str:
    return " ".join(text.split())
