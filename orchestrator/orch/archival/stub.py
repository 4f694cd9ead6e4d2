"""What stays in a conversation in place of what was archived, and how it is known again."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from orch_protocol.messages import Message, Text
from orch_worker.estimate import Estimator
from orch_worker.tokens import clip

__all__ = ["HEADS", "Kind", "clip_tokens", "era_prompt", "holder_of", "holders_in", "stub_text"]

Kind: TypeAlias = Literal["turn", "phase", "era"]

HEADS: Final[dict[Kind, str]] = {"turn": "[archived turn]", "phase": "[archived phase]", "era": "[archived turns]"}

_STUB: Final = re.compile(r"\[archived (?:turn|phase|turns)\]\nsubagent_id: ([a-f][0-9a-f]{11})\n")


def stub_text(kind: Kind, id: str, record: str, answer: str = "") -> str:
    """Return what the conversation keeps of the archive `id`: `record`, and the final `answer` if there was one."""
    ending = f"\n\nFinal answer:\n{answer}" if answer else ""
    return f"{HEADS[kind]}\nsubagent_id: {id}\n\n{record}{ending}"


def era_prompt(turns: int) -> str:
    """Return the user message that stands before the stub of `turns` merged turns."""
    return f"[{turns} earlier turns of this conversation]"


def holder_of(text: str) -> str | None:
    """Return the id of the archive that `text` stands for, None when it is no stub."""
    match = _STUB.match(text)
    return match[1] if match else None


def holders_in(message: Message) -> list[str]:
    """Return the ids of the archives that the text blocks of `message` stand for, in order."""
    found = (holder_of(block.text) for block in message.content if isinstance(block, Text))
    return [id for id in found if id]


def clip_tokens(text: str, limit: int, estimator: Estimator, hint: str) -> str:
    """Return `text` in about `limit` tokens: head and tail, and between them what was left out and `hint`."""
    size = estimator.text(text)
    return text if size <= limit else clip(text, len(text) * limit // size, hint)
