"""Parts of a prompt besides the conversation. A tier contains the parts that change equally often."""

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
    "Tier",
]

Tier: TypeAlias = Literal["stable", "context", "volatile"]
"""How often the parts of a tier change.

- "stable": the system text, which is the same in all requests
- "context": text recorded before the first prompt and unchanged afterwards
- "volatile": the end of a request, which is not part of the conversation
"""

TIERS: Final[tuple[Tier, ...]] = ("stable", "context", "volatile")

Tokens = Annotated[int, Meta(ge=50, le=1_000_000)]


class PromptPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One named part of a prompt.

    `source` is the origin of the text, such as a file. `owner` is the party that added the part: `orch`, `project`,
    `user`, or `hook NAME`.
    """

    name: str
    text: str
    tier: Tier = "volatile"
    source: str = ""
    owner: str = ""

    @property
    def size(self) -> int:
        """The number of characters of the text."""
        return len(self.text)

    @property
    def hash(self) -> str:
        """The first twelve hexadecimal digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:12]


class PartRow(Struct, frozen=True):
    """A part of the next request. `tokens` is an estimate.

    `change` is the difference from the same part of the last request.
    """

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
    """The prompt of an agent's next request: its parts, and each tier as one text.

    If `asked` is True, the agent's process has already sent a request. In this case, each part shows whether the part
    has changed since that request, and `gone` names the removed parts. `notes` lists truncated texts and unknown facts.
    """

    id: str
    parts: tuple[PartRow, ...]
    texts: dict[Tier, str] = {}
    asked: bool = False
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def render(self, *tiers: Tier) -> str:
        """Return the text of the given tiers, or of all tiers if none is given."""
        return "\n\n".join(text for tier in tiers or TIERS if (text := self.texts.get(tier)))


class PromptResult(Struct, frozen=True, omit_defaults=True):
    """The prompt as the agent's process would send it, or `error`."""

    shown: PromptShown | None = None
    error: ErrorInfo | None = None


class PromptRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Which facts orch adds to prompts, and the maximum size of each tier.

    A limit is the maximum number of estimated tokens for all parts of a tier together. None means no limit.
    """

    time: bool = False
    """Add today's date to the end of each request."""
    workspace: bool = False
    """Add the working folder, git branch and changed files to the end of each request."""
    stable_tokens: Tokens | None = None
    context_tokens: Tokens | None = None
    volatile_tokens: Tokens | None = None

    def token_limit(self, tier: Tier) -> int | None:
        """Return the maximum size of `tier` in tokens. Return None if the tier has no limit."""
        return {"stable": self.stable_tokens, "context": self.context_tokens, "volatile": self.volatile_tokens}[tier]


class PromptConfig(PromptRules, frozen=True, forbid_unknown_fields=True):
    """The prompt settings, and the template that describes the agent's role."""

    template: str | None = None
    """The template for agents that are spawned without a template."""
    templates: tuple[str, ...] = ()
    """Templates besides those in `$ORCH_HOME/prompts`: folders of `*.md` files, single files, or `package:folder`."""
    vars: dict[str, str] = {}
    """Values of variables in templates."""

    @property
    def rules(self) -> PromptRules:
        """The prompt rules without the templates."""
        return PromptRules(**{name: getattr(self, name) for name in PromptRules.__struct_fields__})


class PromptSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The prompt of one agent, and the prompt rules that also apply to its subagents.

    `identity` replaces orch's description of the agent's role. `source` is the origin of this text.
    """

    identity: str | None = None
    source: str = ""
    rules: PromptRules = PromptRules()
