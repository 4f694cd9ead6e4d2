"""The interface of a format: the body of a request, and the reader of the events of its response."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.messages import Block, Message, StopReason

from ..base import PromptPrefix
from ..models import Model
from .reported_usage import ReportedUsage
from .server_sent_events import ServerSentEvent

__all__ = ["ApiFormat", "ModelRequest", "ResponseReader", "text_in"]


class ModelRequest(Struct, frozen=True):
    """One request to a model. `tail` is text at its end that is not part of the conversation.

    `prefix` describes the parts that later requests will repeat. `max_output_tokens` is the limit of the answer; 0
    means the provider's default.
    """

    provider: str
    name: str
    model: Model
    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    tail: str
    prefix: PromptPrefix
    max_output_tokens: int


class ResponseReader(ABC):
    """Reads one response from its events.

    The methods raise LookupError, TypeError, AttributeError or ValueError for malformed data.
    """

    def __init__(self, provider: str) -> None:
        self.usage = ReportedUsage()
        self.stop: StopReason | None = None
        """The stop reason. None until it is known."""
        self.unknown_stop = ""
        """The provider's name of an unknown stop reason, otherwise ""."""
        self.done = False
        """Whether the response is complete."""
        self.ended = False
        """Whether the stream ended with an end mark. Data that follows does not count."""
        self.progress = 0
        """A number that increases with each event that adds content, unlike keep-alive messages."""
        self._provider = provider

    @abstractmethod
    def feed(self, event: ServerSentEvent) -> str:
        """Process the next event, and return the text that the event adds.

        Raise ReportedError if the event reports an error.
        """

    @abstractmethod
    def blocks(self) -> list[Block]:
        """Return the blocks of the response, in order.

        Without a known stop reason, calls without arguments that may be incomplete have the input `INVALID_INPUT`.
        """

    @abstractmethod
    def _add(self, event: dict[str, Any]) -> str:
        """Process the data of the next event, and return the text that the data adds.

        The data is plain JSON data, because the SDKs' types would convert wrong values to plausible values.
        """

    def _add_value(self, value: Any) -> str:
        """Process `value`, the data of the next event. Raise ValueError, which shows the data, if it is malformed."""
        if not isinstance(value, dict):
            raise ValueError(f"an event is {value!r:.80} instead of a JSON object")
        try:
            return self._add(value)
        except (LookupError, TypeError, AttributeError) as error:
            kind = value.get("type", value.get("object", ""))
            raise ValueError(f"an event of type {kind!r:.80} has an unexpected shape: {value!r:.200}") from error


class ApiFormat(Protocol):
    """The format of one API."""

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request as JSON data."""

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""


def text_in(raw: Mapping[str, Any], name: str) -> str:
    """Return the text in the field `name` of `raw`. Return "" if the field is missing or contains no text."""
    value = raw.get(name)
    return value if isinstance(value, str) else ""
