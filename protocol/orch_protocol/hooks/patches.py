"""The return values of hooks: a patch type for each stage with changeable fields, and three decisions."""

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
    "CustomPatch",
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
    "with_valid_text",
]

NonBlankText = Annotated[str, Meta(pattern=r"\S")]
Texts = tuple[NonBlankText, ...]


class Abort(Struct, frozen=True, tag="abort"):
    """End the turn with `message` as the reply."""

    message: str = "A hook ended the turn."


class Block(Struct, frozen=True, tag="block"):
    """Prevent the call, result or message. `reason` replaces the prevented content."""

    reason: str = "a hook does not allow it"


class Approve(Struct, frozen=True, tag="approve"):
    """Run the call without asking an approver, but only with exactly these arguments. A denied call stays denied."""

    reason: str = ""


Decision: TypeAlias = Abort | Block | Approve


def with_valid_text(decision: Decision) -> Decision:
    """Return the decision `decision` with text that can be encoded as UTF-8.

    Replace a text that is not a string by the default.
    """
    kind = next(
        each for each in (Abort, Block, Approve) if isinstance(decision, each)
    )  # The program may pass a subclass.
    (text,) = kind.__struct_fields__
    value = getattr(decision, text)
    return kind(scrub(str.__str__(value))) if isinstance(value, str) else kind()


class Patch(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of patches. Unset fields are not changed."""


class TurnPatch(Patch, frozen=True):
    """Replace the prompt, and add user messages after the prompt.

    The session records the new texts instead of the original prompt.

    `tools` limits the agent's tools for this turn. `model` (`provider:name`) is the model for this turn.
    """

    prompt: NonBlankText | UnsetType = UNSET
    model: NonBlankText | UnsetType = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class AssessmentPatch(Patch, frozen=True):
    """Replace the note, the active tools of this turn, or the model of this turn.

    "" means no note, or the agent's own model.
    """

    note: str | UnsetType = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    model: str | UnsetType = UNSET


class PromptPatch(Patch, frozen=True):
    """Add parts to the prompt, replace parts of the same name, or drop parts by name.

    Recorded parts of the context tier do not change. A change of a volatile part applies to this turn only.
    """

    add: tuple[PromptPart, ...] | UnsetType = UNSET
    replace: tuple[PromptPart, ...] | UnsetType = UNSET
    drop: Texts | UnsetType = UNSET


class SystemPatch(Patch, frozen=True):
    """Replace the system text during this turn."""

    text: NonBlankText | UnsetType = UNSET


class StepPatch(Patch, frozen=True):
    """Shorten the conversation permanently before the request, by compaction or archiving."""

    shorten: Literal["compact", "archive"] | UnsetType = UNSET


class ContextPatch(Patch, frozen=True):
    """Replace the messages of this request, and add user messages at the end. The conversation does not change."""

    messages: tuple[Message, ...] | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class CustomPatch(Patch, frozen=True):
    """Replace the data of an event of the program."""

    data: dict[str, Any] | UnsetType = UNSET


class RequestPatch(Patch, frozen=True):
    """Replace the system text of this request, and the text at the end of this request."""

    system: str | UnsetType = UNSET
    tail: str | UnsetType = UNSET


class ResponsePatch(Patch, frozen=True):
    """Replace all text of the response before it is recorded. The tool calls of the response do not change."""

    text: str | UnsetType = UNSET


class ToolCallPatch(Patch, frozen=True):
    """Replace the arguments of the call.

    The new arguments are validated and checked by the policy like those of the model.
    """

    input: dict[str, Any] | UnsetType = UNSET


class ResultPatch(Patch, frozen=True):
    """Replace the text of the result before it is stored or shown, the error status, or the number of shown characters.

    If `max_chars` is set, the agent can read the rest of the text through a handle.
    """

    text: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    max_chars: Annotated[int, Meta(ge=1000)] | UnsetType = UNSET


class SteeringPatch(Patch, frozen=True):
    """Replace the text of the steering message, and add user messages after the message."""

    text: NonBlankText | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class ArchivePatch(Patch, frozen=True):
    """Supply the text of the record, so that no model writes it, and add lines to the record."""

    summary: NonBlankText | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class CompactionPatch(Patch, frozen=True):
    """Supply the summary, so that no model writes a summary.

    Or add instructions for the model, or lines to the summary.
    """

    summary: NonBlankText | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    inject: Texts | UnsetType = UNSET


class ReflectPatch(Patch, frozen=True):
    """Add instructions for the reflecting model."""

    instructions: str | UnsetType = UNSET


class ReflectionPatch(Patch, frozen=True):
    """Replace the note ("" means no note), and decide whether the agent continues with the note.

    The configured maximum number of continuations still applies.
    """

    note: str | UnsetType = UNSET
    again: bool | UnsetType = UNSET


class OutputPatch(Patch, frozen=True):
    """Replace the text of the reply. The conversation keeps the model's text."""

    text: str | UnsetType = UNSET


def name_of(decision: type[Decision]) -> str:
    """Return the name of a decision, as used in HookAction."""
    return str(decision.__struct_config__.tag)
