"""What happens in an agent: one struct an event. What may be done about it is in `hook_patches`."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from ..core.archives import ArchiveKind
from ..core.messages import Message, StopReason, Usage
from ..core.prompts import PromptPart
from .patches import (
    ArchivePatch,
    AssessmentPatch,
    CompactionPatch,
    ContextPatch,
    OutputPatch,
    Patch,
    PromptPatch,
    ReflectionPatch,
    ReflectPatch,
    RequestPatch,
    ResponsePatch,
    ResultPatch,
    SteeringPatch,
    StepPatch,
    SystemPatch,
    ToolCallPatch,
    TurnPatch,
)

__all__ = [
    "AfterAssess",
    "AfterReflect",
    "AfterSystemPrompt",
    "BeforeArchive",
    "BeforeCompaction",
    "BeforeReflect",
    "BeforeSystemPrompt",
    "BeforeTurn",
    "Compacted",
    "Context",
    "Event",
    "Failed",
    "MessageEnd",
    "MessageStart",
    "MessageUpdate",
    "Output",
    "PartArchived",
    "ProviderRequest",
    "ProviderResponse",
    "SessionEnd",
    "SessionStart",
    "SteeringReceived",
    "StepEnd",
    "StepStart",
    "SubagentFinished",
    "SubagentSpawned",
    "ToolCall",
    "ToolReturn",
    "TurnEnd",
    "TurnStart",
]


class Event(Struct, frozen=True, kw_only=True, tag_field="stage"):
    """Something that happens. `n` counts the events of one process of an agent from 1; `at` is Unix time in seconds.

    `turn` is the query's id; `step` how many responses the turn has had so far.
    """

    takes: ClassVar[type[Patch] | None] = None
    """What may be changed here, None: nothing."""

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
        if self.takes is None:
            raise TypeError(f"{self.stage} is there to be observed: nothing can be changed")
        return self.takes(**changes)


class SessionStart(Event, frozen=True, tag="session_start"):
    """A process of the agent takes its first query, with `messages` in the conversation."""

    messages: int = 0


class SessionEnd(Event, frozen=True, tag="session_end"):
    """The process ends, and was not killed."""


class BeforeTurn(Event, frozen=True, tag="before_turn"):
    """Somebody asks `prompt`, of an agent that may use `tools` and is `model`; nothing is on record yet."""

    takes = TurnPatch
    prompt: str
    tools: tuple[str, ...] = ()
    model: str = ""


class TurnStart(Event, frozen=True, tag="turn_start"):
    """A turn begins with `prompt`."""

    prompt: str


class AfterAssess(Event, frozen=True, tag="after_assess"):
    """What the agent is told of `prompt` besides, which `tools` it may use and which `model` answers, "" for its own.

    `by` is who said so: `rule`, `model`, or "" when nobody was asked.
    """

    takes = AssessmentPatch
    prompt: str
    by: str = ""
    note: str = ""
    tools: tuple[str, ...] = ()
    model: str = ""


class BeforeSystemPrompt(Event, frozen=True, tag="before_system_prompt"):
    """The prompt of a turn is put together of `parts`. With `recorded` those of the context tier are on record already:
    there they stay as they are, and none is added. `dropped` names those that hooks have dropped, there or not."""

    takes = PromptPatch
    parts: tuple[PromptPart, ...]
    dropped: tuple[str, ...] = ()
    recorded: bool = False


class AfterSystemPrompt(Event, frozen=True, tag="after_system_prompt"):
    """The stable parts came to the system text `text`."""

    takes = SystemPatch
    text: str


class StepStart(Event, frozen=True, tag="step_start"):
    """The model is to be asked, with so many `messages` that are about so many `tokens`; its window has `limit`, 0:
    nobody knows. `shorten` is how the conversation is to become shorter before that, "" for not at all."""

    takes = StepPatch
    messages: int = 0
    tokens: int = 0
    limit: int = 0
    shorten: str = ""


class Context(Event, frozen=True, tag="context"):
    """These `messages` are to be sent."""

    takes = ContextPatch
    messages: tuple[Message, ...]


class ProviderRequest(Event, frozen=True, tag="before_provider_request"):
    """This is to be sent. `tail` are last words that are in no conversation; `tools` the names of those on offer."""

    takes = RequestPatch
    provider: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]
    tail: str = ""


class ProviderResponse(Event, frozen=True, tag="after_provider_response"):
    """The model answered `message`, whose text is `text`; nothing is on record yet."""

    takes = ResponsePatch
    provider: str
    model: str
    text: str
    message: Message
    stop_reason: StopReason
    usage: Usage = Usage()


class MessageStart(Event, frozen=True, tag="message_start"):
    """A response begins to arrive. One whose request is made again begins again: it is the `attempt`-th then."""

    provider: str
    model: str
    attempt: int = 1


class MessageUpdate(Event, frozen=True, tag="message_update"):
    """The response goes on with `text`, all of it that came since this was said last."""

    text: str


class MessageEnd(Event, frozen=True, tag="message_end"):
    """The response is on record, with `text` for its text and `calls` to the tools of these names."""

    text: str
    stop_reason: StopReason
    usage: Usage = Usage()
    calls: tuple[str, ...] = ()


class ToolCall(Event, frozen=True, tag="tool_call"):
    """Tool `name` is called. The arguments are the model's own, not checked yet."""

    takes = ToolCallPatch
    id: str
    name: str
    input: dict[str, Any]


class ToolReturn(Event, frozen=True, tag="tool_result"):
    """The call came to `text`, all of it that was captured; one that did not run (`ran`) to why not.

    `most` is how many characters of it are to be shown, None: as many as of any.
    """

    takes = ResultPatch
    id: str
    name: str
    input: dict[str, Any]
    text: str
    is_error: bool = False
    ran: bool = True
    files_changed: tuple[str, ...] = ()
    most: int | None = None


class StepEnd(Event, frozen=True, tag="step_end"):
    """The response is on record, and the results of its calls to the tools `calls`."""

    calls: tuple[str, ...] = ()


class SteeringReceived(Event, frozen=True, tag="steering_received"):
    """`text` was said to the agent while it worked, and it is about to hear it."""

    takes = SteeringPatch
    text: str


class BeforeReflect(Event, frozen=True, tag="before_reflect"):
    """The turn has come to `text`, with so many calls of which so many `failed`, and is to be reflected upon.

    Whoever does that is told `instructions`.
    """

    takes = ReflectPatch
    text: str
    stop_reason: StopReason
    tool_calls: int = 0
    failed: int = 0
    files_changed: tuple[str, ...] = ()
    instructions: str = ""


class AfterReflect(Event, frozen=True, tag="after_reflect"):
    """What came of that: `note` is told to the agent, which goes on (`again`), or put behind the reply. `by` is who
    said so: `rule` or `model`."""

    takes = ReflectionPatch
    by: str
    note: str = ""
    again: bool = False


class Output(Event, frozen=True, tag="before_output"):
    """The turn comes to this reply."""

    takes = OutputPatch
    text: str
    stop_reason: StopReason


class TurnEnd(Event, frozen=True, tag="turn_end"):
    """The reply is on record."""

    text: str
    stop_reason: StopReason
    usage: Usage = Usage()
    tool_calls: int = 0


class BeforeArchive(Event, frozen=True, tag="before_archive"):
    """The part `messages` of the conversation, about `task`, is to go to `holder`; `summary` is to stay of it."""

    takes = ArchivePatch

    holder: str
    kind: ArchiveKind
    task: str
    messages: tuple[Message, ...]
    summary: str


class PartArchived(Event, frozen=True, tag="archived"):
    """What the conversation said of `task` is the holder's now."""

    holder: str
    kind: ArchiveKind
    task: str


class BeforeCompaction(Event, frozen=True, tag="before_compaction"):
    """A summary is to stand for `messages`, the older part of a conversation of about `tokens` tokens.

    `reason` is `size`, `asked` or `refused`: what the provider said of a request that was too long. `summary` is what
    is to stand there, "" while nobody has said that; whoever writes it is told `instructions`.
    """

    takes = CompactionPatch

    reason: str
    messages: tuple[Message, ...]
    tokens: int
    instructions: str = ""
    summary: str = ""


class Compacted(Event, frozen=True, tag="compaction"):
    """`summary` stands for the older part of the conversation, which was `tokens_before` tokens and is `tokens_after`.

    A `supplied` one is a hook's; no model was asked.
    """

    reason: str
    summary: str
    tokens_before: int
    tokens_after: int
    supplied: bool = False


class SubagentSpawned(Event, frozen=True, tag="subagent_spawned"):
    """There is a new agent, `child`, with a `task`. `agent_id` is whose it is, "" for the user's own."""

    child: str
    name: str
    task: str
    preset: str = ""


class SubagentFinished(Event, frozen=True, tag="subagent_finished"):
    """The agent `child` has answered the query `query`, or failed: with an `error` of that name, for no stop reason."""

    child: str
    name: str
    query: str
    stop_reason: str = ""
    error: str = ""
    usage: Usage = Usage()
    tool_calls: int = 0
    files_changed: tuple[str, ...] = ()


class Failed(Event, frozen=True, tag="error"):
    """The turn ended without a reply."""

    kind: str
    message: str
