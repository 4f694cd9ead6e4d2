"""A strict model server, and backends that talk to it with the real SDKs and never really wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from wire.api_backends import PEERS, Peer, Talk
from wire.model_server import ModelServer


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A server without a script."""
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def begin(server: ModelServer) -> AsyncIterator[Callable[..., Talk]]:
    """Begins conversations with the server and closes their clients afterwards."""
    talks: list[Talk] = []

    def begin(peer: Peer, **options: Any) -> Talk:
        talks.append(peer.talk(server, **options))
        return talks[-1]

    yield begin
    for talk in talks:
        await talk.backend.close()


@pytest.fixture
def as_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends of this process take the server on loopback for OpenAI itself."""
    monkeypatch.setattr("orch_worker.backends.providers.openai.HOST", "127.0.0.1")


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each API in turn."""
    return PEERS[request.param]


@pytest.fixture
def talk(peer: Peer, begin: Callable[..., Talk]) -> Talk:
    """A conversation by each API in turn."""
    return begin(peer)
