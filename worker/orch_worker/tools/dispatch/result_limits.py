"""How much of the results of tool calls a model is shown. Sizes are characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from orch_protocol.core.messages import Text, ToolResult
from orch_protocol.core.taint import TaintLabel, bits_in
from orch_protocol.core.text import scrub

from ...conversation.tokens import clip
from ...policy.taint import LABEL
from ..values.store import LEAST_SHOWN, shared_limit

__all__ = ["MAX_CAPTURED", "MAX_SHOWN", "MAX_SHOWN_A_STEP", "captured_text", "chars_to_show", "text_in", "with_text"]

MAX_CAPTURED: Final = 1 << 20
"""Most that is kept of one result."""
MAX_SHOWN: Final = 30_000
"""Most that is shown of one result."""
MAX_SHOWN_A_STEP: Final = 100_000
"""Most that is shown of all results of one step."""


def chars_to_show(texts: Sequence[str], bounds: Sequence[int], marks: Sequence[Sequence[TaintLabel]]) -> list[int]:
    """Return how much of each of `texts`, the results of one step, is shown.

    `bounds` limits each text by itself. When all together exceed MAX_SHOWN_A_STEP, the longest are cut first. A text
    whose `marks` say that it is untrusted leaves room for its label.
    """
    sizes = [min(len(text), bound) for text, bound in zip(texts, bounds, strict=True)]
    most = shared_limit(sizes, MAX_SHOWN_A_STEP, MAX_SHOWN)
    return [
        max(min(most, bound) - LABEL, LEAST_SHOWN) if "untrusted" in bits_in(each) else min(most, bound)
        for bound, each in zip(bounds, marks, strict=True)
    ]


def captured_text(text: str) -> str:
    """Return `text` without control characters, at most MAX_CAPTURED of it."""
    return clip(scrub(text), MAX_CAPTURED, "it was too long to be kept") or "(no output)"


def text_in(result: ToolResult) -> str:
    """Return the text of `result`."""
    return "".join(block.text for block in result.content if isinstance(block, Text))


def with_text(result: ToolResult, text: str) -> ToolResult:
    """Return `result` with `text` in place of its text."""
    others = tuple(block for block in result.content if not isinstance(block, Text))
    return replace(result, content=(Text(text), *others))
