"""Conversations that become too long for their model: they are compacted, and the turn completes."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, CompactionConfig, Config
from orch.processes.in_process import InProcessLauncher
from orch_protocol.core.errors import ContextOverflowError
from orch_protocol.core.messages import assistant, text_of, user
from orch_protocol.wire.worker_messages import TurnEvent
from wire.model_server import ModelServer, Request, call, fail, say
from wire.test_summaries import environment

MODELS = ["anthropic:claude-sonnet-5-5", "openai:gpt-5.2", "openai:gpt-4o"]
TOO_LONG = fail(400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum")
HISTORY = [message for n in range(8) for message in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 400))]


def orchestrator(server: ModelServer, model: str, home: Path, **config: Any) -> AsyncOrchestrator:
    """Return an orchestrator whose agents use `model` at `server`."""
    return AsyncOrchestrator(
        model,
        home=home,
        env=environment(server),
        config=Config(context_compaction=CompactionConfig(**config)),
        launcher=InProcessLauncher,
    )


@pytest.mark.parametrize("model", MODELS)
async def test_context_overflow_is_compacted_once_and_answered(server: ModelServer, model: str, tmp_path: Path) -> None:
    """If a request is refused as too long, the conversation is compacted and the turn completes.

    The model writes the summary, and the finished steps of the turn stay in the conversation.
    """
    (tmp_path / "one.txt").write_text("the port is 4711\n" * 20)
    read = {"call": "read_file", "input": {"path": "one.txt"}}
    server.script += [call(read), TOO_LONG, say("Eight questions were answered."), say("It is 4711.")]
    async with orchestrator(server, model, tmp_path / "home") as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path, history=HISTORY)
        events: list[TurnEvent] = []
        reply = await agent.query("What is the port?", on_event=events.append)
        session = await agent.show()
    assert server.refused == []
    assert (reply.text, reply.tool_calls) == ("It is 4711.", 1)
    refused, asked, again = (str(request.body) for request in server.requests[1:])
    assert "answer 0" in refused
    assert "write notes for an agent" in asked
    assert "answer 0" in asked
    assert "answer 0" not in again
    assert "Eight questions were answered." in again
    assert "What is the port?" in again
    assert "the port is 4711" in again
    [line] = [event.text for event in events if event.kind == "compacted"]
    assert "was refused as too long" in line
    assert "Eight questions" in text_of(session.messages[0])


async def test_request_that_never_fits_is_an_error_after_few_attempts(server: ModelServer, tmp_path: Path) -> None:
    """If nothing more can be shortened, the query fails, and the next query is answered."""
    server.otherwise = lambda request: say("notes") if "notes for an agent" in str(request.body) else TOO_LONG
    async with orchestrator(server, MODELS[0], tmp_path / "home") as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path, history=HISTORY)
        with pytest.raises(ContextOverflowError, match="too long"):
            await agent.query("What is the port?")
        assert 3 < len(server.requests) < 12
        server.otherwise = lambda _: say("done")
        assert (await agent.query("And now?")).text == "done"


async def test_repeated_refusals_shorten_the_conversation_and_results_until_it_fits(
    server: ModelServer, tmp_path: Path
) -> None:
    """A server that names no window refuses a long result: older messages go first, then the result is shortened."""
    (tmp_path / "one.txt").write_text("the port is 4711\n" * 1_500)
    read = call({"call": "read_file", "input": {"path": "one.txt"}})

    def answer(request: Request) -> Any:
        if len(str(request.body["messages"])) > 8_000:
            return fail(400, "invalid_request_error", "prompt is too long")
        return say("notes") if "notes for an agent" in str(request.body) else say("It is 4711.")

    server.script, server.otherwise = deque([read]), answer
    async with orchestrator(server, MODELS[0], tmp_path / "home") as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path, history=HISTORY)
        assert (await agent.query("What is the port?")).text == "It is 4711."
        messages = (await agent.show()).messages
    assert "characters left out" in str(server.requests[-1].body)
    assert len(str(messages[-2])) > 20_000, "the recorded result is unchanged"


async def test_refused_conversation_is_archived_before_it_is_compacted(server: ModelServer, tmp_path: Path) -> None:
    """If archiving frees enough, no summary is written, and the archived turns can be searched."""
    server.script += [TOO_LONG, say("It is 4711.")]
    long = [message for n in range(8) for message in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 9_000))]
    config = Config(archival=ArchivalConfig(enabled=True, profile="roomy"))
    async with AsyncOrchestrator(
        MODELS[0], home=tmp_path / "home", env=environment(server), config=config, launcher=InProcessLauncher
    ) as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path, history=long)
        assert (await agent.query("What is the port?")).text == "It is 4711."
        assert "[archived turn" in str((await agent.show()).messages)
    assert "notes for an agent" not in str([request.body for request in server.requests])
    assert len(server.requests[1].raw) < len(server.requests[0].raw) // 3


async def test_window_that_a_server_names_prevents_further_refusals(server: ModelServer, tmp_path: Path) -> None:
    """After one refusal by a server whose window is smaller than expected, later turns are compacted in time.

    Each request after the first refusal fits in the window of the server.
    """
    window = 4_000
    refused: list[int] = []

    def answer(request: Request) -> Any:
        size = len(str(request.body["messages"])) // 4
        if size > window:
            refused.append(len(server.requests))
            text = f"request ({size} tokens) exceeds the available context size ({window} tokens), try increasing it"
            return fail(500, "exceed_context_size_error", text)
        is_summary = "notes for an agent" in str(request.body)
        return say("Short notes." if is_summary else "x" * 1_200, usage={"input": size, "output": 300})

    server.otherwise = answer
    async with orchestrator(server, "openai:gpt-4o", tmp_path / "home") as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path)
        for number in range(14):
            assert (await agent.query(f"question {number} " + "z" * 1_200)).text.startswith("x")
    assert len(refused) == 1
    assert sum("notes for an agent" in str(request.body) for request in server.requests) > 1


async def test_context_overflow_without_compaction_is_an_error(server: ModelServer, tmp_path: Path) -> None:
    """With the mode `off`, a request that is too long is an error, and no other request is sent."""
    server.script.append(TOO_LONG)
    async with orchestrator(server, MODELS[0], tmp_path / "home", mode="off") as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path, history=HISTORY)
        with pytest.raises(ContextOverflowError):
            await agent.query("What is the port?")
        assert len(server.requests) == 1


@pytest.mark.parametrize("model", ["anthropic:claude-haiku-4-5", "openai:gpt-4o"])
async def test_oversized_session_is_compacted_before_its_first_request(
    server: ModelServer, model: str, tmp_path: Path
) -> None:
    """A session that exceeds the context window is summarized in several requests that fit, before its first answer."""
    sizes: list[int] = []

    def answer(request: Request) -> Any:
        sizes.append(len(request.raw))
        return say("notes so far") if "write notes for an agent" in str(request.body) else say("ready")

    server.otherwise = answer
    long = [
        message
        for n in range(300)
        for message in (user(f"question {n}: " + "why is it so " * 150), assistant(f"answer {n}: " + "it is so " * 300))
    ]
    async with orchestrator(server, model, tmp_path / "home") as o:
        agent = await o.spawn("Read", preset="minimal", cwd=tmp_path, history=long)
        assert (await agent.query("Are you ready?")).text == "ready"
        assert (await agent.state()).context_tokens < 20_000
    assert server.refused == []
    assert len(sizes) > 3
    assert max(sizes) < 450_000
    assert "notes so far" in str(server.requests[-1].body)
