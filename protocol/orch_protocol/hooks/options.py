"""Options of the built-in hooks and of the phases around a turn."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..core.phases import Assess, Reflect

__all__ = [
    "CompletionChecklist",
    "ContentSafety",
    "CostTracker",
    "HookOptions",
    "InjectionGuard",
    "LoopDetection",
    "ModelRouter",
    "NarrationGuard",
    "OutputSandbox",
    "Summarization",
    "ToolRouter",
]


class LoopDetection(Struct, frozen=True, forbid_unknown_fields=True):
    """Detect repeated calls and edits within one turn."""

    repeats: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Block a call that has returned the same result this number of times."""
    edits: Annotated[int, Meta(ge=2, le=1000)] = 5
    """Send the agent a note after this number of changes to one file."""


class ContentSafety(Struct, frozen=True, forbid_unknown_fields=True):
    """Redact secrets and payment data in tool results and in replies."""

    kinds: tuple[str, ...] | None = None
    """Names of the patterns to search for. None means all patterns."""


class InjectionGuard(Struct, frozen=True, forbid_unknown_fields=True):
    """Detect tool results that look like instructions to the model.

    Depending on its score, a result is wrapped or withheld.
    """

    wrap: Annotated[float, Meta(gt=0, le=100)] = 4.0
    block: Annotated[float, Meta(gt=0, le=100)] | None = 8.0
    """Score at which a result is withheld. None means that no result is withheld."""
    tools: tuple[str, ...] | None = None
    """Tools whose results are checked. None means all tools."""


class OutputSandbox(Struct, frozen=True, forbid_unknown_fields=True):
    """Show only the beginning of a long result, and store the complete result under a handle."""

    chars: Annotated[int, Meta(ge=1000, le=30_000)] = 6_000
    """Maximum number of characters of a result that the model sees."""
    tools: tuple[str, ...] | None = None
    """Tools whose results are shortened. None means all tools."""


class Summarization(Struct, frozen=True, forbid_unknown_fields=True):
    """Shorten a conversation when it exceeds one of these limits."""

    mode: Literal["compact", "archive"] | None = None
    """"compact": replace older messages by a summary; "archive": archive finished turns.

    None: "archive" if archival is enabled, otherwise "compact".
    """
    pct: Annotated[int, Meta(ge=1, le=100)] | None = 60
    """Percentage of the model's context window."""
    tokens: Annotated[int, Meta(ge=1)] | None = 80_000
    messages: Annotated[int, Meta(ge=2)] | None = None


class NarrationGuard(Struct, frozen=True, forbid_unknown_fields=True):
    """Remind an agent to explain what it does."""

    steps: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Number of consecutive responses that contain tool calls but no text."""


class CompletionChecklist(Struct, frozen=True, forbid_unknown_fields=True):
    """Send the agent a checklist when the agent stops after changing files."""

    reminders: Annotated[int, Meta(ge=1, le=20)] = 2
    """Maximum number of reminders in a turn."""
    ignore: tuple[str, ...] = ("*.md", "*.rst", "*.txt")
    """Patterns of files that need no check."""


class ToolRouter(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell the agent which tools worked well for similar prompts."""

    least: Annotated[float, Meta(gt=0, le=1000)] = 2.5
    """A tool is mentioned only after this number of turns with the tool. Turns are weighted by similarity and age."""
    most: Annotated[int, Meta(ge=1, le=100)] = 3
    """Maximum number of tools that are mentioned."""
    narrow: bool = False
    """For the current turn, disable tools that repeatedly failed for similar prompts."""


class ModelRouter(Struct, frozen=True, forbid_unknown_fields=True):
    """Choose the model of each turn. The choice depends on the results of the models for similar prompts."""

    models: tuple[str, ...] = ()
    """The models to choose from: two or more, as `provider:name` or `local`."""
    thrift: Annotated[float, Meta(ge=0, le=10)] = 0.3
    """Weight of the cost: the amount by which the score of the most expensive model is reduced."""


class CostTracker(Struct, frozen=True, forbid_unknown_fields=True):
    """Warn agents about the cost of their requests."""

    warn_usd: Annotated[float, Meta(gt=0)] | None = None
    """Warn when all agents together cost this number of US dollars in one day. None means that the hook never warns."""


class HookOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of all built-in hooks and of the phases around a turn."""

    assess: Assess = Assess()
    reflect: Reflect = Reflect()
    loop_detection: LoopDetection = LoopDetection()
    content_safety: ContentSafety = ContentSafety()
    injection_guard: InjectionGuard = InjectionGuard()
    narration_guard: NarrationGuard = NarrationGuard()
    output_sandbox: OutputSandbox = OutputSandbox()
    summarization: Summarization = Summarization()
    completion_checklist: CompletionChecklist = CompletionChecklist()
    tool_router: ToolRouter = ToolRouter()
    model_router: ModelRouter = ModelRouter()
    cost_tracker: CostTracker = CostTracker()
    evidence: str = ""
    """The folder with the measurements of the tool router and the model router.

    "": the folder `evidence` in $ORCH_HOME.
    """
