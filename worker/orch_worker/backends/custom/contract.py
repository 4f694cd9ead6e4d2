"""The base class of custom backends, the requests that they receive, and the items of their responses."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, StopReason, Text, Thinking, ToolUse, Usage

from ...conversation.tokens import CHARS_PER_TOKEN
from ...system.secrets import ApiKeys
from ...system.threads import describe_exception
from ..base import BackendInfo

__all__ = ["BackendOptions", "BackendRequest", "CustomBackend", "ResponseItem", "Stop", "info_of"]

NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")


class BackendOptions(Struct, frozen=True):
    """The options with which a worker creates a custom backend.

    `model` is the model's name, or "" if no name was given. The other fields come from the provider in models.json.
    `keys` maps names of environment variables to values. `keys` contains the variables of the provider's `keys` that
    are set. `base_url` is the provider's address. `body` is a table for your own use.
    """

    model: str = ""
    keys: ApiKeys = field(default_factory=ApiKeys)
    base_url: str = ""
    body: dict[str, Any] = {}


class BackendRequest(Struct, frozen=True):
    """One request to a model.

    - `messages`: the conversation. The conversation begins with a user message, and the roles alternate. Each call has
      one result, at the beginning of the next message. Text that applies only to this request is at the end of the last
      message.
    - `max_tokens`: the maximum number of tokens of the response; 0 means the model's default.
    - `thinking`: the level of reasoning effort; "" means the model's default.
    - `cancelled`: an event that is set when the response is no longer needed.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    max_tokens: int
    thinking: str
    cancelled: threading.Event


class Stop(Struct, frozen=True):
    """The reason why a response ended: "end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal" or "error"."""

    reason: StopReason


ResponseItem: TypeAlias = str | Text | Thinking | ToolUse | Usage | Stop
"""A piece of a response: a piece of text or reasoning, a tool call, the usage so far, or the stop reason."""


class CustomBackend(ABC):
    """A model of your own: a local model, or a gateway with its own SDK.

    A worker creates one object of the class and uses this object for all its requests, which may be concurrent. An
    object that is passed to `spawn(backend=...)` serves several agents. Each agent uses the object in its own thread
    with its own event loop.
    """

    def __init__(self, options: BackendOptions | None = None) -> None:
        self.options = options or BackendOptions()

    @abstractmethod
    def respond(self, request: BackendRequest) -> AsyncIterator[ResponseItem] | Iterator[ResponseItem]:
        """Yield the response in pieces: text as `str`, and `Thinking`, `ToolUse`, `Usage` and `Stop` objects.

        An async generator runs in the event loop and must not block. A plain generator runs in its own thread. If the
        response is canceled, the generator is closed at its next `yield`.

        Without a `Stop` in the response, the stop reason is "tool_use" after calls, and otherwise "end_turn". The last
        `Usage` counts. If `Usage.cost_usd` is set, this cost is used instead of listed prices. If the response has no
        `Usage`, orch estimates the tokens. Raise RateLimitError if the request should be repeated later. Raise
        ContextOverflowError if the conversation is too long.
        """

    def info(self) -> BackendInfo:
        """Return the provider, the model and the context limit in tokens.

        Called for an object passed to `spawn(backend=...)`.

        If the limit is 0, the limit in models.json applies. If models.json has no limit, the limit is 32,768 tokens.
        """
        return BackendInfo(type(self).__module__, self.options.model or type(self).__qualname__)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens in `text`. Override this method if the model has a fast tokenizer."""
        return -(-len(text) // CHARS_PER_TOKEN)


def info_of(backend: CustomBackend) -> BackendInfo:
    """Return the result of `info`. Raise ConfigError if `info` raises an exception or returns another type."""
    name = type(backend).__qualname__
    try:
        about = backend.info()
    except Exception as error:
        raise ConfigError(f"{name}.info() raised {describe_exception(error)}") from error
    fields = {"provider": str, "model": str, "context_limit": int, "images": bool}
    wrong = not isinstance(about, BackendInfo) or any(type(getattr(about, name)) is not fields[name] for name in fields)
    if wrong or about.context_limit < 0 or not NAME.fullmatch(about.provider):
        raise ConfigError(
            f"{name}.info() must return BackendInfo(provider, model, context_limit, images), with a provider of "
            "letters, digits, '_', '-' and '.', a limit in tokens, and images as True or False"
        )
    return about
