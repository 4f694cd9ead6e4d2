"""Fixtures: a strict model server, and conversations that use the real SDKs and do not wait before retries."""

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
    """A function that starts conversations with the server. Their clients are closed after the test."""
    talks: list[Talk] = []

    def begin(peer: Peer, **options: Any) -> Talk:
        talks.append(peer.talk(server, **options))
        return talks[-1]

    yield begin
    for talk in talks:
        await talk.backend.close()


@pytest.fixture
def as_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make backends of this process treat the local server as the server of OpenAI."""
    monkeypatch.setattr("orch_worker.backends.formats.openai.HOST", "127.0.0.1")


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> Peer:
    """A model of each API. A test with this fixture runs once for each API."""
    return PEERS[request.param]


@pytest.fixture
def talk(peer: Peer, begin: Callable[..., Talk]) -> Talk:
    """A conversation with a model of each API."""
    return begin(peer)
