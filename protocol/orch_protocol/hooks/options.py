"""The settings of the hooks that are built in: one struct each, and all of them together; with those of phases."""

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
    """When an agent goes in circles, within one turn."""

    repeats: Annotated[int, Meta(ge=1, le=1000)] = 3
    """So often the same call may give the same result; then it is blocked."""
    edits: Annotated[int, Meta(ge=2, le=1000)] = 6
    """So many changes of one file, and the agent is told to look at it."""


class ContentSafety(Struct, frozen=True, forbid_unknown_fields=True):
    """What is taken out of tool results and replies."""

    kinds: tuple[str, ...] | None = None
    """Names of what is looked for; None is all there is."""


class InjectionGuard(Struct, frozen=True, forbid_unknown_fields=True):
    """From which score on results of tools that look like orders to the model are wrapped, and withheld."""

    wrap: Annotated[float, Meta(gt=0, le=100)] = 4.0
    block: Annotated[float, Meta(gt=0, le=100)] | None = 8.0
    """None: nothing is withheld."""
    tools: tuple[str, ...] | None = None
    """Whose results are looked at; None: those of all."""


class OutputSandbox(Struct, frozen=True, forbid_unknown_fields=True):
    """Which results are shown in part, and kept whole under a handle."""

    chars: Annotated[int, Meta(ge=1000, le=30_000)] = 6_000
    """Longer ones, of which so much is shown."""
    tools: tuple[str, ...] | None = None
    """Whose results; None: those of all tools."""


class Summarization(Struct, frozen=True, forbid_unknown_fields=True):
    """When a conversation becomes shorter before it has to: whichever of these bounds it passes first."""

    mode: Literal["compact", "archive"] | None = None
    """What was said first gives way to a summary, or what is finished goes to archives; unset: to archives where
    archival is on."""
    pct: Annotated[int, Meta(ge=1, le=100)] | None = 60
    """Percent of the model's window."""
    tokens: Annotated[int, Meta(ge=1)] | None = None
    messages: Annotated[int, Meta(ge=2)] | None = None


class NarrationGuard(Struct, frozen=True, forbid_unknown_fields=True):
    """When an agent that says nothing is reminded to."""

    steps: Annotated[int, Meta(ge=1, le=1000)] = 3
    """After so many responses in a row that call tools and say nothing."""


class CompletionChecklist(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent is asked when it stops after changing files."""

    reminders: Annotated[int, Meta(ge=1, le=20)] = 2
    """So often in a turn; then it may stop."""
    ignore: tuple[str, ...] = ("*.md", "*.rst", "*.txt")
    """Patterns of files that need no check."""


class ToolRouter(Struct, frozen=True, forbid_unknown_fields=True):
    """When an agent is told which tools did well for questions like the one it is asked."""

    least: Annotated[float, Meta(gt=0, le=1000)] = 2.5
    """So many turns with a tool, likeness and age taken into account, before anything is said of it."""
    most: Annotated[int, Meta(ge=1, le=100)] = 3
    """So many tools are named."""
    narrow: bool = False
    """Tools that kept failing for such questions cannot be used in the turn."""


class ModelRouter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which models a turn may be answered by, the one that did best at such questions each time."""

    models: tuple[str, ...] = ()
    """Two or more, as `provider:name` or `local`."""
    thrift: Annotated[float, Meta(ge=0, le=10)] = 0.3
    """How much chance of doing well the dearest one has to make up for."""


class CostTracker(Struct, frozen=True, forbid_unknown_fields=True):
    """When agents are told what they have cost."""

    warn_usd: Annotated[float, Meta(gt=0)] | None = None
    """So many dollars of all agents in a day; unset: never."""


class HookOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the hooks that are built in, and of what is done around a turn."""

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
    """The folder of what routers have measured; unset: `evidence` in $ORCH_HOME."""
