"""The real SDKs with the gateway's HTTP clients, against a strict model server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import orch.gateway
from orch.gateway.core import RECALL_NAMES, Gateway
from orch.gateway.store import FileStore
from orchestrator.gateway.gateway_world import CLIENTS, TIGHT, ChatClient, Client, MessagesClient, Worker
from orchestrator.gateway.test_random_conversations import config_of, live, worker_of
from wire.model_server import Request, call, fail, say
from wire.model_server_beside import Apart
from wire.proxy_world import ProxyBeside, ProxyWorld, post

TURNS = 8


class Model:
    """A model whose requests are recorded, and which can fail instead."""

    def __init__(self) -> None:
        self.worker: Callable[[Any], Any] = Worker(3, recalls=0.3)

    def __call__(self, request: Request) -> Any:
        """Return the next response."""
        return self.worker(request.body)


@pytest.fixture
def model() -> Model:
    """The model behind the server."""
    return Model()


@pytest.fixture
def apart(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apart]:
    """A server in a thread, which the SDKs use by their environment variables."""
    with Apart(model) as apart:
        for name, value in apart.env.items():
            monkeypatch.setenv(name, value)
        yield apart


def arguments(client: Client, *, stream: bool) -> dict[str, Any]:
    """Return the arguments of the SDK's method for the next request of `client`."""
    found: dict[str, Any] = json.loads(client.body(stream=stream))
    return found


def method(client: Client, sdk: Any) -> Any:
    """Return the SDK's method that requests a response."""
    if isinstance(client, MessagesClient):
        return sdk.messages.create
    return sdk.chat.completions.create if isinstance(client, ChatClient) else sdk.responses.create


def wire(events: list[Any]) -> bytes:
    """Return what the SDK understood of a stream as a stream."""
    data = [json.dumps(event.model_dump(exclude_unset=True, by_alias=True)) for event in events]
    return "".join(f"data: {each}\n\n" for each in [*data, "[DONE]"]).encode()


def blocking_sdk(client: Client, folder: Path, **options: Any) -> Any:
    """Return an SDK client for blocking code."""
    module: Any = anthropic.Anthropic if isinstance(client, MessagesClient) else openai.OpenAI
    return module(http_client=orch.gateway.client(folder, config=TIGHT), **options)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_blocking_sdks_work_through_the_gateway(kind: str, stream: bool, apart: Apart, tmp_path: Path) -> None:
    """A long conversation with tools and recalls: the server refuses nothing, and the client sees no recall."""
    client = CLIENTS[kind]()
    with blocking_sdk(client, tmp_path) as sdk:
        for turn in range(TURNS):
            client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
            called = ["yes"]
            while called:
                found = method(client, sdk)(**arguments(client, stream=stream))
                called = client.read_stream(wire(list(found))) if stream else client.read_body(plain(found))
    check(client, apart)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_sdks_of_event_loops_work_through_the_gateway(kind: str, apart: Apart, tmp_path: Path) -> None:
    """As with blocking SDKs; two conversations at once are not mixed."""
    clients = [CLIENTS[kind]("one"), CLIENTS[kind]("two")]
    module: Any = anthropic.AsyncAnthropic if kind == "messages" else openai.AsyncOpenAI

    async def talk(client: Client, sdk: Any) -> None:
        headers = {"x-session-id": client.headers["x-session-id"]}
        for turn in range(TURNS // 2):
            client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
            called = ["yes"]
            while called:
                events = await method(client, sdk)(**arguments(client, stream=True), extra_headers=headers)
                called = client.read_stream(wire([event async for event in events]))

    async with module(http_client=orch.gateway.async_client(tmp_path, config=TIGHT)) as sdk:
        clients[0].name, clients[1].name = "alpha", "bravo"
        await asyncio.gather(*(talk(client, sdk) for client in clients))
    assert apart.server.refused == []
    for request in apart.server.requests:
        assert not (b"alpha" in request.raw and b"bravo" in request.raw)
    assert any(b"subagent_id" in request.raw for request in apart.server.requests)


def check(client: Client, apart: Apart) -> None:
    """Check what the server and the client got."""
    assert apart.server.refused == []
    sent = [len(request.raw) for request in apart.server.requests]
    assert sent[-1] < len(client.body()) / 2
    seen = json.dumps(client.items)
    assert not any(name in seen for name in RECALL_NAMES)
    assert any(b"# Archived turns" in request.raw for request in apart.server.requests)
    keys = {
        request.headers.get("x-api-key") or request.headers.get("authorization") for request in apart.server.requests
    }
    assert len(keys) == 1


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_sdks_work_through_the_proxy(kind: str, stream: bool, apart: Apart, tmp_path: Path) -> None:
    """As with the HTTP clients, with nothing but another base URL."""
    client = CLIENTS[kind]()
    gateway = Gateway(FileStore(tmp_path, config=TIGHT))
    with ProxyBeside(gateway, apart.server.url) as proxy:
        is_messages = isinstance(client, MessagesClient)
        sdk: Any = anthropic.Anthropic if is_messages else openai.OpenAI
        with sdk(base_url=f"{proxy.url}/anthropic" if is_messages else f"{proxy.url}/openai/v1") as opened:
            for turn in range(TURNS):
                client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
                called = ["yes"]
                while called:
                    found = method(client, opened)(**arguments(client, stream=stream))
                    called = client.read_stream(wire(list(found))) if stream else client.read_body(plain(found))
    check(client, apart)


def plain(found: Any) -> Any:
    """Return a response of an SDK as the data that the server sent."""
    return found.model_dump(exclude_unset=True, by_alias=True)


def archived(client: Client, sdk: Any, model: Model) -> None:
    """Give `client` a conversation with archives and a new prompt."""
    model.worker = Worker(3)
    for turn in range(TURNS):
        client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
        while client.read_body(plain(method(client, sdk)(**arguments(client, stream=False)))):
            pass
    client.say("And now?")


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.usefixtures("apart")
def test_errors_of_the_server_pass_unchanged(kind: str, model: Model, tmp_path: Path) -> None:
    """Status, headers and body of an error reach the SDK, also for requests with archives."""
    client = CLIENTS[kind]()
    with blocking_sdk(client, tmp_path, max_retries=0) as sdk:
        archived(client, sdk, model)
        model.worker = lambda _: fail(429, "rate_limit_error", "slow down", retry_after="7")
        for stream in (True, False):
            with pytest.raises((anthropic.RateLimitError, openai.RateLimitError), match="slow down") as caught:
                method(client, sdk)(**arguments(client, stream=stream))
            assert caught.value.response.headers["retry-after"] == "7"


class Reported(Exception):
    """The error in an event. The SDK does not raise the errors in streams of the Responses API."""


def respond(client: Client, sdk: Any, *, stream: bool) -> Any:
    """Return the response to the next request, or its events."""
    found = method(client, sdk)(**arguments(client, stream=stream))
    events = list(found) if stream else []
    if events and getattr(events[-1], "type", "") == "error":
        raise Reported(events[-1].message)
    return events if stream else found


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", CLIENTS)
def test_errors_after_a_recall_reach_the_sdk(
    kind: str, stream: bool, apart: Apart, model: Model, tmp_path: Path
) -> None:
    """If the server refuses the request after a recall, the SDK raises its error, and the client can retry."""
    client = CLIENTS[kind]()
    recall = call({"call": "search_archive", "input": {"query": "result"}}, text="Let me look.")
    with blocking_sdk(client, tmp_path, max_retries=0) as sdk:
        archived(client, sdk, model)
        script = [recall, fail(529, "overloaded_error", "too busy"), recall, say("Here.")]
        model.worker = lambda _: script.pop(0)
        with pytest.raises((anthropic.APIError, openai.APIError, Reported), match="too busy"):
            respond(client, sdk, stream=stream)
        found = respond(client, sdk, stream=stream)
        assert (client.read_stream(wire(found)) if stream else client.read_body(plain(found))) == []
    assert apart.server.refused == []
    assert "Here." in json.dumps(client.items[-1])


@pytest.mark.parametrize("kind", CLIENTS)
def test_random_lives_through_the_proxy(kind: str, tmp_path: Path) -> None:
    """The conversations of the core's test over HTTP: the server refuses nothing, and its cache stays warm."""
    worker = worker_of(0)
    with ProxyWorld(tmp_path, worker, config=config_of(0)) as world:
        watch = live(world, kind, 0, 20)
        assert world.apart.server.refused == []
    assert watch.folds > 1
    assert watch.compared > watch.folds
    assert worker.recalled > 1


@pytest.mark.parametrize("kind", CLIENTS)
def test_clients_of_the_proxy_at_once_are_not_mixed(kind: str, tmp_path: Path) -> None:
    """Two clients in one session talk at the same time. Each gets only its own records and results."""
    worker = Worker(2, recalls=0.3)
    with ProxyWorld(tmp_path, worker) as world, ThreadPoolExecutor() as pool:

        def talk(name: str) -> None:
            client = CLIENTS[kind]()
            client.name = name
            for turn in range(TURNS // 2):
                client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
                called = ["yes"]
                while called:
                    called = client.read_stream(post(world.proxy.port, client))

        for done in [pool.submit(talk, name) for name in ("alpha", "bravo")]:
            done.result()
        requests = world.apart.server.requests
        assert world.apart.server.refused == []
    assert any(b"subagent_id" in request.raw for request in requests)
    assert [request for request in requests if b"alpha" in request.raw and b"bravo" in request.raw] == []
