"""Conversations with the model server through the backend of each API."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.messages import Message, Text, ToolResult, tool_uses
from orch_worker.backends import models
from orch_worker.backends.base import AssistantTurn, Retry
from orch_worker.backends.http.remote import RemoteBackend
from orch_worker.backends.registry import complete, make_backend
from wire.model_server import ModelServer

KEYS = {"ANTHROPIC_API_KEY": "k1", "OPENAI_API_KEY": "k2", "MOONSHOT_API_KEY": "k3"}
WEATHER = ToolSpec("weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


class Talk:
    """A conversation with a backend. It stores the streamed text, the retries and the delays before retries."""

    def __init__(self, backend: RemoteBackend) -> None:
        self.backend = backend
        self.texts: list[str] = []
        self.retries: list[Retry] = []
        self.waits: list[float] = []
        backend.on_retry = self.retries.append
        backend.sleep = self._sleep
        backend.append_system("You are terse.", (WEATHER,))

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def ask(self, text: str = "hi") -> AssistantTurn:
        """Send the prompt `text` and return the response. Both become part of the conversation."""
        self.backend.append_user((Text(text),))
        return await self.turn()

    async def turn(self) -> AssistantTurn:
        """Return the next response, which becomes part of the conversation."""
        turn = await self.backend.assistant_turn(self.texts.append)
        self.backend.append_assistant(turn.message)
        return turn

    def answer(self, turn: AssistantTurn, *texts: str) -> None:
        """Add the results of the calls of `turn` in order. Their texts are `texts`, or default texts."""
        calls = tool_uses(turn.message)
        found = texts or tuple(f"result of {call.id}" for call in calls)
        results = [ToolResult(call.id, (Text(text),)) for call, text in zip(calls, found, strict=True)]
        self.backend.append_tool_result(results)

    def messages(self) -> list[Message]:
        """Return the messages of the conversation."""
        return list(self.backend.transcript())


class Peer(Struct, frozen=True):
    """A model of one API, and the path of its requests."""

    provider: str
    model: str
    path: str
    prefix: str = ""

    def spec(self, server: ModelServer, **options: Any) -> BackendSpec:
        """Return the complete backend spec of this model, with the address of `server`."""
        given = BackendSpec(self.provider, self.model, {"base_url": server.url + self.prefix, **options})
        return complete(given, models.load(), {}, KEYS)

    def talk(self, server: ModelServer, **options: Any) -> Talk:
        """Return a new conversation with this model at `server`."""
        backend = make_backend(self.spec(server, **options), KEYS)
        assert isinstance(backend, RemoteBackend)
        return Talk(backend)


MESSAGES = Peer("anthropic", "claude-sonnet-5-5", "/v1/messages")
CHAT = Peer("openai", "gpt-4o", "/v1/chat/completions", "/v1")
RESPONSES = Peer("openai", "gpt-6-luna", "/v1/responses", "/v1")
KIMI = Peer("moonshot", "kimi-k3", "/v1/chat/completions", "/v1")
PEERS = {"messages": MESSAGES, "chat": CHAT, "responses": RESPONSES}
