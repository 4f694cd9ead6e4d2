"""What a person answers to a question of the console. Nothing but a clear answer is one."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

__all__ = ["APPROVE", "LEAVE", "PLAN", "Consent", "consent", "leaving"]

APPROVE: Final = "allow it? y: once, s: always in this session, p: always in this project, n [reason]: no"
PLAN: Final = "approve this plan? y: yes, n [reason]: no"
LEAVE: Final = "k: keep them, e: end them, s: stay"

YES: Final = {"y": "once", "yes": "once", "s": "session", "p": "project"}
ENDS: Final[dict[str, Literal["keep", "end", "stay"]]] = {
    "": "keep",
    "k": "keep",
    "keep": "keep",
    "e": "end",
    "end": "end",
    "s": "stay",
    "stay": "stay",
}


class Consent(Struct, frozen=True):
    """The answer to what needs approval."""

    allow: bool
    scope: str = "once"
    reason: str = ""


def consent(text: str, *, plan: bool = False) -> Consent | None:
    """Return the answer that `text` is, None when it is none: it may have been on its way before the question came."""
    word, _, rest = text.strip().partition(" ")
    word = word.lower().rstrip(":,")
    if word in ("n", "no"):
        return Consent(False, reason=rest.strip())
    if rest.strip() or word not in YES or (plan and YES[word] != "once"):
        return None
    return Consent(True, YES[word])


def leaving(text: str) -> Literal["keep", "end", "stay"] | None:
    """Return what is to become of those that live on, None when `text` does not say."""
    return ENDS.get(text.strip().lower())
