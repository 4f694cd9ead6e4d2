"""The backends with a model server of another project (aimock, from npm), which checks our reading of the APIs.

`make external` installs aimock (this needs npm) and runs these tests. Alternatively, the variable AIMOCK contains the
path of its program `llmock`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError, RateLimitError
from orch_protocol.core.messages import text_of, tool_uses
from orch_worker.backends.http.retry import RetryPolicy
from source_tree import ROOT
from wire.api_backends import PEERS, Peer, Talk

PROGRAM = os.environ.get("AIMOCK") or str(ROOT / ".ci" / "node" / "node_modules" / ".bin" / "llmock")
DEADLINE = 20.0

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which(PROGRAM) is None,
        reason="aimock is not installed: make external",
    ),
]


def calling(id: str, city: str) -> dict[str, Any]:
    """Return a block that calls the tool `weather`."""
    return {"type": "toolCall", "id": id, "name": "weather", "arguments": {"city": city}}


LOOK = [{"type": "text", "text": "Let me look."}, calling("toolu_A", "Paris"), calling("toolu_B", "Oslo")]
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "weather", "hasToolResult": False}, "response": {"blocks": LOOK}},
    {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "Paris 20C, Oslo 5C."}},
    {
        "match": {"userMessage": "limited"},
        "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 3},
    },
    {
        "match": {"userMessage": "cut"},
        "response": {"content": "a long answer that nobody will ever read to its end"},
        "chunkSize": 4,
        "truncateAfterChunks": 4,
    },
    {"match": {"userMessage": "short"}, "response": {"content": "so far", "finishReason": "length"}},
]


class Server:
    """The address of a running aimock."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One running aimock for all tests of this module."""
    folder = tmp_path_factory.mktemp("aimock")
    (folder / "script.json").write_text(json.dumps({"fixtures": FIXTURES}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [PROGRAM, "-p", str(port), "-f", str(folder), "--strict", "--log-level", "warn"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until_up(port)
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE)


def _until_up(port: int) -> None:
    end = time.monotonic() + DEADLINE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end, "aimock does not listen"
            time.sleep(0.02)
        else:
            return


@pytest.fixture(params=PEERS)
async def talk(request: pytest.FixtureRequest, aimock: Server) -> AsyncIterator[Talk]:
    """A conversation with a model of each API."""
    peer: Peer = PEERS[request.param]
    talk = peer.talk(aimock)  # type: ignore[arg-type]
    yield talk
    await talk.backend.close()


async def test_parallel_calls_are_answered(talk: Talk) -> None:
    """Two parallel calls arrive, and the server answers the request that contains their results."""
    turn = await talk.ask("How is the weather?")
    assert turn.stop_reason == "tool_use"
    assert [use.input for use in tool_uses(turn.message)] == [{"city": "Paris"}, {"city": "Oslo"}]
    assert "".join(talk.texts) == text_of(turn.message) == "Let me look."
    talk.answer(turn, "20C", "5C")
    assert text_of((await talk.turn()).message) == "Paris 20C, Oslo 5C."


async def test_rate_limit_is_reported_with_its_wait(talk: Talk) -> None:
    """A rate limit raises RateLimitError, and the delay before the retry is the one that the server requests."""
    talk.backend.policy = RetryPolicy(refusals=2)
    with pytest.raises(RateLimitError, match="Slow down"):
        await talk.ask("limited")
    assert talk.waits == [3.0]


async def test_cut_stream_is_retried_then_an_error(talk: Talk) -> None:
    """A stream that breaks off is retried, and is an error after the last attempt."""
    talk.backend.policy = RetryPolicy(attempts=2)
    with pytest.raises(BackendError):
        await talk.ask("cut")
    assert len(talk.retries) == 1


async def test_cut_response_has_stop_reason_max_tokens(talk: Talk) -> None:
    """A response that reached its token limit has the stop reason `max_tokens`."""
    turn = await talk.ask("short")
    assert (text_of(turn.message), turn.stop_reason) == ("so far", "max_tokens")
