"""The conversations of a framework that answers recalls with tools of its own agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError

from ..archival.adapters import to_json_data
from ..gateway.api import Api
from ..gateway.conversation import Prepared
from ..gateway.core_thread import CoreThread, open_gateway

__all__ = ["Conversations", "Request", "encode_messages", "imported"]

_encoder = msgspec.json.Encoder(enc_hook=to_json_data)


class Request(Struct, frozen=True):
    """The messages of a model request, encoded, as the framework has them.

    `session` is the name of the session, "" if there is none. `beside` is the number of tokens of the request that are
    not in messages.
    """

    session: str
    items: list[bytes]
    beside: int


class Conversations:
    """Folds the requests of a framework, and answers recalls. All methods can be called from any thread."""

    def __init__(
        self,
        api: Api,
        folder: str | os.PathLike[str],
        profile: Profile | Literal["off"],
        config: ArchivalConfig | None,
        warn: Callable[[str], None] | None,
    ) -> None:
        self._api = api
        self._core = CoreThread(open_gateway(folder, profile, config, warn))

    def prepare(self, request: Request) -> Prepared | None:
        """Return the messages to send. Return None if the request should stay unchanged."""
        return self._core.run(self._prepare, request)

    async def prepare_async(self, request: Request) -> Prepared | None:
        """See `prepare`. Does not block the event loop."""
        return await self._core.run_async(self._prepare, request)

    def recall(self, request: Request, name: str, input: dict[str, Any]) -> str:
        """Return the result of a call of the recall tool `name` in the response to `request`."""
        return self._core.run(self._recall, request, name, input)

    async def recall_async(self, request: Request, name: str, input: dict[str, Any]) -> str:
        """See `recall`. Does not block the event loop."""
        return await self._core.run_async(self._recall, request, name, input)

    def close(self) -> None:
        """Close the files."""
        self._core.close()

    def _prepare(self, request: Request) -> Prepared | None:
        prepared = self._core.gateway.prepare(self._api, request.session, request.items, request.beside)
        return prepared if prepared and prepared.ids else None

    def _recall(self, request: Request, name: str, input: dict[str, Any]) -> str:
        return self._core.gateway.recall(self._api, request.session, request.items, request.beside, name, input)


def encode_messages(messages: Sequence[Any]) -> list[bytes]:
    """Return `messages` as JSON. Return [] if one of them cannot be encoded: the request then stays unchanged."""
    try:
        return [_encoder.encode(message) for message in messages]
    except (ConfigError, TypeError, ValueError, RecursionError):
        return []


def imported(module: str, package: str) -> ModuleType:
    """Return a module of a framework. Raises ConfigError with the command that installs `package`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        raise ConfigError(f"orch.integrations needs the package {top!r}: pip install {package}") from error
