"""What a model is told besides the conversation, part by part, and by how much of it changes: a tier each."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from .errors import ErrorInfo

__all__ = [
    "TIERS",
    "PartRow",
    "PromptConfig",
    "PromptPart",
    "PromptResult",
    "PromptRules",
    "PromptShown",
    "PromptSpec",
    "ShowPrompt",
    "Tier",
]

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


class PartRow(Struct, frozen=True):
    """A part as it would be said in the next request: `tokens` are estimated, and `change` is since the last one."""

    name: str
    tier: Tier
    text: str
    source: str
    owner: str
    size: int
    tokens: int
    hash: str
    change: Literal["", "new", "changed"] = ""


class PromptShown(Struct, frozen=True):
    """The prompt of an agent, part by part, and each tier as one text, as the next request would say it.

    `asked`: there was a request before, by the process that the agent has; then each part says whether it has changed
    since, and `gone` names those that are said no more. `notes` tell what was cut, and what is not known.
    """

    id: str
    parts: tuple[PartRow, ...]
    texts: dict[Tier, str] = {}
    asked: bool = False
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def render(self, *tiers: Tier) -> str:
        """Return what is said of `tiers`, of all of them unless some are named, as one text."""
        return "\n\n".join(text for tier in tiers or TIERS if (text := self.texts.get(tier)))


class ShowPrompt(Struct, frozen=True, forbid_unknown_fields=True):
    """The prompt of one agent."""

    ref: str


class PromptResult(Struct, frozen=True, omit_defaults=True):
    """The prompt as the agent's process has it; or `error` says why it cannot be told."""

    shown: PromptShown | None = None
    error: ErrorInfo | None = None


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


class PromptConfig(PromptRules, frozen=True, forbid_unknown_fields=True):
    """What agents are told besides their task, and which template says who they are."""

    template: str | None = None
    """The template that says who an agent is, when it is spawned without another."""
    templates: tuple[str, ...] = ()
    """Where templates are, besides `$ORCH_HOME/prompts`: folders of `*.md` files, such files, or `package:folder`."""
    vars: dict[str, str] = {}
    """Values of variables in templates."""

    @property
    def rules(self) -> PromptRules:
        """Return what of it an agent goes by."""
        return PromptRules(**{name: getattr(self, name) for name in PromptRules.__struct_fields__})


class PromptSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What one agent is told besides its task, and all agents below it go by the same rules.

    `identity` says who it is, in place of what orch says of that; `source` where that is from.
    """

    identity: str | None = None
    source: str = ""
    rules: PromptRules = PromptRules()
