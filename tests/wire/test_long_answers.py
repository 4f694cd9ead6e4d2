"""An answer of 30 MB: it is stored completely and shown in part, and later requests have the usual size."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config
from orch.processes.in_process import InProcessLauncher
from wire.model_server import Answer, ModelServer, Request, say
from wire.test_summaries import SUMMARY, environment

LONG = "All work and no play. " * 1_400_000
MAX_REQUESTS = 8
CONFIGS = {
    "compaction": Config(),
    "archival": Config(archival=ArchivalConfig(enabled=True, async_=False)),
}


def answers(request: Request) -> Answer:
    """Answer a request of the agent, or a request for a summary."""
    found = str(request.body)
    return say(SUMMARY if "You compress a finished piece" in found else "Short.")


@pytest.mark.parametrize("config", CONFIGS)
async def test_thirty_megabyte_answer_is_stored_with_few_requests(
    server: ModelServer, tmp_path: Path, config: str
) -> None:
    """The reply is cut, but the transcript contains the whole answer.

    Later queries need few requests, and all requests are small.
    """
    server.script.append(say(LONG))
    server.otherwise = answers
    async with AsyncOrchestrator(
        "openai:gpt-4o",
        home=tmp_path / "home",
        env=environment(server),
        config=CONFIGS[config],
        launcher=InProcessLauncher,
    ) as o:
        agent = await o.spawn("Talk", preset="minimal", cwd=tmp_path)
        reply = await agent.query("Say it all.")
        assert len(reply.text) < 1_000_000
        assert reply.whole
        for _ in range(2):
            assert (await agent.query("And now?")).text == "Short."
    assert len(server.requests) <= MAX_REQUESTS
    assert all(len(request.raw) < 1_000_000 for request in server.requests)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*.jsonl"))
    assert len(stored) > len(LONG)
