"""Converts any conversation into a form that strict providers accept. This module does no I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.messages import (
    INVALID_INPUT,
    MAX_TOTAL_ENCODED,
    Block,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    images_in,
)
from orch_protocol.core.text import scrub

__all__ = [
    "SYSTEM_NOTE",
    "ProviderRequirements",
    "join_surrogates",
    "normalize_messages",
    "parse_input",
    "signatures_in",
    "text_of_part",
    "with_model",
    "without_signatures",
]

NO_RESULT: Final = "No result was recorded: the call may or may not have had an effect."
STRAY_RESULT: Final = "[The result of a call that is not on record:]"
NO_START: Final = "[The beginning of this conversation is not on record.]"
NO_IMAGE: Final = "; not shown: this model does not accept images]"
"""End of the text that replaces an image."""
OLD_IMAGE: Final = "; not shown: the request contains newer images up to its limit]"
NO_PART: Final = "; not shown: this model does not accept this content]"
"""End of the text that replaces a part of a user message in the format of another provider."""
PART_NAMES: Final = ("url", "image_url", "file_url", "filename", "title", "file_id")
"""Fields that identify such a part for a reader."""
MAX_IMAGES: Final = 100
"""Maximum number of images in a request."""
MAX_LARGE_IMAGES: Final = 20
"""Maximum number of images in a request if the width or height of an image exceeds LARGE."""
LARGE: Final = 2000
"""Width or height in pixels."""
NO_OUTPUT: Final = "(no output)"
INVALID_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]+")
MAX_READABLE: Final = 40
"""Maximum number of characters that a converted tool name contains from the original name."""
SYSTEM_NOTE: Final = "[A note of the system:]"
"""Prefix of a system message that is sent as a user message.

Some servers accept only one system message, at the beginning of the conversation.
"""

Role = Literal["user", "assistant", "system"]


class ProviderRequirements(Struct, frozen=True):
    """The requirements of a provider.

    They are: the provider's name, the formats of call ids and of tool names, the name of the model, and support for
    images and for later system messages. If `signed` is True, thinking needs a signature.
    """

    provider: str
    ids: re.Pattern[str]
    names: re.Pattern[str]
    model: str = ""
    images: bool = True
    system: bool = True
    signed: bool = False


class _MessageGroup(Struct):
    role: Role
    blocks: list[Block]


def normalize_messages(messages: Sequence[Message], requirements: ProviderRequirements) -> list[Message]:
    """Return the conversation in a form that a strict provider accepts.

    The result starts with a user message, and the roles alternate. No message or text is empty. Each call has one
    result, in call order, at the beginning of the next message. Call ids are unique and match the format. Names of
    calls match the format, and different names stay different. Reasoning blocks and opaque blocks of other providers,
    and signed reasoning of other models, are removed; in user messages, texts replace opaque blocks. Texts also replace
    images that exceed the limits of a request, beginning with the oldest image. The result may be empty.
    """
    if requirements.images:
        messages = _without_old_images(messages)
    turns = _add_missing_results(_alternate_roles(_acceptable_groups(messages, requirements)), requirements)
    return [Message(turn.role, tuple(turn.blocks)) for turn in turns]


def join_surrogates(text: str) -> str:
    """Return `text` in a form that can be encoded. The separated halves of a surrogate pair are joined."""
    if text.isascii():
        return text
    joined: str = scrub(text)
    if joined is not text and joined != text:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined


def _signature_of(block: Block) -> str:
    """Return the signature, the encrypted content or the id of a reasoning block that only its model accepts.

    Return "" for other blocks, including reasoning in plain text.
    """
    match block:
        case Thinking(signature=str(signature)):
            return signature
        case Opaque(raw={"type": "redacted_thinking" | "reasoning" as kind} as raw):
            values = (raw.get(name) for name in ("data", "encrypted_content", "id"))
            return next((value for value in values if value and isinstance(value, str)), kind)
    return ""


def signatures_in(messages: Sequence[Message], provider: str, model: str) -> frozenset[str]:
    """Return the signatures and encrypted contents that a request with `messages` to `model` of `provider` contains."""
    return frozenset(
        signature
        for message in messages
        for block in message.content
        if isinstance(block, Thinking | Opaque)
        and _is_from(block, provider, model)
        and (signature := _signature_of(block))
    )


def with_model(blocks: Sequence[Block], model: str) -> tuple[Block, ...]:
    """Return `blocks`, a response of `model`, with the name of the model in blocks that only this model accepts."""
    return tuple(
        replace(block, model=model) if isinstance(block, Thinking | Opaque) and _signature_of(block) else block
        for block in blocks
    )


def without_signatures(messages: Sequence[Message], signatures: Set[str]) -> list[Message]:
    """Return `messages` without the reasoning blocks that have one of `signatures`; see `signatures_in`."""
    return [
        Message(message.role, tuple(block for block in message.content if _signature_of(block) not in signatures))
        if any(_signature_of(block) in signatures for block in message.content)
        else message
        for message in messages
    ]


def parse_input(given: Any) -> dict[str, Any]:
    """Return the arguments of a call from their JSON text. Some servers send an object instead of its text.

    Text that is not a JSON object becomes the value of one argument, whose name no tool accepts. Therefore, the call is
    rejected, and the error shows the text.
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    try:
        value = scrub(json.loads(given) if isinstance(given, str) else given)
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        value = text = ""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    return {INVALID_INPUT: join_surrogates(given) if isinstance(given, str) else text}


def _without_old_images(messages: Sequence[Message]) -> Sequence[Message]:
    """Return `messages` with texts in place of the oldest images if they exceed the limits of a request."""
    images = [image for message in messages for image in images_in(message.content)]
    excess = _excess(images)
    if not excess:
        return messages

    def replace_image(block: Block) -> Any:
        nonlocal excess
        if isinstance(block, ToolResult):
            return replace(block, content=tuple(map(replace_image, block.content)))
        if not isinstance(block, Image) or not excess:
            return block
        excess -= 1
        return _text_for(block, OLD_IMAGE)

    return [Message(message.role, tuple(map(replace_image, message.content))) for message in messages]


def _excess(images: Sequence[Image]) -> int:
    """Return how many of `images` exceed the limits of a request."""
    first = 0
    if len(images) > MAX_LARGE_IMAGES:
        large = any(max(image.size) > LARGE for image in images)
        first = max(0, len(images) - (MAX_LARGE_IMAGES if large else MAX_IMAGES))
    size = sum(len(image.data) for image in images[first:])
    while size > MAX_TOTAL_ENCODED:
        size -= len(images[first].data)
        first += 1
    return first


def _text_for(image: Image, why: str) -> Text:
    return Text(image.text.removesuffix("]") + why)


def _acceptable_groups(messages: Sequence[Message], requirements: ProviderRequirements) -> Iterator[_MessageGroup]:
    """Yield the messages with the blocks that the provider accepts. Empty messages are left out."""
    for message in messages:
        content = message.content
        if message.role == "user":
            content = tuple(_shown_part(block, requirements) for block in content)
        blocks = [fit for block in content if (fit := _acceptable_block(block, requirements)) is not None]
        if message.role == "system":
            blocks = [block for block in blocks if isinstance(block, Text)]
        if not blocks:
            continue
        if message.role == "system" and not requirements.system:
            yield _MessageGroup("user", [Text(SYSTEM_NOTE), *blocks])
        else:
            yield _MessageGroup(message.role, blocks)


def _acceptable_block(block: Block, requirements: ProviderRequirements) -> Block | None:
    match block:
        case Text(text):
            return block if text.strip() else None
        case Image():
            return block if requirements.images else _text_for(block, NO_IMAGE)
        case Thinking() | Opaque():
            is_usable = not requirements.signed or isinstance(block, Opaque) or block.signature
            return block if is_usable and _is_from(block, requirements.provider, requirements.model) else None
        case ToolResult(id, content, is_error):
            parts = [fit for part in content if isinstance(fit := _acceptable_block(part, requirements), Text | Image)]
            return (
                block
                if parts and parts == list(content)
                else ToolResult(id, tuple(parts) or (Text(NO_OUTPUT),), is_error)
            )
        case _:
            return block


def _is_from(block: Thinking | Opaque, provider: str, model: str) -> bool:
    return block.provider == provider and block.model in ("", model)


def _shown_part(block: Block, requirements: ProviderRequirements) -> Block:
    """Return `block`, or a text for a part of a user message that the provider does not accept, such as a file."""
    if not isinstance(block, Opaque) or (block.provider == requirements.provider and requirements.images):
        return block
    return Text(text_of_part(block.raw))


def text_of_part(raw: Any) -> str:
    """Return a text instead of `raw`, a part of a user message that the provider does not accept."""
    part = raw if isinstance(raw, dict) else {}
    fields = [part, *(inner for inner in part.values() if isinstance(inner, dict))]
    names = [inner[name] for name in PART_NAMES for inner in fields if isinstance(inner.get(name), str)]
    return f"[{': '.join([str(part.get('type', 'block')), *names[:1]]):.300}{NO_PART}"


def _alternate_roles(groups: Iterator[_MessageGroup]) -> list[_MessageGroup]:
    """Return groups with alternating roles. A system message never separates calls from their results."""
    turns: list[_MessageGroup] = []
    system_messages: list[_MessageGroup] = []
    last: _MessageGroup | None = None  # The last group that does not consist of a system message.
    for turn in groups:
        if turn.role == "system":
            (system_messages if last is not None and last.role == "assistant" else turns).append(turn)
        elif last is not None and last.role == turn.role:
            last.blocks += turn.blocks
        else:
            if last is None and turn.role == "assistant":
                turns.append(_MessageGroup("user", [Text(NO_START)]))
            turns.append(turn)
            if turn.role == "user":
                turns += system_messages
                system_messages = []
            last = turn
    return turns + system_messages


def _add_missing_results(turns: Sequence[_MessageGroup], requirements: ProviderRequirements) -> Iterator[_MessageGroup]:
    """Yield `turns`. The group after a call contains exactly one result for the call. All ids and names are valid."""
    ids, names = _CallIds(requirements.ids), _CallNames(requirements.names)
    calls: list[tuple[str, str]] = []
    for turn in turns:
        if turn.role == "user":
            turn.blocks = _results_first(turn.blocks, calls)
            calls = []
        elif calls:
            yield _MessageGroup("user", _results_first([], calls))
            calls = []
        if turn.role == "assistant":
            for index, block in enumerate(turn.blocks):
                if isinstance(block, ToolUse):
                    id, name = ids.new(block.id), names.fitting(block.name)
                    calls.append((block.id, id))
                    if (id, name) != (block.id, block.name):
                        turn.blocks[index] = ToolUse(id, name, block.input)
        yield turn
    if calls:
        yield _MessageGroup("user", _results_first([], calls))


def _results_first(blocks: Sequence[Block], calls: Sequence[tuple[str, str]]) -> list[Block]:
    """Return `blocks` with the results of `calls` (pairs of old id and new id) first. Other results become text."""
    open_calls = Counter(old for old, _ in calls)
    results: defaultdict[str, list[ToolResult]] = defaultdict(list)
    other_blocks: list[Block] = []
    for block in blocks:
        if not isinstance(block, ToolResult):
            other_blocks.append(block)
        elif open_calls[block.tool_use_id]:
            open_calls[block.tool_use_id] -= 1
            results[block.tool_use_id].append(block)
        else:
            other_blocks += [Text(STRAY_RESULT), *block.content]
    answers: list[Block] = []
    for old, new in calls:
        result = results[old].pop(0) if results[old] else ToolResult(old, (Text(NO_RESULT),), is_error=True)
        answers.append(result if new == old else ToolResult(new, result.content, result.is_error))
    return answers + other_blocks


class _CallIds:
    """Assigns unique, valid call ids. The result is the same each time the conversation is sent."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._used_ids: set[str] = set()

    def new(self, id: str) -> str:
        """Return the id for the next call named `id`."""
        fits, number = id if self._pattern.fullmatch(id) else "", 0
        while not fits or fits in self._used_ids:
            number += 1
            fits = "call_" + hashlib.sha256(f"{id}\n{number}".encode("utf-8", "replace")).hexdigest()[:24]
        self._used_ids.add(fits)
        return fits


class _CallNames:
    """Converts names of calls to valid names. Different names stay different.

    A name that is converted gets a part of its hash. Therefore, the result does not depend on later messages, and it is
    the same each time the conversation is sent.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._names: dict[str, str] = {}
        self._used_names: set[str] = set()

    def fitting(self, name: str) -> str:
        """Return the name to send for calls named `name`."""
        if name not in self._names:
            fits, number = name if self._pattern.fullmatch(name) else "", 0
            while not fits or fits in self._used_names:
                number += 1
                hashed = hashlib.sha256(f"{name}\n{number}".encode("utf-8", "surrogatepass")).hexdigest()
                readable = INVALID_IN_NAMES.sub("_", name).strip("_")[:MAX_READABLE]
                fits = f"{readable if readable[:1].isalpha() else f'tool_{readable}'}_{hashed[:12]}"
            self._names[name] = fits
            self._used_names.add(fits)
        return self._names[name]
