"""Our own messages, as they are."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message, Text
from orch_worker.estimate import PLAIN, Ratios

__all__ = ["FORMAT"]


class _Own:
    name = "orch"
    provider = ""
    ratios: Ratios = PLAIN
    alone: tuple[type, ...] = ()

    def read(self, raw: Any) -> Message:
        if not isinstance(raw, Message):
            raise ConfigError(f"a message of format 'orch' is an orch.Message, not a {type(raw).__name__}")
        return raw

    def write(self, message: Message) -> Message:
        return message

    def with_text(self, given: Message, text: str) -> Message:
        return msgspec.structs.replace(given, content=(*given.content, Text(text)))

    def note(self, last: Message | None, text: str) -> tuple[Message | None, Message | None]:
        if last is not None and last.role == "user":
            return self.with_text(last, text), None
        return last, Message("user", (Text(text),))

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": schema}


FORMAT: Final = _Own()
