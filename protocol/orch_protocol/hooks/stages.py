"""The stages at which hooks are called, descriptions of hooks, and records of their actions.

A hook is called with an event and returns None, a patch of the stage, or a decision. A hook cannot be registered for an
action that its stage does not support.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .events import (
    AfterAssess,
    AfterReflect,
    AfterSystemPrompt,
    BeforeArchive,
    BeforeCompaction,
    BeforeReflect,
    BeforeSystemPrompt,
    BeforeTurn,
    Compacted,
    Context,
    CustomEvent,
    Event,
    Failed,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    Output,
    PartArchived,
    ProviderRequest,
    ProviderResponse,
    SessionEnd,
    SessionStart,
    SteeringReceived,
    StepEnd,
    StepStart,
    SubagentFinished,
    SubagentSpawned,
    ToolCall,
    ToolReturn,
    TurnEnd,
    TurnStart,
)
from .options import HookOptions
from .patches import Abort, Approve, Block, Decision, Patch, name_of

__all__ = [
    "ACTED",
    "ALIASES",
    "EVERYTHING",
    "STAGES",
    "HookAction",
    "HookActions",
    "HookRow",
    "HookTally",
    "HooksSpec",
    "Kind",
    "OnError",
    "Stage",
]

Kind: TypeAlias = Literal["observe", "transform", "control"]
OnError: TypeAlias = Literal["open", "closed"]
"""The effect of a hook that fails or times out. "open": the failure has no effect.

"closed": the failure stops the action.
"""


class Stage(Struct, frozen=True):
    """A stage: its event type, its patch type, and the decisions that hooks may return.

    `in_root`: functions of the user's program, which run in the root, can be called at this stage. `by_root`: the root
    creates the event, calls these functions, and notifies the agent's process.
    """

    event: type[Event]
    decisions: tuple[type[Decision], ...] = ()
    aliases: tuple[str, ...] = ()
    in_root: bool = True
    by_root: bool = False

    @property
    def name(self) -> str:
        """The name of the stage."""
        return str(self.event.__struct_config__.tag)

    @property
    def patch(self) -> type[Patch] | None:
        """The patch type of the stage, or None."""
        return self.event.patch_type

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The possible kinds of hooks at this stage, weakest first."""
        found: tuple[tuple[Kind, bool], ...] = (
            ("observe", True),
            ("transform", self.patch is not None),
            ("control", bool(self.decisions)),
        )
        return tuple(kind for kind, allowed in found if allowed)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that a patch may change."""
        return self.patch.__struct_fields__ if self.patch is not None else ()

    @property
    def closed(self) -> type[Block] | type[Abort] | None:
        """The decision that applies if a guard fails: Block if the stage allows it, otherwise Abort, otherwise None."""
        return Block if Block in self.decisions else Abort if Abort in self.decisions else None

    def actions(self, kind: Kind) -> tuple[str, ...]:
        """Return the possible actions of a hook of `kind`: names of fields and of decisions."""
        if kind == "observe":
            return ()
        decisions = tuple(name_of(each) for each in self.decisions) if kind == "control" else ()
        return (*self.fields, *decisions)


STAGES: Final[dict[str, Stage]] = {
    stage.name: stage
    for stage in (
        Stage(SessionStart),
        Stage(SessionEnd, in_root=False),
        Stage(BeforeTurn, (Abort,), ("pre-assess", "before_agent_start")),
        Stage(TurnStart),
        Stage(AfterAssess, (Abort,), ("post-assess",)),
        Stage(BeforeSystemPrompt, (Abort,)),
        Stage(AfterSystemPrompt, (Abort,)),
        Stage(StepStart),
        Stage(Context, (Abort,), ("pre-reason",)),
        Stage(ProviderRequest, (Abort,), ("pre-llm",)),
        Stage(MessageStart),
        Stage(MessageUpdate),
        Stage(ProviderResponse, (Abort,), ("post-llm", "post-reason")),
        Stage(MessageEnd),
        Stage(ToolCall, (Block, Approve, Abort), ("pre-tool",)),
        Stage(ToolReturn, (Block, Abort), ("post-tool",)),
        Stage(StepEnd),
        Stage(SteeringReceived, (Block,)),
        Stage(BeforeReflect, (Block,), ("pre-reflect",)),
        Stage(AfterReflect, (Block,), ("post-reflect",)),
        Stage(Output, (Abort,), ("pre-output",)),
        Stage(TurnEnd, aliases=("post-output",)),
        Stage(BeforeArchive, (Block,)),
        Stage(PartArchived),
        Stage(BeforeCompaction, (Block,)),
        Stage(Compacted),
        Stage(SubagentSpawned, by_root=True),
        Stage(SubagentFinished, by_root=True),
        Stage(CustomEvent, by_root=True),
        Stage(Failed),
    )
}
"""All stages, in the order of a turn."""

ALIASES: Final[dict[str, str]] = {alias: stage.name for stage in STAGES.values() for alias in stage.aliases}
"""Alternative names of stages."""

EVERYTHING: Final = "*"
"""The name that stands for all stages, for a hook that only observes."""


class HookRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a hook for processes that do not have its function.

    `does` lists the actions that the hook can perform.
    """

    name: str
    stages: tuple[str, ...]
    kind: Kind
    priority: int = 50
    seconds: float = 5.0
    on_error: OnError = "open"
    does: tuple[str, ...] = ()
    source: str = ""
    aside: bool = False


class HooksSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The hooks of an agent and of all its subagents.

    `load` names the hooks that the agent's own process imports. `options` are the options of built-in hooks. `switches`
    is the path of the file that lists the disabled hooks.
    """

    load: tuple[str, ...] = ()
    options: HookOptions = HookOptions()
    switches: str = ""


class HookTally(Struct, frozen=True):
    """Statistics of a hook: number and total seconds of its calls, errors, timeouts, and the last error.

    `metrics` maps names to counters that the hook itself reports.
    """

    row: HookRow
    calls: int = 0
    seconds: float = 0.0
    errors: int = 0
    late: int = 0
    last_error: str = ""
    metrics: dict[str, float] = {}


ACTED: Final = "orch.hooks"
"""The type of session entries that record the actions of hooks."""


class HookAction(Struct, frozen=True, omit_defaults=True):
    """The actions of one hook at a stage: names of changed fields, decisions, or an error."""

    hook: str
    stage: str
    actions: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""


class HookActions(Struct, frozen=True, omit_defaults=True):
    """The actions of hooks in the query `turn`, in order. `more` is the number of actions that were left out.

    `deleted` is the time at which the content of the turn was deleted, or "" if it was not deleted.
    """

    turn: str
    acts: tuple[HookAction, ...] = ()
    more: int = 0
    deleted: str = ""

    @classmethod
    def of(cls, data: Any) -> HookActions | None:
        """Return the actions in `data`, the content of a custom entry. Return None if `data` has another format."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError:
            return None


def check_value(kind: type[Patch], name: str, value: Any) -> Any:
    """Return `value` if the patch class `kind` allows it in the field `name`.

    Otherwise raise msgspec.ValidationError.
    """
    expected = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    return msgspec.convert(value, expected)
