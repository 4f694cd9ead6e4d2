"""Hook events: one struct for each stage. The module `patches` defines the changes that hooks can make."""

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
    CustomPatch,
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
    "CustomEvent",
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
    """Base class of hook events.

    `n` is the number of the event in this process of the agent, counted from 1. `at` is Unix time in seconds. `turn` is
    the query id. `step` is the number of responses in the turn so far.
    """

    patch_type: ClassVar[type[Patch] | None] = None
    """The patch type of the stage. None means that hooks cannot change anything at this stage."""

    n: int = 0
    at: float = 0.0
    agent_id: str = ""
    depth: int = 0
    turn: str = ""
    step: int = 0

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return str(type(self).__struct_config__.tag)

    def patch(self, **changes: Any) -> Patch:
        """Return a patch of the stage with `changes`.

        Raise TypeError for fields that cannot be changed at this stage.
        """
        if self.patch_type is None:
            raise TypeError(f"{self.stage} is a stage for observing hooks: no field can be changed")
        return self.patch_type(**changes)


class SessionStart(Event, frozen=True, tag="session_start"):
    """A process of the agent starts its first query. `messages` is the length of the conversation."""

    messages: int = 0


class SessionEnd(Event, frozen=True, tag="session_end"):
    """The process ends normally. A process that is killed creates no such event."""


class BeforeTurn(Event, frozen=True, tag="before_turn"):
    """A query arrived, and orch has not recorded anything yet. `tools` are the active tools.

    `model` is the agent's model.
    """

    patch_type = TurnPatch
    prompt: str
    tools: tuple[str, ...] = ()
    model: str = ""


class CustomEvent(Event, frozen=True, tag="custom_event"):
    """An event that the user's program created with `emit_event`."""

    patch_type = CustomPatch
    name: str
    data: dict[str, Any] = {}


class TurnStart(Event, frozen=True, tag="turn_start"):
    """A turn begins."""

    prompt: str


class AfterAssess(Event, frozen=True, tag="after_assess"):
    """The prompt was assessed.

    `note` is the text added for the agent. `tools` are the active tools of the turn. `model` is the model for the turn;
    "" means the agent's own model. `by` is "rule", "model", or "" if no assessment took place.
    """

    patch_type = AssessmentPatch
    prompt: str
    by: str = ""
    note: str = ""
    tools: tuple[str, ...] = ()
    model: str = ""


class BeforeSystemPrompt(Event, frozen=True, tag="before_system_prompt"):
    """The prompt of a turn is assembled from `parts`.

    If `recorded` is True, the parts of the context tier are already recorded, and hooks cannot change or extend this
    tier. `dropped` contains all names that hooks dropped, even if no part has the name.
    """

    patch_type = PromptPatch
    parts: tuple[PromptPart, ...]
    dropped: tuple[str, ...] = ()
    recorded: bool = False


class AfterSystemPrompt(Event, frozen=True, tag="after_system_prompt"):
    """The stable parts of the prompt were combined into the system text `text`."""

    patch_type = SystemPatch
    text: str


class StepStart(Event, frozen=True, tag="step_start"):
    """The next request is about to be built.

    `messages` is the number of messages in the conversation, and `tokens` their approximate size in tokens. `limit` is
    the size of the model's context window, or 0 if the size is unknown. `shorten` is "compact" or "archive" if the
    conversation will be shortened before the request. Otherwise `shorten` is "".
    """

    patch_type = StepPatch
    messages: int = 0
    tokens: int = 0
    limit: int = 0
    shorten: str = ""


class Context(Event, frozen=True, tag="context"):
    """The `messages` of the next request."""

    patch_type = ContextPatch
    messages: tuple[Message, ...]


class ProviderRequest(Event, frozen=True, tag="before_provider_request"):
    """A request is about to be sent.

    `tail` is text at the end of the request that is not part of the conversation. `tools` are the names of the tools in
    the request.
    """

    patch_type = RequestPatch
    provider: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]
    tail: str = ""


class ProviderResponse(Event, frozen=True, tag="after_provider_response"):
    """The model returned `message` with the text `text`. The response is not recorded yet."""

    patch_type = ResponsePatch
    provider: str
    model: str
    text: str
    message: Message
    stop_reason: StopReason
    usage: Usage = Usage()


class MessageStart(Event, frozen=True, tag="message_start"):
    """A response begins to arrive. If orch retries a request, the response begins again with a higher `attempt`."""

    provider: str
    model: str
    attempt: int = 1


class MessageUpdate(Event, frozen=True, tag="message_update"):
    """The next piece of the response has arrived. `text` is the text that arrived since the last update."""

    text: str


class MessageEnd(Event, frozen=True, tag="message_end"):
    """The response is recorded. `calls` names the called tools."""

    text: str
    stop_reason: StopReason
    usage: Usage = Usage()
    calls: tuple[str, ...] = ()


class ToolCall(Event, frozen=True, tag="tool_call"):
    """The model calls the tool `name`. The arguments are not validated yet."""

    patch_type = ToolCallPatch
    id: str
    name: str
    input: dict[str, Any]


class ToolReturn(Event, frozen=True, tag="tool_result"):
    """A tool call ended. `text` is the complete captured result.

    If the call did not run (`ran` is False), `text` is the reason. `max_chars` is the maximum number of characters that
    the model sees. None means the default.
    """

    patch_type = ResultPatch
    id: str
    name: str
    input: dict[str, Any]
    text: str
    is_error: bool = False
    ran: bool = True
    files_changed: tuple[str, ...] = ()
    max_chars: int | None = None


class StepEnd(Event, frozen=True, tag="step_end"):
    """The response and the results of its calls are recorded. `calls` names the called tools."""

    calls: tuple[str, ...] = ()


class SteeringReceived(Event, frozen=True, tag="steering_received"):
    """The steering message `text` is about to be added to the conversation."""

    patch_type = SteeringPatch
    text: str


class BeforeReflect(Event, frozen=True, tag="before_reflect"):
    """The agent is about to reflect on the result of the turn.

    `tool_calls` is the number of tool calls, and `failed` the number of failed calls. `instructions` are additional
    instructions for the reflecting model.
    """

    patch_type = ReflectPatch
    text: str
    stop_reason: StopReason
    tool_calls: int = 0
    failed: int = 0
    files_changed: tuple[str, ...] = ()
    instructions: str = ""


class AfterReflect(Event, frozen=True, tag="after_reflect"):
    """The result of a reflection.

    `note` is added to the reply. If `again` is True, the note is sent to the agent instead, and the agent continues.
    `by` is "rule" or "model".
    """

    patch_type = ReflectionPatch
    by: str
    note: str = ""
    again: bool = False


class Output(Event, frozen=True, tag="before_output"):
    """The reply of the turn is about to be returned."""

    patch_type = OutputPatch
    text: str
    stop_reason: StopReason


class TurnEnd(Event, frozen=True, tag="turn_end"):
    """The turn ended and its reply is recorded."""

    text: str
    stop_reason: StopReason
    usage: Usage = Usage()
    tool_calls: int = 0


class BeforeArchive(Event, frozen=True, tag="before_archive"):
    """orch is about to archive the part `messages` of the conversation to `holder`, and to replace this part by
    `summary`.
    """

    patch_type = ArchivePatch

    holder: str
    kind: ArchiveKind
    task: str
    messages: tuple[Message, ...]
    summary: str


class PartArchived(Event, frozen=True, tag="archived"):
    """A part of the conversation was archived."""

    holder: str
    kind: ArchiveKind
    task: str


class BeforeCompaction(Event, frozen=True, tag="before_compaction"):
    """A summary is about to replace `messages`, the older part of a conversation of about `tokens` tokens.

    `reason` is "size", "asked" (a user requested compaction), "hook" (a hook requested it), or "refused" (the provider
    refused a request as too long). `summary` is the summary that a hook supplied, or "" if no hook supplied a summary.
    `instructions` are additional instructions for the model that writes the summary.
    """

    patch_type = CompactionPatch

    reason: str
    messages: tuple[Message, ...]
    tokens: int
    instructions: str = ""
    summary: str = ""


class Compacted(Event, frozen=True, tag="compaction"):
    """`summary` replaced the older part of the conversation.

    `supplied` is True if a hook, and not a model, wrote the summary.
    """

    reason: str
    summary: str
    tokens_before: int
    tokens_after: int
    supplied: bool = False


class SubagentSpawned(Event, frozen=True, tag="subagent_spawned"):
    """The agent `agent_id` spawned the agent `child`. If the user's program spawned the agent, `agent_id` is ""."""

    child: str
    name: str
    task: str
    preset: str = ""


class SubagentFinished(Event, frozen=True, tag="subagent_finished"):
    """The agent `child` answered the query `query`. If the query failed, `error` is the class of the error."""

    child: str
    name: str
    query: str
    stop_reason: str = ""
    error: str = ""
    usage: Usage = Usage()
    tool_calls: int = 0
    files_changed: tuple[str, ...] = ()


class Failed(Event, frozen=True, tag="error"):
    """The turn failed. The turn ended with an error of class `kind` instead of a reply."""

    kind: str
    message: str
