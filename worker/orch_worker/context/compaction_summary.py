"""What stands in place of the beginning of a conversation: what a model is asked about it, and what is known without.

The same facts are told whoever writes: the task, the question that is still open, and what calls left behind. These
are computed, and carried from one summary to the next; no model has to remember them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.messages import Message, Text
from orch_protocol.session.entries import CompactionEntry

from ..conversation.framing import is_project, question_in, split_first_prompt
from ..conversation.prompt_markers import STEERING
from ..conversation.receipt import Receipt, merge, receipt_of, render
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
    "on_record",
    "parts_of",
    "question_beside",
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
MOST_TASK: Final = 2_000
MOST_QUESTION: Final = 2_000
RECEIPT_SHARE: Final = 4
LEAST_LINE: Final = 120
MOST_LINE: Final = 1_200
CARRIED_SHARE: Final = 3
CHARS_A_WORD: Final = 6
NOT_LISTED: Final = "(What was said before this is not listed.)"
MOST_ANSWER: Final = 4
"""So many times what was asked for may an answer be long, and still is cut to size rather than refused."""

SYSTEM: Final = """\
You keep the notes of an agent whose conversation has outgrown what it can read at once. What it said and did first \
leaves its sight; of that it will know what you write, and nothing else. Write plain notes under these headings, and \
leave out one that has nothing below it:

Goal: what is to be reached, and what was ruled out or demanded, in the words it was said in.
Done: what was done and found, with exact names, paths, figures, error texts and ids.
Decided: what was decided, and why.
Under way: what was being worked on last, and what comes next.
Open: what is not known, or waits for somebody.

Nothing of your own, no address to anybody. What happened last matters most; what is finished for good may be short."""
_BESIDE: Final = """\
[This is not part of the conversation. Call no tools.]
{system}

Write these notes, in at most {words} words, about this conversation from its beginning up to where this was said: \
{place}"""


_REMEMBER: Final = re.compile(r"^[#*_ ]*Remember[*_ ]*:?[*_ ]*$", re.MULTILINE | re.IGNORECASE)
_ITEM: Final = re.compile(r"^\s*[-*•]\s+", re.MULTILINE)


class CompactionDigest(Struct, frozen=True):
    """What is known of what left a conversation, without anybody's words for it.

    `task` is what the agent is for, `question` what it is still to answer when that left too; `body` what a summary
    said of it. `archives`: ids of archives stay with it.
    """

    task: str = ""
    question: str = ""
    body: str = ""
    receipt: Receipt = Receipt()
    archives: bool = False


def digest_of(gone: Sequence[Message], before: CompactionDigest, *, within: bool) -> CompactionDigest:
    """Return what is known of `gone`, messages that follow those that `before` tells of, with the body of that.

    `within` says that they end in the middle of a turn.
    """
    prompts = [_words(message) for message in gone if is_prompt(message) and not _is_told(message)]
    tasks = [task for task, _ in map(split_first_prompt, prompts) if task]
    asked = [before.question]
    for text in map(question_in, prompts):
        asked = [*asked, text] if text.startswith(STEERING) else [text]
    return CompactionDigest(
        task=clip(tasks[0], MOST_TASK, HINT) if tasks else before.task,
        question=clip("\n\n".join(filter(None, asked)), MOST_QUESTION, HINT) if within else "",
        body=before.body,
        receipt=merge([before.receipt, receipt_of(gone)]),
        archives=any(map(stubs_in, gone)),
    )


def on_record(entry: CompactionEntry | None) -> CompactionDigest:
    """Return what a compaction that is on record tells; of one that another program made, that is its text. Of one that
    was deleted for good nothing is left but the task."""
    if entry is None:
        return CompactionDigest()
    if entry.writer is None:
        return CompactionDigest(body=entry.summary)
    return msgspec.convert(entry.details or {}, CompactionDigest)


def details_of(digest: CompactionDigest, body: str) -> Any:
    """Return what the next compaction goes on from, as JSON data."""
    return msgspec.to_builtins(msgspec.structs.replace(digest, body=body))


def summary_text(digest: CompactionDigest, body: str, chars: int) -> str:
    """Return the text of a summary: what `body` says, and what is known besides, in about `chars` characters."""
    done = render(digest.receipt, max(chars // RECEIPT_SHARE, LEAST_LINE)) if digest.receipt.tools else ""
    parts = [
        f"Your task: {digest.task}" if digest.task else "",
        clip(body, chars, HINT),
        f"Calls that were made in all of this:\n{done}" if done else "",
        f"You are in the middle of a turn. You were asked:\n{digest.question}" if digest.question else "",
        "Archives of it can be searched, read and asked by these ids:" if digest.archives else "",
    ]
    return "\n\n".join(filter(None, parts))


def extract_summary(gone: Sequence[Message], before: str, chars: int) -> str:
    """Return a body that nobody wrote, in `chars` characters: of the body `before` as much as has room, and what was
    asked and answered since, the latest first to be told."""
    carried = clip(before, chars // CARRIED_SHARE, HINT)
    rows: list[str] = []
    left = chars - len(carried)
    for turn in reversed(turns_of(gone)):
        prompts = [_words(message) for message in gone[turn.start : turn.body] if not _is_told(message)]
        asked = _flat(" ".join(map(question_in, prompts)))
        told = [_flat(_words(message)) for message in gone[turn.body : turn.stop] if message.role == "assistant"]
        last = next(filter(None, reversed(told)), "")
        most = max(LEAST_LINE, min(left // 3, MOST_LINE))
        pairs = (("Asked", asked), ("Said", last))
        row = "\n".join(f"{who}: {clip(text, most, HINT)}" for who, text in pairs if text)
        if len(row) > left:
            rows.append(NOT_LISTED)
            break
        if row:
            rows.append(row)
            left -= len(row) + 1
    return "\n".join(filter(None, [carried, *reversed(rows)]))


def parts_of(gone: Sequence[Message], most: int) -> list[str]:
    """Return `gone` as text for a model to read, in parts of at most `most` characters, without a summary in it."""
    return turn_pieces([message for message in gone if not _is_told(message)], most)


def summary_prompt(part: str, before: str, chars: int, number: int, parts: int) -> str:
    """Return what a model is asked about the part `number` of `parts`, when `before` is what it has written so far."""
    which = f" (part {number} of {parts})" if parts > 1 else ""
    words = chars // CHARS_A_WORD
    if not before:
        return f"Write the notes, in at most {words} words, from this conversation{which}:\n\n{part}"
    return (
        f"These are the notes so far:\n\n{before}\n\nThis was said and done after them{which}:\n\n{part}\n\n"
        f"Write the notes anew, in at most {words} words, so that they hold for all of it."
    )


def question_beside(place: str, chars: int) -> str:
    """Return what a model is asked that has the conversation before it, about all before the message `place`."""
    where = f"«{_flat(place)[:LEAST_LINE]}»" if place.strip() else "(the latest steps: they stay as they are)"
    return _BESIDE.format(system=SYSTEM, words=chars // CHARS_A_WORD, place=where)


def usable_summary(answer: str, chars: int) -> str:
    """Return `answer` as a body, "" when it is none: nothing, or far more than was asked for."""
    text = answer.strip()
    return text if len(text) <= MOST_ANSWER * chars else ""


def split_memory_items(body: str) -> tuple[str, tuple[str, ...]]:
    """Return the notes without what is to be remembered, and the items of that."""
    if (found := _REMEMBER.search(body)) is None:
        return body, ()
    items = (item.strip() for item in _ITEM.split(body[found.end() :]))
    return body[: found.start()].rstrip(), tuple(filter(None, items))


def _is_told(message: Message) -> bool:
    """Return whether `message` is none of what was said: a summary of it, or what is told of the project."""
    return is_project(message) or is_summary(message)


def _words(message: Message) -> str:
    """Return the text of `message` without what stands for archives in it."""
    return "\n".join(block.text for block in message.content if isinstance(block, Text) and not holder_of(block.text))


def _flat(text: str) -> str:
    return " ".join(text.split())
