"""Memory in requests: the notes of one session are in the requests of later sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AsyncOrchestrator, CompactionConfig, Config
from orch.processes.in_process import InProcessLauncher
from orch_protocol.core.messages import assistant, user
from orch_protocol.resources.memory import MemoryConfig
from wire.model_server import ModelServer, call, fail, say
from wire.test_compaction import HISTORY, TOO_LONG
from wire.test_summaries import environment

MODELS = ["anthropic:claude-sonnet-5-5", "openai:gpt-5.2"]


def orchestrator(server: ModelServer, model: str, home: Path, **memory: object) -> AsyncOrchestrator:
    """Return an orchestrator with memory, whose agents use `model` at `server`."""
    return AsyncOrchestrator(
        model,
        home=home,
        env=environment(server),
        config=Config(memory=MemoryConfig(enabled=True, **memory)),  # type: ignore[arg-type]
        launcher=InProcessLauncher,
    )


@pytest.mark.parametrize("model", MODELS)
async def test_notes_are_in_requests_of_a_later_root(server: ModelServer, model: str, tmp_path: Path) -> None:
    """A later agent in the same project gets the notes. An agent in another folder does not get them."""
    server.script += [call({"call": "remember", "input": {"text": "The port is 4711."}}), say("Noted.")]
    (tmp_path / "project").mkdir()
    async with orchestrator(server, model, tmp_path / "home") as o:
        agent = await o.spawn("Note it", tools=[], cwd=tmp_path / "project")
        assert (await agent.query("The port is 4711.")).text == "Noted."
    async with orchestrator(server, model, tmp_path / "home") as o:
        other = await o.spawn("Look", tools=[], cwd=tmp_path / "project")
        await other.query("Which port is it?")
        found = str(server.requests[-1].body)
        elsewhere = await o.spawn("Look", tools=[], cwd=tmp_path)
        await elsewhere.query("Which port is it?")
    assert server.refused == []
    assert "# Memory" in found
    assert "The port is 4711." in found
    assert "4711" not in str(server.requests[-1].body)


@pytest.mark.parametrize("model", MODELS)
async def test_memory_is_extracted_during_a_compaction(server: ModelServer, model: str, tmp_path: Path) -> None:
    """The request for a summary also asks for notes.

    The summary does not contain the notes, and later agents get them.
    """
    server.script += [TOO_LONG, say("Done: eight answers.\n\nRemember:\n- The valve is made by Ohm."), say("Fine.")]
    async with orchestrator(server, model, tmp_path / "home") as o:
        agent = await o.spawn("Answer", tools=[], cwd=tmp_path, history=HISTORY)
        assert (await agent.query("And?")).text == "Fine."
        assert "Remember:" in str(server.requests[1].body)
        assert "Done: eight answers." in str(server.requests[2].body)
        assert "Ohm" not in str((await agent.show()).messages)
        later = await o.spawn("Look", tools=[], cwd=tmp_path)
        await later.query("Who makes the valve?")
    assert "The valve is made by Ohm." in str(server.requests[-1].body)
    assert server.refused == []


async def test_memory_is_off_by_default(server: ModelServer, tmp_path: Path) -> None:
    """Requests contain no notes and no tool for notes, and a compaction asks only for the summary."""
    history = [message for n in range(8) for message in (user(f"q{n}"), assistant(f"a{n} " + "x" * 400))]
    server.script += [fail(400, "invalid_request_error", "prompt is too long"), say("notes"), say("Fine.")]
    async with AsyncOrchestrator(
        MODELS[0],
        home=tmp_path,
        env=environment(server),
        config=Config(context_compaction=CompactionConfig()),
        launcher=InProcessLauncher,
    ) as o:
        agent = await o.spawn("Answer", tools=[], cwd=tmp_path, history=history)
        await agent.query("And?")
    assert "remember" not in "".join(str(request.body) for request in server.requests).lower()
    assert not (tmp_path / "memory").exists()
