"""What a model is told besides the conversation, part by part, and by how much of it changes: a tier each."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

__all__ = ["TIERS", "PromptPart", "PromptRules", "PromptSpec", "Tier"]

Tier: TypeAlias = Literal["stable", "context", "volatile"]
"""`stable`: the system text, the same in all requests. `context`: what stands before the first question, on record, and
stays as it was then. `volatile`: what the end of a request says, and no conversation holds."""

TIERS: Final[tuple[Tier, ...]] = ("stable", "context", "volatile")

Tokens = Annotated[int, Meta(ge=50, le=1_000_000)]


class PromptPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a prompt, by its name.

    `source` says where its text is from, `owner` who put it there: `orch`, `project`, `user`, or `hook NAME`.
    """

    name: str
    text: str
    tier: Tier = "volatile"
    source: str = ""
    owner: str = ""

    @property
    def size(self) -> int:
        """Return how many characters it has."""
        return len(self.text)

    @property
    def hash(self) -> str:
        """Return the first twelve hexadecimal digits of the SHA-256 of its text."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:12]


class PromptRules(Struct, frozen=True, forbid_unknown_fields=True):
    """What agents are told besides their task.

    A bound is in estimated tokens, for all parts of a tier together; None is any number.
    """

    time: bool = False
    """Say at the end of each request which day it is."""
    workspace: bool = False
    """Say at the end of each request where the agent works, on which branch, and which files it has changed."""
    stable_tokens: Tokens | None = None
    context_tokens: Tokens | None = None
    volatile_tokens: Tokens | None = None

    def most(self, tier: Tier) -> int | None:
        """Return how many tokens the parts of `tier` may have together, None for any number."""
        return {"stable": self.stable_tokens, "context": self.context_tokens, "volatile": self.volatile_tokens}[tier]


class PromptSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What one agent is told besides its task, and all agents below it go by the same rules.

    `identity` says who it is, in place of what orch says of that; `source` where that is from.
    """

    identity: str | None = None
    source: str = ""
    rules: PromptRules = PromptRules()
