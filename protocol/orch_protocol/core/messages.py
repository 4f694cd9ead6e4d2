"""Messages of a conversation, independent of the provider.

`orch_worker.backends` converts messages to the formats of providers.

A message is a role and a tuple of blocks. An `Opaque` block contains a provider's content that fits no other block
type. orch sends an `Opaque` block unchanged to the same provider.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from .errors import ConfigError, Outcome
from .images import image_size, image_text, is_complete, media_type_of, size_of
from .taint import TaintLabel
from .worktrees import WorktreeReport

__all__ = [
    "COMPLETE_STOPS",
    "INCOMPLETE_STOPS",
    "INVALID_INPUT",
    "MAX_ENCODED",
    "MAX_TOTAL_ENCODED",
    "Block",
    "Image",
    "Message",
    "Opaque",
    "Prompt",
    "Reply",
    "StopReason",
    "Text",
    "Thinking",
    "ToolResult",
    "ToolUse",
    "Usage",
    "assistant",
    "check_images",
    "images_in",
    "place_images",
    "prompt_of",
    "text_of",
    "tool_uses",
    "user",
]

INVALID_INPUT: Final = "invalid_json"
"""If the arguments of a call were not a JSON object, the call's input has only this key.

The value of the key is the received text.
"""

MAX_ENCODED: Final = 5 << 20
"""Maximum characters of an image in base64.

Providers count the base64 characters, so a file may have at most three quarters of this number of bytes.
"""
MAX_TOTAL_ENCODED: Final = 20 << 20
"""Maximum characters of the images of a message, and of a request. Providers accept requests of about 30 MB."""
MAX_PIXELS: Final = 8000
"""Maximum width and height of an image."""

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
COMPLETE_STOPS: Final = frozenset({"end_turn", "stop_sequence"})
"""Stop reasons of complete answers."""
INCOMPLETE_STOPS: Final = frozenset({"max_tokens", "budget", "refusal", "error"})
"""Stop reasons of responses that may be incomplete: their text and their calls cannot be used."""

COMPLETE: Final = frozenset({"end_turn", "stop_sequence"})
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
    """The reasoning of a model. Send `signature` unchanged to `model` of `provider`, and to no other model.

    `model` is "" if the model is unknown, or if there is no signature.
    """

    thinking: str
    signature: str | None = None
    provider: str = ""
    model: str = ""


class Image(Struct, frozen=True, gc=False, tag="image", omit_defaults=True):
    """An image: base64 `data` of type `media_type` (image/png, image/jpeg, image/gif, image/webp), and a file name.

    `Image.open` and `Image.from_bytes` detect the media type.
    """

    media_type: str
    data: str
    name: str = ""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Image:
        """Return the image in the file `path`: PNG, JPEG, GIF or WebP, of at most 3.75 MiB (5 MiB in base64).

        Raises ConfigError.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"Image.open needs the path of a file; got {type(path).__name__}. Pass the bytes of a file to "
                "Image.from_bytes"
            )
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"cannot read the image {os.fspath(path)!r}: {reason}") from None
        return cls.from_bytes(data, os.path.basename(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "") -> Image:
        """Return the image in the bytes of a file; see `open`. Raises ConfigError."""
        if not isinstance(data, bytes | bytearray):
            raise ConfigError(
                f"Image.from_bytes needs the bytes of a file; got {type(data).__name__}. Pass the path of a file to "
                "Image.open"
            )
        image = cls(media_type_of(data), binascii.b2a_base64(data, newline=False).decode(), name)
        what = f"image {name!r}" if name else "the image"
        if not image.media_type:
            raise ConfigError(f"{what} is not an image that models accept: use a PNG, JPEG, GIF or WebP file")
        if len(image.data) > MAX_ENCODED:
            raise ConfigError(
                f"{what} has {len(data):,} bytes: an image may have at most {MAX_ENCODED * 3 // 4:,} bytes, which are "
                "5 MiB in base64; make it smaller"
            )
        width, height = size_of(data)
        if not width or not is_complete(data):
            raise ConfigError(f"{what} is truncated or damaged: save it again as a PNG, JPEG, GIF or WebP file")
        if max(width, height) > MAX_PIXELS:
            raise ConfigError(f"{what} has {width}x{height} pixels: at most {MAX_PIXELS} are allowed; make it smaller")
        return image

    def __repr__(self) -> str:
        return f"Image({self.media_type!r}, <{len(self.data):,} characters>, {self.name!r})"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels. (0, 0) means that the size is unknown."""
        return image_size(self.data)

    @property
    def text(self) -> str:
        """The text that stands for the image where images cannot be shown, such as `[image: a.png, 640x480]`."""
        return image_text(self.media_type, self.data, self.name)


class ToolUse(Struct, frozen=True, gc=False, tag="tool_use"):
    """A tool call that the model requests. `input` is the parsed argument object."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResult(Struct, frozen=True, gc=False, tag="tool_result", omit_defaults=True):
    """The result of the `ToolUse` whose id is `tool_use_id`."""

    tool_use_id: str
    content: tuple[Text | Image, ...]
    is_error: bool = False


class Opaque(Struct, frozen=True, gc=False, tag="opaque", omit_defaults=True):
    """A block in a provider's own format. `raw` is JSON data that is sent to that provider only.

    `model` is the model whose encrypted reasoning `raw` contains. Only this model receives `raw`. "" means that the
    model is unknown, or that `raw` contains no encrypted reasoning.
    """

    provider: str
    raw: Any
    model: str = ""


Block: TypeAlias = Text | Thinking | Image | ToolUse | ToolResult | Opaque


Prompt: TypeAlias = str | Sequence[str | Image]
"""A prompt: text, or a list of texts and images."""


class Message(Struct, frozen=True, gc=False):
    """One message of a conversation. Tool results are blocks of user messages."""

    role: Literal["user", "assistant", "system"]
    content: tuple[Block, ...]


class Usage(Struct, frozen=True, gc=False):
    """The usage of model requests and tool calls: tokens, money, number of calls, seconds of tools.

    If `cost_known` is False, `cost_usd` is a lower bound, because a price was unknown. `ceiling_usd` is the part of
    `cost_usd` that was charged at the configured price for models without a known price.
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

    def with_one_model_call(self) -> Usage:
        """Return this usage with `model_calls` set to 1."""
        return msgspec.structs.replace(self, model_calls=1)


class Reply(Struct, frozen=True, gc=False):
    """The result of a turn.

    - `id` is the agent's id, `query_id` the turn's.
    - `steps` counts model responses; `tool_calls` counts calls that ran.
    - `files_changed`: paths relative to the agent's cwd.
    - `archived_to`: the holder of the turn, if the turn was archived before the reply. With asynchronous archival,
      `archived_to` is None, and the event `archived` names the holder and the query.
    - `unfinished`: tools whose calls were interrupted or prevented by the end of the turn.
    - `local`: the reply may be sent to local models only.
    - `warning`: damage found in the transcript when it was opened for this turn.
    - `marks`: taint labels of the conversation. A conversation that receives the reply gets these labels too.
    - `whole`: the handle of the complete text if the middle of `text` was cut out; "" if the complete text was not
      stored.
    - `denied`: number of calls by the agent and its subagents that were denied because no approver was available.
    - `worktree`: the changes in the agent's worktree; unset if the agent has no worktree.
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
        """How the turn ended: "done", or the reason for its early end."""
        return CUT_SHORT.get(self.stop_reason, "done")

    @property
    def is_complete(self) -> bool:
        """Whether the agent ended the turn itself."""
        return self.stop_reason in COMPLETE

    marks: tuple[TaintLabel, ...] = ()
    whole: str = ""
    denied: int = 0
    worktree: WorktreeReport | UnsetType = UNSET


def user(content: Prompt) -> Message:
    """Return a user message that contains `content`: a text, or a list of texts and images."""
    return Message("user", (Text(content),) if isinstance(content, str) else place_images(*prompt_of(content)))


def assistant(text: str) -> Message:
    """Return an assistant message that contains `text`. Raises ConfigError for another type."""
    if not isinstance(text, str):
        raise ConfigError(f"the text of an assistant message must be a string; got {type(text).__name__}")
    return Message("assistant", (Text(text),))


def text_of(message: Message) -> str:
    """Return the text blocks of `message`, joined by blank lines. Each image is replaced by its `Image.text`."""
    return "\n\n".join([block.text for block in message.content if isinstance(block, (Text, Image))])


def images_in(content: Iterable[Block]) -> Iterator[Image]:
    """Yield the images in `content`, also those in tool results, in order."""
    for block in content:
        if isinstance(block, Image):
            yield block
        elif isinstance(block, ToolResult):
            yield from images_in(block.content)


def check_images(images: Sequence[Image]) -> None:
    """Raise ConfigError unless the data of each image has its media type, and the images are not too large."""
    for image in images:
        try:
            found = Image.from_bytes(binascii.a2b_base64(image.data, strict_mode=True), image.name).media_type
        except ValueError as error:
            raise ConfigError(f"image {image.name!r}: its data is not base64: {error}") from None
        if found != image.media_type:
            raise ConfigError(f"image {image.name!r} has the media type {image.media_type!r}, but its data is {found}")
    if sum(len(image.data) for image in images) > MAX_TOTAL_ENCODED:
        raise ConfigError(
            f"{len(images)} images are too large together: the images of one message may have at most "
            f"{MAX_TOTAL_ENCODED * 3 // 4:,} bytes; send fewer, or make them smaller"
        )


def prompt_of(prompt: Prompt) -> tuple[str, tuple[Image, ...]]:
    """Return the text and the images of `prompt`. In the text, `Image.text` replaces each image.

    Raises ConfigError for a list with other items.
    """
    if isinstance(prompt, str):
        return prompt, ()
    parts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, bytes) else [prompt]
    wrong = [type(part).__name__ for part in parts if not isinstance(part, (str, Image))]
    if wrong:
        raise ConfigError(f"the prompt must be text, or a list of texts and orch.Image; got {wrong[0]}")
    texts = [part.text if isinstance(part, Image) else part for part in parts]
    return "\n\n".join(texts), tuple(part for part in parts if isinstance(part, Image))


def place_images(text: str, images: Sequence[Image]) -> tuple[Text | Image, ...]:
    """Return `text` as blocks. Each image replaces its `Image.text`; images without a place in `text` are at the end.

    This is the reverse of `prompt_of`.
    """
    if not images:
        return (Text(text),)
    blocks: list[Text | Image] = []
    others: list[Image] = []
    for image in images:
        before, found, after = text.partition(image.text)
        if not found:
            others.append(image)
            continue
        if before.strip():
            blocks.append(Text(before.removesuffix("\n\n")))
        blocks.append(image)
        text = after.removeprefix("\n\n")
    return (*blocks, *([Text(text)] if text.strip() else []), *others)


def tool_uses(message: Message) -> list[ToolUse]:
    """Return the tool calls in `message`, in order."""
    return [block for block in message.content if isinstance(block, ToolUse)]
