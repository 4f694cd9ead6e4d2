"""Imported conversations of other programs, continued with a server that refuses incomplete conversations."""

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
    """Return messages of typed blocks with two calls. Only the second call has a result."""
    use = {"type": "tool_use", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t2", "content": "late"}
    return [
        {"role": "user", "content": "look twice"},
        {"role": "assistant", "content": [use | {"id": "t1"}, use | {"id": "t2"}]},
        {"role": "user", "content": [result]},
    ]


def cut(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a session that ends after the first result of two parallel calls."""
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
    """Let `server` accept the signed content of the file at `path` from its model, and return `path`."""
    model = MODELS[0].partition(":")[2]
    path.write_text(path.read_text().replace("c2ln", sign("Hm.")).replace("some-model", model))
    server.issued |= {sign("Hm."): "Hm.", HIDDEN["data"]: HIDDEN}
    server.issued |= {f"model/{sign('Hm.')}": model, f"model/{HIDDEN['data']}": model}
    return path


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SESSIONS)
async def test_imported_conversation_accepts_a_further_question(
    server: ModelServer, tmp_path: Path, name: str, model: str
) -> None:
    """The server accepts a question after an imported conversation of each format, with each API."""
    path = signed(server, dump_lines(tmp_path / "session.jsonl", SESSIONS[name]()))
    async with AsyncOrchestrator(model, home=tmp_path / "home", env=environment(server), **fake_world()) as root:
        agent = await root.sessions.import_(path, tools=[])
        assert (await agent.query("And what now?")).text == "done"
        assert server.refused == []
        sent = json.dumps(server.requests[-1].body)
        assert "And what now?" in sent
        assert "Task:" not in sent


async def test_signed_content_returns_to_its_model_only(server: ModelServer, tmp_path: Path) -> None:
    """Signed thinking and images are sent to the model that signed the thinking.

    Another model does not get the signature, even if it is a model of the same provider.
    """
    path = signed(server, dump_lines(tmp_path / "session.jsonl", pi_tree()[:8]))
    async with AsyncOrchestrator(MODELS[0], home=tmp_path / "home", env=environment(server), **fake_world()) as root:
        agent = await root.sessions.import_(path, tools=[])
        await agent.query("And what now?")
        sent = [block for message in server.requests[-1].body["messages"] for block in message["content"]]
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")}
        assert [block for block in sent if "thinking" in block["type"]] == [thinking, HIDDEN]
        assert PICTURE in json.dumps(sent)
        for model in (MODELS[1], "anthropic:claude-opus-4-8"):
            other = await root.sessions.import_(path, tools=[], model=model)
            await other.query("And what now?")
            assert sign("Hm.") not in json.dumps(server.requests[-1].body)
            assert HIDDEN["data"] not in json.dumps(server.requests[-1].body)
        assert server.refused == []
