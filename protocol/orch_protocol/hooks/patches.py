"""What may be done about an event: one patch type for those at which something can be changed, three decisions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.messages import Message
from ..core.prompts import PromptPart
from ..core.text import scrub

__all__ = [
    "Abort",
    "Approve",
    "ArchivePatch",
    "AssessmentPatch",
    "Block",
    "CompactionPatch",
    "ContextPatch",
    "Decision",
    "OutputPatch",
    "Patch",
    "PromptPatch",
    "ReflectPatch",
    "ReflectionPatch",
    "RequestPatch",
    "ResponsePatch",
    "ResultPatch",
    "SteeringPatch",
    "StepPatch",
    "SystemPatch",
    "ToolCallPatch",
    "TurnPatch",
    "name_of",
    "sound",
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


def sound(said: Decision) -> Decision:
    """Return `said` with a text that can be sent: one whose text is none says what it says without one."""
    kind = next(
        each for each in (Abort, Block, Approve) if isinstance(said, each)
    )  # it may be of a program's own class
    (text,) = kind.__struct_fields__
    value = getattr(said, text)
    return kind(scrub(str.__str__(value))) if isinstance(value, str) else kind()


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


class AssessmentPatch(Patch, frozen=True):
    """Another note to the agent, "" for none; fewer tools in this turn; another model that answers it, "" for its
    own."""

    note: str | UnsetType = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    model: str | UnsetType = UNSET


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


class StepPatch(Patch, frozen=True):
    """Whether the conversation is to become shorter for good before the request: what was said first gives way to a
    summary, or what is finished goes to archives."""

    shorten: Literal["compact", "archive"] | UnsetType = UNSET


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


class ReflectPatch(Patch, frozen=True):
    """What a model that reflects is told besides."""

    instructions: str | UnsetType = UNSET


class ReflectionPatch(Patch, frozen=True):
    """Another note, "" for none; and whether the agent is told it and goes on, as often as it may."""

    note: str | UnsetType = UNSET
    again: bool | UnsetType = UNSET


class OutputPatch(Patch, frozen=True):
    """Another text of the reply. The conversation keeps what the model said."""

    text: str | UnsetType = UNSET


def name_of(decision: type[Decision]) -> str:
    """Return the name of a decision as an action."""
    return str(decision.__struct_config__.tag)
