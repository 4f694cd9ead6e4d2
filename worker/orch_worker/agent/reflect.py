"""Reflect on a turn by rules or with a model's answer. This module does no I/O.

A reflection uses measured facts: the calls, the failed calls, the changed files, and the texts of prompt and reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from orch_protocol.core.messages import StopReason
from orch_protocol.core.phases import ReflectRule

from ..conversation.tokens import CHARS_PER_TOKEN
from .side_requests import parse_answer

__all__ = ["SYSTEM", "CallSummary", "Reflection", "TurnOutcome", "apply_rules", "parse_result", "request_text"]

MAX_NOTE: Final = 2_000
MAX_SHOWN: Final = 200
MIN_CHARS: Final = 2_000
SYSTEM: Final = """\
You check the work of an agent: the request, the agent's calls with their results, and the answer that it is about to \
give. Answer with one JSON object and nothing else:
{"verdict": "done", "note": ""}

verdict: "done" if the answer does what was requested and the calls support the answer. "again" if something is \
missing, unsupported or failed, and the agent can still do it: `note` says what, in at most three sentences. "note" if \
the user should know something that the answer does not mention: `note` contains it.
Do not repeat or praise the answer, and do not request anything that the user did not request."""
LAST_FAILED: Final = (
    "The last call of this turn, {name}, failed: {text}\n"
    "Correct the failure, or state clearly what was not done and why."
)


class CallSummary(Struct, frozen=True):
    """A call of the turn: its tool, its result in one line, and whether it failed."""

    name: str
    text: str
    is_error: bool = False


class TurnOutcome(Struct, frozen=True):
    """The outcome of a turn."""

    prompt: str
    reply: str
    stop: StopReason
    calls: tuple[CallSummary, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the turn failed according to measured facts."""
        return self.stop != "end_turn" or not self.reply.strip() or bool(self.calls and self.calls[-1].is_error)


class Reflection(Struct, frozen=True):
    """The result of a reflection.

    If `again` is True, the turn continues with `note`. Otherwise `note` is appended to the reply.
    """

    note: str = ""
    again: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """The action of the reflection, as one word."""
        return ("again",) if self.again else ("note",) if self.note else ("done",)


class _ReflectionReply(Struct):
    """The format of the model's answer."""

    verdict: Literal["done", "again", "note"]
    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""


def apply_rules(rules: Sequence[ReflectRule], outcome: TurnOutcome) -> Reflection | None:
    """Return the reflection of the first rule that matches, or None."""
    if not rules:
        last = outcome.calls[-1] if outcome.calls else None
        if last is None or not last.is_error:
            return None
        return Reflection(LAST_FAILED.format(name=last.name, text=last.text), again=True)
    for rule in rules:
        failed = sum(call.is_error for call in outcome.calls)
        changed = not rule.changed or any(fnmatchcase(path, rule.changed) for path in outcome.files)
        if failed >= rule.failed and changed and re.search(rule.reply, outcome.reply):
            return Reflection(rule.note, rule.again)
    return None


def request_text(outcome: TurnOutcome, tokens: int) -> str:
    """Return the request that asks a model to reflect on a turn. The request has at most about `tokens` tokens."""
    chars = max(MIN_CHARS, tokens * CHARS_PER_TOKEN - len(SYSTEM))
    lines = [f"{'failed' if each.is_error else 'done'}: {each.name}: {each.text}" for each in outcome.calls]
    calls = _clip_middle("\n".join(lines) or "none", chars // 2)
    files = ", ".join(outcome.files) or "none"
    prompt, reply = (_clip_middle(text, chars // 4) for text in (outcome.prompt, outcome.reply))
    return (
        f"It was asked:\n{prompt}\n\nIts calls, in order:\n{calls}\n\n"
        f"Files that it changed: {_clip_middle(files, 1000)}\n\n"
        f"It ended with {outcome.stop!r}, and is about to answer:\n{reply or '(nothing)'}"
    )


def parse_result(text: str) -> Reflection:
    """Return the reflection that a model's answer `text` contains. Raise ValueError for an invalid answer."""
    reply = parse_answer(text, _ReflectionReply)
    note = reply.note.strip()
    if reply.verdict == "done":
        return Reflection()
    if not note:
        raise ValueError(f"the verdict {reply.verdict!r} needs a note")
    return Reflection(note, again=reply.verdict == "again")


def line_of(text: str) -> str:
    """Return the result of a call as one short line."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}..."


def _clip_middle(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    return f"{text[: max_chars // 2]}\n[... {len(text) - max_chars:,} characters ...]\n{text[-(max_chars // 2) :]}"
