"""What happens in an agent, and what may be done about it: one struct an event, one patch type, three decisions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from .archive import ArchiveKind
from .messages import Message, StopReason, Usage
from .prompts import PromptPart

__all__ = [
    "Abort",
    "AfterSystemPrompt",
    "Approve",
    "ArchivePatch",
    "BeforeArchive",
    "BeforeCompaction",
    "BeforeSystemPrompt",
    "BeforeTurn",
    "Block",
    "Compacted",
    "CompactionPatch",
    "Context",
    "ContextPatch",
    "Decision",
    "Event",
    "Failed",
    "MessageEnd",
    "MessageStart",
    "MessageUpdate",
    "Output",
    "OutputPatch",
    "PartArchived",
    "Patch",
    "PromptPatch",
    "ProviderRequest",
    "ProviderResponse",
    "RequestPatch",
    "ResponsePatch",
    "ResultPatch",
    "SessionEnd",
    "SessionStart",
    "SteeringPatch",
    "SteeringReceived",
    "StepEnd",
    "StepStart",
    "SubagentFinished",
    "SubagentSpawned",
    "SystemPatch",
    "ToolCall",
    "ToolCallPatch",
    "ToolReturn",
    "TurnEnd",
    "TurnPatch",
    "TurnStart",
    "name_of",
]

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
    """Another prompt, and user messages after it. Both go on record in place of what was asked.

    Of the agent's tools those that are not among `tools` may not be used in this turn. `model`, `provider:name`,
    answers it in place of the agent's own.
    """

    prompt: Words | UnsetType = UNSET
    model: Words | UnsetType = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class PromptPatch(Patch, frozen=True):
    """Parts of the prompt to be added, parts that take the place of those of their names, names of parts to be dropped.

    What is on record of the context tier stays. A volatile part that is replaced or dropped stays so for the turn.
    """

    add: tuple[PromptPart, ...] | UnsetType = UNSET
    replace: tuple[PromptPart, ...] | UnsetType = UNSET
    drop: Texts | UnsetType = UNSET


class SystemPatch(Patch, frozen=True):
    """Another system text, for this turn."""

    text: Words | UnsetType = UNSET


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
    """Another text of the result, before any of it is kept or shown; whether it is an error; and how many characters of
    it are shown at `most`, where the agent can read the rest under a handle."""

    text: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    most: Annotated[int, Meta(ge=1000)] | UnsetType = UNSET


class SteeringPatch(Patch, frozen=True):
    """Other words, and user messages after them."""

    text: Words | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class ArchivePatch(Patch, frozen=True):
    """Another text for what stays, so that no model is asked for one; and lines that are added to it."""

    summary: Words | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class CompactionPatch(Patch, frozen=True):
    """The summary itself, so that no model is asked for one; what one is told besides; and lines that are added."""

    summary: Words | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class OutputPatch(Patch, frozen=True):
    """Another text of the reply. The conversation keeps what the model said."""

    text: str | UnsetType = UNSET


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
    """The model is to be asked."""


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


def name_of(decision: type[Decision]) -> str:
    """Return the name of a decision as an action."""
    return str(decision.__struct_config__.tag)
