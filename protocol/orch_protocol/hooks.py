"""What happens in an agent, and what may be done about it: one struct an event, one patch type and one row a stage.

A hook is called with an event and answers with nothing, with a patch of the stage, or with a decision. What a stage
does not honour is in no row here, and is refused when a hook is registered.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from .hook_options import HookOptions
from .messages import Message, StopReason, Usage

__all__ = [
    "ABSENT",
    "ALIASES",
    "EVERYTHING",
    "STAGES",
    "Abort",
    "Approve",
    "BeforeTurn",
    "Block",
    "Context",
    "ContextPatch",
    "Decision",
    "Event",
    "Failed",
    "HookRow",
    "HookSaid",
    "HookTally",
    "HooksRan",
    "HooksSpec",
    "Kind",
    "OnError",
    "Output",
    "OutputPatch",
    "Patch",
    "ProviderRequest",
    "ProviderResponse",
    "RequestPatch",
    "ResponsePatch",
    "ResultPatch",
    "RunHook",
    "SessionEnd",
    "SessionStart",
    "Stage",
    "SteeringPatch",
    "SteeringReceived",
    "StepEnd",
    "StepStart",
    "ToolCall",
    "ToolCallPatch",
    "ToolReturn",
    "TurnEnd",
    "TurnPatch",
    "TurnStart",
]

Kind: TypeAlias = Literal["observe", "transform", "control"]
OnError: TypeAlias = Literal["open", "closed"]
"""What a hook that fails, or is late, leaves behind: everything as it was, or a decision against."""

Words = Annotated[str, Meta(pattern=r"\S")]
Texts = tuple[Words, ...]


class Abort(Struct, frozen=True, tag="abort"):
    """End the turn. `message` is the reply."""

    message: str = "A hook ended the turn."


class Block(Struct, frozen=True, tag="block"):
    """Let this one thing not happen: the call, the result, what was said. `reason` stands in its place."""

    reason: str = "a hook does not allow it"


class Approve(Struct, frozen=True, tag="approve"):
    """Let the call run, with exactly these arguments, where a person would be asked. What is denied stays denied."""

    reason: str = ""


Decision: TypeAlias = Abort | Block | Approve


class Patch(Struct, frozen=True, forbid_unknown_fields=True):
    """What a hook changes. Fields that are not given stay as they are."""


class TurnPatch(Patch, frozen=True):
    """Another prompt, and user messages after it. Both go on record in place of what was asked."""

    prompt: Words | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class ContextPatch(Patch, frozen=True):
    """Other messages for this request, and user messages at their end. The conversation itself stays as it is."""

    messages: tuple[Message, ...] | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class RequestPatch(Patch, frozen=True):
    """Another system text and other last words, for this request."""

    system: str | UnsetType = UNSET
    tail: str | UnsetType = UNSET


class ResponsePatch(Patch, frozen=True):
    """Another text of the response, in place of all of its text, before it goes on record. Its calls stay."""

    text: str | UnsetType = UNSET


class ToolCallPatch(Patch, frozen=True):
    """Other arguments, which are checked and judged like the model's own."""

    input: dict[str, Any] | UnsetType = UNSET


class ResultPatch(Patch, frozen=True):
    """Another text of the result, before any of it is kept or shown; and whether it is an error."""

    text: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET


class SteeringPatch(Patch, frozen=True):
    """Other words, and user messages after them."""

    text: Words | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class OutputPatch(Patch, frozen=True):
    """Another text of the reply. The conversation keeps what the model said."""

    text: str | UnsetType = UNSET


class Event(Struct, frozen=True, kw_only=True, tag_field="stage"):
    """Something that happens. `n` counts the events of one process of an agent from 1; `at` is Unix time in seconds.

    `turn` is the query's id; `step` how many responses the turn has had so far.
    """

    n: int = 0
    at: float = 0.0
    agent_id: str = ""
    depth: int = 0
    turn: str = ""
    step: int = 0

    @property
    def stage(self) -> str:
        """Return the name of the stage."""
        return str(type(self).__struct_config__.tag)

    def patch(self, **changes: Any) -> Patch:
        """Return the stage's patch with `changes`. Raises TypeError for what cannot be changed here."""
        kind = STAGES[self.stage].patch
        if kind is None:
            raise TypeError(f"{self.stage} is there to be observed: nothing can be changed")
        return kind(**changes)


class SessionStart(Event, frozen=True, tag="session_start"):
    """A process of the agent takes its first query, with `messages` in the conversation."""

    messages: int = 0


class SessionEnd(Event, frozen=True, tag="session_end"):
    """The process ends, and was not killed."""


class BeforeTurn(Event, frozen=True, tag="before_turn"):
    """Somebody asks `prompt`; nothing is on record yet."""

    prompt: str


class TurnStart(Event, frozen=True, tag="turn_start"):
    """A turn begins with `prompt`."""

    prompt: str


class StepStart(Event, frozen=True, tag="step_start"):
    """The model is to be asked."""


class Context(Event, frozen=True, tag="context"):
    """These `messages` are to be sent."""

    messages: tuple[Message, ...]


class ProviderRequest(Event, frozen=True, tag="before_provider_request"):
    """This is to be sent. `tail` are last words that are in no conversation; `tools` the names of those on offer."""

    provider: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]
    tail: str = ""


class ProviderResponse(Event, frozen=True, tag="after_provider_response"):
    """The model answered `message`, whose text is `text`; nothing is on record yet."""

    provider: str
    model: str
    text: str
    message: Message
    stop_reason: StopReason
    usage: Usage = Usage()


class ToolCall(Event, frozen=True, tag="tool_call"):
    """Tool `name` is called. The arguments are the model's own, not checked yet."""

    id: str
    name: str
    input: dict[str, Any]


class ToolReturn(Event, frozen=True, tag="tool_result"):
    """The call came to `text`, all of it that was captured; one that did not run (`ran`) to why not."""

    id: str
    name: str
    input: dict[str, Any]
    text: str
    is_error: bool = False
    ran: bool = True
    files_changed: tuple[str, ...] = ()


class StepEnd(Event, frozen=True, tag="step_end"):
    """The response is on record, and the results of its calls to the tools `calls`."""

    calls: tuple[str, ...] = ()


class SteeringReceived(Event, frozen=True, tag="steering_received"):
    """`text` was said to the agent while it worked, and it is about to hear it."""

    text: str


class Output(Event, frozen=True, tag="before_output"):
    """The turn comes to this reply."""

    text: str
    stop_reason: StopReason


class TurnEnd(Event, frozen=True, tag="turn_end"):
    """The reply is on record."""

    text: str
    stop_reason: StopReason
    usage: Usage = Usage()
    tool_calls: int = 0


class Failed(Event, frozen=True, tag="error"):
    """The turn ended without a reply."""

    kind: str
    message: str


class Stage(Struct, frozen=True):
    """One place at which hooks are called: for which event, which patch it takes and which decisions it honours.

    `closed` is the decision that stands in for a guard that failed. `in_root` says that functions of the root's
    program can be called here.
    """

    event: type[Event]
    patch: type[Patch] | None = None
    decisions: tuple[type[Decision], ...] = ()
    aliases: tuple[str, ...] = ()
    in_root: bool = True

    @property
    def name(self) -> str:
        """Return the stage's own name."""
        return str(self.event.__struct_config__.tag)

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


def name_of(decision: type[Decision]) -> str:
    """Return the name of a decision as an action."""
    return str(decision.__struct_config__.tag)


STAGES: Final[dict[str, Stage]] = {
    stage.name: stage
    for stage in (
        Stage(SessionStart),
        Stage(SessionEnd, in_root=False),
        Stage(BeforeTurn, TurnPatch, (Abort,), ("pre-assess", "post-assess")),
        Stage(TurnStart),
        Stage(StepStart),
        Stage(Context, ContextPatch, (Abort,), ("pre-reason",)),
        Stage(ProviderRequest, RequestPatch, (Abort,), ("pre-llm",)),
        Stage(ProviderResponse, ResponsePatch, (Abort,), ("post-llm", "post-reason")),
        Stage(ToolCall, ToolCallPatch, (Block, Approve, Abort), ("pre-tool",)),
        Stage(ToolReturn, ResultPatch, (Block, Abort), ("post-tool",)),
        Stage(StepEnd),
        Stage(SteeringReceived, SteeringPatch, (Block,)),
        Stage(Output, OutputPatch, (Abort,), ("pre-output",)),
        Stage(TurnEnd, aliases=("post-output",)),
        Stage(Failed),
    )
}
"""Every stage, in the order in which a turn comes to it."""

ALIASES: Final[dict[str, str]] = {alias: stage.name for stage in STAGES.values() for alias in stage.aliases}
"""The names of pipeline stages, and the stage that each one is."""

ABSENT: Final[dict[str, str]] = dict.fromkeys(
    ("pre-reflect", "post-reflect"), "a turn is not reflected upon, so it would never be called; turn_end comes last"
)
"""Names that are known elsewhere and stand for nothing here, and why."""

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
    """An agent asks the root to call its hook `name` with an event of `stage`."""

    name: str
    stage: str
    event: msgspec.Raw


class HookSaid(Struct, frozen=True):
    """What a hook said: a patch, a decision, neither; or why it said nothing, and whether that was the time."""

    patch: msgspec.Raw = msgspec.Raw(b"\xc0")
    decision: Abort | Block | Approve | None = None
    error: str = ""
    late: bool = False


class HookTally(Struct, frozen=True):
    """How often a hook was called, how long that took in all, how often nothing came of it, and why the last time."""

    row: HookRow
    calls: int = 0
    seconds: float = 0.0
    errors: int = 0
    late: int = 0
    last_error: str = ""


class HooksRan(Struct, frozen=True):
    """What the hooks of one turn did."""

    rows: tuple[HookTally, ...]


def check_value(kind: type[Patch], name: str, value: Any) -> Any:
    """Return `value` if it does for the field `name` of the patch `kind`. Raises msgspec.ValidationError."""
    expected = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    return msgspec.convert(value, expected)
