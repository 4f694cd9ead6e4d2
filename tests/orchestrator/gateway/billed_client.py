"""A client whose requests are billed: those that the gateway sends, and those that the client would send directly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from orch.gateway.receipt import ConversationReceipt
from orch_worker.backends.models import load
from orchestrator.gateway.gateway_world import ChatClient, Client, MessagesClient, World
from wire.billing_server import AutomaticCache, Charge, MarkedCache
from wire.model_server import Answer

Worlds = Callable[..., World]
MARKER = {"cache_control": {"type": "ephemeral"}}
MODELS = {"messages": "claude-sonnet-5-5", "chat": "gpt-6.1-sol", "responses": "gpt-6.1-sol"}
STEP = 20.0
"""Seconds between requests."""


class BilledClient:
    """A model whose server bills each request, and what the server would bill if it got the client's requests.

    `pause` is added to the time before the next request.
    """

    def __init__(self, world: Worlds, client: Client, worker: Callable[[Any], Answer], **options: Any) -> None:
        self.client = client
        is_marked = isinstance(client, MessagesClient)
        self.caches: list[Any] = [MarkedCache(), MarkedCache()] if is_marked else [AutomaticCache(), AutomaticCache()]
        self.charges: list[Charge] = []
        """What the server bills for the gateway's requests."""
        self.direct: list[Charge] = []
        """What the server would bill for the client's requests."""
        self.outputs = 0
        self.now = 1_000_000.0
        self.worker = worker
        self.world = world(self._answer, clock=lambda: self.now, **options)

    def send(self, pause: float = STEP) -> list[str]:
        """Send the next request, and bill it as if the client had sent it to the server."""
        self.now += pause
        body = json.loads(self.client.body(stream=False))
        self.direct.append(self.caches[1].charge(plain(body), self.now))
        return self.world.send(self.client, stream=False)

    def turns(self, count: int, pause: float = STEP) -> None:
        """Let the client have turns of a prompt, calls and an answer."""
        for turn in range(count):
            self.client.say(f"Prompt {turn}. " + "Look at this part. " * 40)
            self.send(pause)
            while self.client.items[-1].get("role") != "assistant" and self.client.items[-1].get("type") != "message":
                self.send()

    @property
    def receipt(self) -> ConversationReceipt:
        """The receipt of the client's conversation."""
        (found,) = self.world.gateway.receipt().conversations
        return found

    def direct_usd(self) -> float:
        """Return the cost of the client's requests without the gateway."""
        provider = "anthropic" if isinstance(self.client, MessagesClient) else "openai"
        price = load().look_up(provider, MODELS[kind_of(self.client)]).price_at(0)
        read = price.input if price.cache_read is None else price.cache_read
        write = price.input if price.cache_write is None else price.cache_write
        assert price.input and price.output and read and write  # noqa: PT018
        charged = ((each.read * read, each.written * write, each.fresh * price.input) for each in self.direct)
        return (sum(map(sum, charged)) + self.outputs * price.output) / 1e6

    def _answer(self, body: Any) -> Answer:
        charge = self.caches[0].charge(plain(body), self.now)
        self.charges.append(charge)
        answer = self.worker(body)
        answer.usage = {"input": charge.fresh, "cache_read": charge.read, "cache_write": charge.written, "output": 50}
        self.outputs += 50
        return answer


def plain(body: Any) -> Any:
    """Return a body of the Messages API in the form of the billing server: contents are lists of blocks."""
    if "max_tokens" in body:
        for item in body["messages"]:
            if isinstance(item["content"], str):
                item["content"] = [{"type": "text", "text": item["content"]}]
    return body


def kind_of(client: Client) -> str:
    """Return the name of the client's API."""
    return {"/v1/messages": "messages", "/v1/chat/completions": "chat"}.get(client.path, "responses")


def prepared(client: Client, *, markers: bool = True) -> Client:
    """Return the client with a known model and a long system text. It sets cache markers if it has a system text."""
    client.fields |= {"model": MODELS[kind_of(client)]}
    text = "You help people with their work on machines. " * 300
    if isinstance(client, MessagesClient):
        client.fields |= {"system": [{"type": "text", "text": text} | MARKER]} if markers else {}
    elif not isinstance(client, ChatClient):
        client.fields["instructions"] = text
    return client


def counts(charge: Charge) -> tuple[int, int, int]:
    """Return the tokens of a request."""
    return charge.read, charge.written, charge.fresh
