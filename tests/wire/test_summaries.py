"""Summaries of archived turns: the requests for them and the records in the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config
from orch.processes.in_process import InProcessLauncher
from orch_protocol.agent.config import SummaryConfig, TriggerConfig
from orch_protocol.core.messages import assistant, text_of, user
from wire.model_server import ModelServer, call, say

MODELS = ["anthropic:claude-sonnet-5-5", "openai:gpt-5.2"]
SUMMARY = '{"outcome": "Both were read.", "key_findings": ["one.txt says 4711"]}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a large file."""
    (tmp_path / "one.txt").write_text("the port is 4711\n" * 200)
    return tmp_path


def environment(server: ModelServer) -> dict[str, str]:
    """Return the environment of a user whose models are at `server`."""
    return {
        "ANTHROPIC_API_KEY": "k1",
        "ANTHROPIC_BASE_URL": server.url,
        "OPENAI_API_KEY": "k2",
        "OPENAI_BASE_URL": f"{server.url}/v1",
    }


async def summarised(server: ModelServer, model: str, folder: Path, before: int, style: Any) -> list[str]:
    """Return the texts of a conversation whose last turn was archived. `before` characters of text precede the turn."""
    archival = ArchivalConfig(
        enabled=True,
        async_=False,
        profile="seed",
        trigger=TriggerConfig(tool_call_threshold=2, token_threshold=10**9),
        summary=SummaryConfig(style=style),
    )
    reads = [{"call": "read_file", "input": {"path": "one.txt"}}] * 2
    usage = {"input": 5_000 + before // 4, "output": 10}
    text = SUMMARY if style == "structured" else "Both were read: one.txt says 4711."
    server.script += [call(*reads), say("It says 4711.", usage=usage), say(text), say("ready")]
    env = environment(server)
    home = folder / "home"
    config = Config(archival=archival)
    async with AsyncOrchestrator(model, home=home, env=env, config=config, launcher=InProcessLauncher) as o:
        history = [user("y" + "x" * before), assistant("Noted.")]
        agent = await o.spawn("Read", preset="minimal", cwd=folder, history=history)
        await agent.query("What does it say?")
        await agent.query("Are you ready?")
        return [text_of(message) for message in (await agent.show()).messages]


@pytest.mark.parametrize("style", ["structured", "paragraph"])
@pytest.mark.parametrize("model", MODELS)
async def test_summary_request_extends_the_cached_request(
    server: ModelServer, model: str, folder: Path, style: Any
) -> None:
    """The summary request has the tools and messages of the turn, and one further question."""
    shown = await summarised(server, model, folder, 0, style)
    assert server.refused == []
    turn, beside, after = (server.requests[place].body for place in (1, 2, 3))
    assert beside["tools"] == turn["tools"]
    assert "Call no tools" in str(beside)
    assert "the port is 4711" in str(beside)
    assert "Both were read" in shown[3]
    assert shown[3].endswith("It says 4711.")
    assert "Call no tools" not in str(after)


@pytest.mark.parametrize("model", MODELS)
async def test_separate_summary_request_has_the_archived_part_only(
    server: ModelServer, model: str, folder: Path
) -> None:
    """If the conversation is much longer than the turn, the summary request contains only the turn, and no tools."""
    shown = await summarised(server, model, folder, 300_000, "structured")
    assert server.refused == []
    apart = server.requests[2].body
    assert not apart.get("tools")
    assert "Summarize this finished turn" in str(apart)
    assert "Both were read" in shown[3]


async def test_model_without_reliable_json_writes_a_paragraph(
    server: ModelServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A local model is asked for a paragraph, although the configured style is structured. This is printed once."""
    archival = ArchivalConfig(
        enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=1, token_threshold=10**9)
    )
    read = {"call": "read_file", "input": {"path": "one.txt"}}
    server.script += [call(read), say("It says 4711."), say("One file was read: one.txt says 4711.")]
    env = {"OLLAMA_HOST": server.url}
    config = Config(archival=archival)
    async with AsyncOrchestrator(
        "ollama:qwen3", home=folder / "home", env=env, config=config, launcher=InProcessLauncher
    ) as o:
        agent = await o.spawn("Read", preset="minimal", cwd=folder)
        await agent.query("What does it say?")
        assert "One file was read" in text_of((await agent.show()).messages[1])
        await o.spawn("Read again", preset="minimal", cwd=folder)
    assert server.refused == []
    assert "Answer with one paragraph" in str(server.requests[-1].body)
    note = "orch: summaries of archived turns are paragraphs, because models of ollama do not write JSON reliably"
    assert capsys.readouterr().err.count(note) == 1


@pytest.mark.parametrize(
    ("model", "archival", "noted"),
    [
        ("ollama:qwen3", {"enabled": True, "summary": SummaryConfig(style="paragraph")}, False),
        ("ollama:qwen3", {"enabled": False}, False),
        ("openai:gpt-5.2", {"enabled": True}, False),
        ("openai:gpt-5.2", {"enabled": True, "summary": SummaryConfig("structured", "ollama:qwen3")}, True),
        ("openai:gpt-5.2", {"enabled": True, "summary": SummaryConfig(model="ollama:qwen3")}, False),
    ],
)
async def test_forced_paragraphs_are_noted_if_they_differ_from_the_settings(
    server: ModelServer, folder: Path, capsys: pytest.CaptureFixture[str], model: str, archival: Any, noted: bool
) -> None:
    """The model that writes the summaries counts."""
    env = environment(server) | {"OLLAMA_HOST": server.url}
    config = Config(archival=ArchivalConfig(**archival))
    async with AsyncOrchestrator(model, home=folder / "home", env=env, config=config, launcher=InProcessLauncher) as o:
        await o.spawn("Read", preset="minimal", cwd=folder)
    assert ("paragraphs, because models of ollama" in capsys.readouterr().err) is noted
