"""Limits for the size of the tool results that the model sees, in characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from orch_protocol.core.messages import ToolResult, images_in, place_images
from orch_protocol.core.taint import TaintLabel, bits_in
from orch_protocol.core.text import scrub

from ...conversation.tokens import clip
from ...policy.taint import MAX_LABEL_CHARS
from ..values.store import MIN_SHOWN, shared_limit

__all__ = ["MAX_CAPTURED", "MAX_SHOWN", "MAX_SHOWN_A_STEP", "captured_text", "chars_to_show", "text_in", "with_text"]

MAX_CAPTURED: Final = 1 << 20
"""Maximum stored size of one result, in characters."""
MAX_SHOWN: Final = 30_000
"""Maximum size of one result that the model sees, in characters."""
MAX_SHOWN_A_STEP: Final = 100_000
"""Maximum total size of all results of a step that the model sees, in characters."""


def chars_to_show(
    texts: Sequence[str], bounds: Sequence[int], labels: Sequence[Sequence[TaintLabel]], step_chars: int | None = None
) -> list[int]:
    """Return how many characters of each text to show. `texts` are the results of one step.

    `bounds` contains the limit of each text. If the total exceeds MAX_SHOWN_A_STEP, or `step_chars`, the longest texts
    are cut first. In a text with an "untrusted" label in `labels`, space is reserved for the label.
    """
    sizes = [min(len(text), bound) for text, bound in zip(texts, bounds, strict=True)]
    total = MAX_SHOWN_A_STEP if step_chars is None else min(step_chars, MAX_SHOWN_A_STEP)
    limit = shared_limit(sizes, total, min(total, MAX_SHOWN))
    return [
        max(min(limit, bound) - MAX_LABEL_CHARS, MIN_SHOWN) if "untrusted" in bits_in(each) else min(limit, bound)
        for bound, each in zip(bounds, labels, strict=True)
    ]


def captured_text(text: str) -> str:
    """Return `text` without control characters, cut to MAX_CAPTURED characters."""
    return clip(scrub(text), MAX_CAPTURED, "it was too long to be kept") or "(no output)"


def text_in(result: ToolResult) -> str:
    """Return the text of `result`, with `Image.text` in place of each image."""
    return "\n\n".join([block.text for block in result.content])


def with_text(result: ToolResult, text: str) -> ToolResult:
    """Return `result` with its text replaced by `text`. The images stay."""
    return replace(result, content=place_images(text, tuple(images_in(result.content))))
