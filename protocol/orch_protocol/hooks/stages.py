"""The stages at which hooks are called, one row each; hooks as data, and what they did.

A hook is called with an event and answers with nothing, with a patch of the stage, or with a decision. What a stage
does not honour is in no row here, and is refused when a hook is registered.
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
    "HookReplies",
    "HookReply",
    "HookRow",
    "HookTally",
    "HooksSpec",
    "Kind",
    "OnError",
    "ReportHooks",
    "RunHook",
    "RunHooks",
    "Stage",
]

Kind: TypeAlias = Literal["observe", "transform", "control"]
OnError: TypeAlias = Literal["open", "closed"]
"""What a hook that fails, or is late, leaves behind: everything as it was, or a decision against."""


class Stage(Struct, frozen=True):
    """One place at which hooks are called: for which event, which patch it takes and which decisions it honours.

    `closed` is the decision that stands in for a guard that failed. `in_root` says that functions of the root's
    program can be called here, `by_root` that the root tells of it, its own functions and the process of the agent.
    """

    event: type[Event]
    decisions: tuple[type[Decision], ...] = ()
    aliases: tuple[str, ...] = ()
    in_root: bool = True
    by_root: bool = False

    @property
    def name(self) -> str:
        """Return the stage's own name."""
        return str(self.event.__struct_config__.tag)

    @property
    def patch(self) -> type[Patch] | None:
        """Return the type of what may be changed."""
        return self.event.takes

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of hook there can be here, the weakest first."""
        found: tuple[tuple[Kind, bool], ...] = (
            ("observe", True),
            ("transform", self.patch is not None),
            ("control", bool(self.decisions)),
        )
        return tuple(kind for kind, allowed in found if allowed)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the names of what a patch may change."""
        return self.patch.__struct_fields__ if self.patch is not None else ()

    @property
    def closed(self) -> type[Block] | type[Abort] | None:
        """Return the decision that stands in for a guard that failed; the mildest one."""
        return Block if Block in self.decisions else Abort if Abort in self.decisions else None

    def actions(self, kind: Kind) -> tuple[str, ...]:
        """Return what a hook of `kind` can do here: the names of fields, and of decisions."""
        if kind == "observe":
            return ()
        decisions = tuple(name_of(each) for each in self.decisions) if kind == "control" else ()
        return (*self.fields, *decisions)


STAGES: Final[dict[str, Stage]] = {
    stage.name: stage
    for stage in (
        Stage(SessionStart),
        Stage(SessionEnd, in_root=False),
        Stage(BeforeTurn, (Abort,), ("pre-assess",)),
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
        Stage(Failed),
    )
}
"""Every stage, in the order in which a turn comes to it."""

ALIASES: Final[dict[str, str]] = {alias: stage.name for stage in STAGES.values() for alias in stage.aliases}
"""The names of pipeline stages, and the stage that each one is."""

EVERYTHING: Final = "*"
"""Stands for all stages, for a hook that observes."""


class HookRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook as data: what is known of it where its function is not. `does` names the actions it may take."""

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
    """The hooks that an agent runs with, and all agents below it.

    `load` names those that its own process imports, `options` are those of built-in ones; `switches` is the path of the
    file that says which are off.
    """

    load: tuple[str, ...] = ()
    options: HookOptions = HookOptions()
    switches: str = ""


class RunHook(Struct, frozen=True, forbid_unknown_fields=True):
    """The hooks `names` of the root are to be called, in order, with an event of `stage`."""

    names: tuple[str, ...]
    stage: str
    event: msgspec.Raw


class RunHooks(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent asks the root to call some of its hooks: those of the first one first."""

    asked: tuple[RunHook, ...]


class HookReply(Struct, frozen=True, omit_defaults=True):
    """What a hook said, within so many seconds: a patch, a decision, neither; or why it said nothing, and whether that
    was the time."""

    patch: msgspec.Raw = msgspec.Raw(b"\xc0")
    decision: Abort | Block | Approve | None = None
    error: str = ""
    late: bool = False
    seconds: float = 0.0


class HookReplies(Struct, frozen=True):
    """What hooks said, in the order in which they were asked for."""

    rows: tuple[HookReply, ...]


class HookTally(Struct, frozen=True):
    """How often a hook was called, how long that took in all, how often nothing came of it, and why the last time.

    `metrics` are what it added up itself, by name.
    """

    row: HookRow
    calls: int = 0
    seconds: float = 0.0
    errors: int = 0
    late: int = 0
    last_error: str = ""
    metrics: dict[str, float] = {}


ACTED: Final = "orch.hooks"
"""The kind of entry of a session that says what hooks did."""


class HookAction(Struct, frozen=True, omit_defaults=True):
    """What one hook did at a stage, in so many seconds: the names of fields that it changed, and decisions; or why
    nothing came of it."""

    hook: str
    stage: str
    actions: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""


class HookActions(Struct, frozen=True, omit_defaults=True):
    """What hooks did in the query `turn`, in order; `more` says how often something that is not here. When all that was
    said in it was deleted, that was on `deleted`."""

    turn: str
    acts: tuple[HookAction, ...] = ()
    more: int = 0
    deleted: str = ""

    @classmethod
    def of(cls, data: Any) -> HookActions | None:
        """Return what `data` of an entry says, None when that is somebody else's."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError:
            return None


class ReportHooks(Struct, frozen=True):
    """What the hooks of one turn did."""

    rows: tuple[HookTally, ...]


def check_value(kind: type[Patch], name: str, value: Any) -> Any:
    """Return `value` if it does for the field `name` of the patch `kind`. Raises msgspec.ValidationError."""
    expected = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    return msgspec.convert(value, expected)
