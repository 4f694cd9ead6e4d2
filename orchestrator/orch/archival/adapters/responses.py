"""Items of OpenAI's responses API."""

from __future__ import annotations

from typing import Final

from orch_protocol.core.messages import Opaque, ToolResult, ToolUse
from orch_worker.backends.formats import responses
from orch_worker.backends.model_families import GPT

from .base import ApiMessages

__all__ = ["FORMAT"]

FORMAT: Final = ApiMessages(
    "responses",
    "openai",
    GPT,
    responses.decode_item,
    responses.encode_item,
    responses.encode_tool,
    separate_blocks=(ToolUse, ToolResult, Opaque),
    text_type="input_text",
)
