"""What a reflection upon a turn comes to, by rules or by a model's words. Pure.

What is looked at is what was measured: which calls were made and which of them failed, which files changed; and the
words of question and reply.
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
from .phase_prompts import understood

__all__ = ["SYSTEM", "CallSummary", "Reflection", "TurnOutcome", "by_rules", "of_words", "question"]

MOST_NOTE: Final = 2_000
MOST_SHOWN: Final = 200
LEAST_CHARS: Final = 2_000
SYSTEM: Final = """\
You check the work of an agent: what it was asked, what it did, and what it is about to answer. You see which calls it \
made and how they came out, and nothing that it did not do. Answer with one JSON object and nothing else:
{"verdict": "done", "note": ""}

verdict: "done" when the answer does what was asked and is borne out by what was done. "again" when something was \
missed, is not borne out, or failed, and the agent could still do it: note says, in at most three sentences, what. \
"note" when whoever asked should know something that the answer does not say: note says it.
Do not repeat the answer, do not praise it, and do not ask for what was not asked for."""
LAST_FAILED: Final = (
    "The last call of this turn, {name}, failed: {text}\nPut that right, or say plainly what was not done and why."
)


class CallSummary(Struct, frozen=True):
    """A call that was made in the turn: its tool, what it came to in a line, and whether that was an error."""

    name: str
    text: str
    is_error: bool = False


class TurnOutcome(Struct, frozen=True):
    """What a turn came to."""

    prompt: str
    reply: str
    stop: StopReason
    calls: tuple[CallSummary, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it went wrong, by what was measured."""
        return self.stop != "end_turn" or not self.reply.strip() or bool(self.calls and self.calls[-1].is_error)


class Reflection(Struct, frozen=True):
    """What is to be done: nothing, or `note` is told to the agent, which goes on (`again`), or put behind the reply."""

    note: str = ""
    again: bool = False

    @property
    def did(self) -> tuple[str, ...]:
        """What it comes to, in a word."""
        return ("again",) if self.again else ("note",) if self.note else ("done",)


class _ReflectionReply(Struct):
    """What a model is to answer."""

    verdict: Literal["done", "again", "note"]
    note: Annotated[str, Meta(max_length=MOST_NOTE)] = ""


def by_rules(rules: Sequence[ReflectRule], outcome: TurnOutcome) -> Reflection | None:
    """Return what the first rule says that fits, None when none does."""
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


def question(outcome: TurnOutcome, tokens: int) -> str:
    """Return what a model is asked about a turn, in about `tokens` tokens at most."""
    chars = max(LEAST_CHARS, tokens * CHARS_PER_TOKEN - len(SYSTEM))
    lines = [f"{'failed' if each.is_error else 'done'}: {each.name}: {each.text}" for each in outcome.calls]
    calls = _clipped("\n".join(lines) or "none", chars // 2)
    files = ", ".join(outcome.files) or "none"
    asked, said = (_clipped(text, chars // 4) for text in (outcome.prompt, outcome.reply))
    return (
        f"It was asked:\n{asked}\n\nIts calls, in order:\n{calls}\n\nFiles that it changed: {_clipped(files, 1000)}\n\n"
        f"It ended with {outcome.stop!r}, and is about to answer:\n{said or '(nothing)'}"
    )


def of_words(said: str) -> Reflection:
    """Return what a model's answer comes to. Raises ValueError for one that is none."""
    words = understood(said, _ReflectionReply)
    note = words.note.strip()
    if words.verdict == "done":
        return Reflection()
    if not note:
        raise ValueError(f"the verdict is {words.verdict!r}, and there is no note")
    return Reflection(note, again=words.verdict == "again")


def line_of(text: str) -> str:
    """Return what is kept of the result of a call."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}..."


def _clipped(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    return f"{text[: chars // 2]}\n[... {len(text) - chars:,} characters ...]\n{text[-(chars // 2) :]}"
