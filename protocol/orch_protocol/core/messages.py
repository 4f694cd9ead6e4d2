"""The one internal shape of a conversation. Providers' own shapes stay in `orch_worker.backends`.

A message is a role and a tuple of blocks. What no block describes travels as `Opaque` and goes back to the provider
it came from unchanged.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .errors import Outcome
from .taint import TaintLabel

__all__ = [
    "INVALID_INPUT",
    "Block",
    "Image",
    "Message",
    "Opaque",
    "Reply",
    "StopReason",
    "Text",
    "Thinking",
    "ToolResult",
    "ToolUse",
    "Usage",
    "assistant",
    "text_of",
    "tool_uses",
    "user",
]

INVALID_INPUT: Final = "invalid_json"
"""The one key in the input of a call whose arguments were no JSON object; its value is how they came."""

StopReason: TypeAlias = Literal[
    "end_turn",
    "tool_use",
    "max_tokens",
    "max_turns",
    "stop_sequence",
    "refusal",
    "cancelled",
    "timeout",
    "budget",
    "aborted",
    "error",
]


CUT_SHORT: Final[dict[str, Outcome]] = {
    "cancelled": "killed",
    "timeout": "timeout",
    "budget": "budget",
    "error": "failed",
}


class Text(Struct, frozen=True, gc=False, tag="text"):
    """Plain text."""

    text: str


class Thinking(Struct, frozen=True, gc=False, tag="thinking", omit_defaults=True):
    """A model's reasoning; `signature` must return byte for byte to `provider`, and to it alone."""

    thinking: str
    signature: str | None = None
    provider: str = ""


class Image(Struct, frozen=True, gc=False, tag="image"):
    """An image: base64 `data` of type `media_type` (image/png, image/jpeg, image/gif, image/webp)."""

    media_type: str
    data: str


class ToolUse(Struct, frozen=True, gc=False, tag="tool_use"):
    """A call the model asks for. `input` is the parsed argument object."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResult(Struct, frozen=True, gc=False, tag="tool_result", omit_defaults=True):
    """The one answer to the `ToolUse` with id `tool_use_id`."""

    tool_use_id: str
    content: tuple[Text | Image, ...]
    is_error: bool = False


class Opaque(Struct, frozen=True, gc=False, tag="opaque"):
    """A provider's own block, kept as it came (`raw` is JSON data) and shown to that provider alone."""

    provider: str
    raw: Any


Block: TypeAlias = Text | Thinking | Image | ToolUse | ToolResult | Opaque


class Message(Struct, frozen=True, gc=False):
    """One message of a conversation. Tool results live in user messages."""

    role: Literal["user", "assistant", "system"]
    content: tuple[Block, ...]


class Usage(Struct, frozen=True, gc=False):
    """What was used: tokens and money, responses of models, calls of tools and the seconds these ran.

    `cost_usd` is a floor while `cost_known` is false (a price was missing), but for `ceiling_usd` of it: that was
    charged by what is configured for tokens without a price, and is an estimate.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    cost_known: bool = True
    model_calls: int = 0
    tool_calls: int = 0
    tool_seconds: float = 0.0
    ceiling_usd: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cost_usd + other.cost_usd,
            self.cost_known and other.cost_known,
            self.model_calls + other.model_calls,
            self.tool_calls + other.tool_calls,
            self.tool_seconds + other.tool_seconds,
            self.ceiling_usd + other.ceiling_usd,
        )

    def of_a_response(self) -> Usage:
        """Return this as what one response of a model took."""
        return msgspec.structs.replace(self, model_calls=1)


class Reply(Struct, frozen=True, gc=False):
    """What a turn came to: prompt to final reply.

    `id` is the agent's, `query_id` the turn's. `steps` counts model responses, `tool_calls` the calls that ran: a
    "done" with zero of them is visible as such. `files_changed` are paths relative to the agent's cwd. `archived_to` is
    the holder of the turn if it was archived before the reply was given: with asynchronous archival it is None, and the
    event `archived` names holder and query. `unfinished` names the tools whose calls the end of the turn cut off, or
    kept from running. A `local` one is for models of this machine alone. `warning` says what was wrong with the agent's
    transcript when it was opened for this turn: what it does not remember any more. `marks` are what its conversation
    holds that is untrusted or sensitive, which whoever takes the reply over then holds too. A text that was too long is
    there without its middle, and `whole` is the agent's handle of all of it, "" where it could not be kept. `denied`
    counts the calls, of the agent and of its subagents, that needed approval and were denied because nobody could be
    asked.
    """

    id: str
    query_id: str
    text: str
    stop_reason: StopReason = "end_turn"
    usage: Usage = Usage()
    tool_calls: int = 0
    files_changed: tuple[str, ...] = ()
    steps: int = 0
    archived_to: str | None = None
    unfinished: tuple[str, ...] = ()
    local: bool = False
    warning: str = ""

    @property
    def outcome(self) -> Outcome:
        """How the turn ended: `done`, or cut short."""
        return CUT_SHORT.get(self.stop_reason, "done")

    marks: tuple[TaintLabel, ...] = ()
    whole: str = ""
    denied: int = 0


def user(text: str) -> Message:
    """Return a user message holding `text`."""
    return Message("user", (Text(text),))


def assistant(text: str) -> Message:
    """Return an assistant message holding `text`."""
    return Message("assistant", (Text(text),))


def text_of(message: Message) -> str:
    """Return the text blocks of `message`, joined by blank lines."""
    return "\n\n".join(block.text for block in message.content if isinstance(block, Text))


def tool_uses(message: Message) -> list[ToolUse]:
    """Return the calls in `message`, in order."""
    return [block for block in message.content if isinstance(block, ToolUse)]
