"""Conversations from elsewhere go on with a model that refuses whatever is not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foreign_sessions import PICTURE, pi_tree, tree_rows
from orch import AsyncOrchestrator
from orch.testing import fake_world
from recordings import chat, dump_lines, pi, rows
from wire.messages_rules import sign
from wire.model_server import ModelServer
from wire.test_end_to_end import environment

HIDDEN = {"type": "redacted_thinking", "data": "aGlkZGVu"}
MODELS = ["anthropic:claude-sonnet-5-5", "openai:gpt-6-luna", "openai:gpt-4o"]


def typed() -> list[dict[str, Any]]:
    """Return messages of typed blocks that end in the middle of two calls."""
    use = {"type": "tool_use", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t2", "content": "late"}
    return [
        {"role": "user", "content": "look twice"},
        {"role": "assistant", "content": [use | {"id": "t1"}, use | {"id": "t2"}]},
        {"role": "user", "content": [result]},
    ]


def cut(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a session as it is when it ended with a call under way."""
    return lines[:6]


SESSIONS = {
    "tree": pi_tree,
    "list": lambda: pi(2, steps=2),
    "cut off": lambda: cut(pi_tree()),
    "rows": tree_rows,
    "rows without parents": rows,
    "chat": lambda: chat(2),
    "typed": typed,
}


def signed(server: ModelServer, path: Path) -> Path:
    """Let what the file at `path` has as signed by a provider be signed by `server`."""
    path.write_text(path.read_text().replace("c2ln", sign("Hm.")))
    server.issued |= {sign("Hm."): "Hm.", HIDDEN["data"]: HIDDEN}
    return path


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SESSIONS)
async def test_one_more_question(server: ModelServer, tmp_path: Path, name: str, model: str) -> None:
    """Whatever the conversation was recorded with, each API takes it with one more question."""
    path = signed(server, dump_lines(tmp_path / "session.jsonl", SESSIONS[name]()))
    async with AsyncOrchestrator(model, home=tmp_path / "home", env=environment(server), **fake_world()) as root:
        agent = await root.sessions.import_(path, tools=[])
        assert (await agent.query("And what now?")).text == "done"
        assert server.refused == []
        sent = json.dumps(server.requests[-1].body)
        assert "And what now?" in sent
        assert "Task:" not in sent


async def test_what_a_provider_signed_returns_to_it_alone(server: ModelServer, tmp_path: Path) -> None:
    """Thinking with its signature, and pictures, go to the provider they came from as they were."""
    path = signed(server, dump_lines(tmp_path / "session.jsonl", pi_tree()[:8]))
    async with AsyncOrchestrator(MODELS[0], home=tmp_path / "home", env=environment(server), **fake_world()) as root:
        agent = await root.sessions.import_(path, tools=[])
        await agent.query("And what now?")
        sent = [block for message in server.requests[-1].body["messages"] for block in message["content"]]
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")}
        assert [block for block in sent if "thinking" in block["type"]] == [thinking, HIDDEN]
        assert PICTURE in json.dumps(sent)
        other = await root.sessions.import_(path, tools=[], model=MODELS[1])
        await other.query("And what now?")
        assert sign("Hm.") not in json.dumps(server.requests[-1].body)
