"""Messages of OpenAI's chat completions."""

from __future__ import annotations

from typing import Final

from orch_protocol.core.messages import ToolResult
from orch_worker.backends.formats import chat
from orch_worker.backends.model_families import GPT

from .base import ApiMessages

__all__ = ["FORMAT"]

FORMAT: Final = ApiMessages(
    "openai",
    "openai",
    GPT,
    chat.decode_message,
    chat.encode_message,
    chat.encode_tool,
    separate_blocks=(ToolResult,),
)
