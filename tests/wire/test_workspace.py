"""The workspace block in requests: it follows everything that is cached."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, Config, WorkspaceConfig
from orch.processes.in_process import InProcessLauncher
from orch_worker.workspace import ranking
from wire.model_server import ModelServer, call, say
from wire.sent_requests import assert_goes_on, of_agents
from wire.test_summaries import environment

MODELS = ["anthropic:claude-sonnet-5-5", "openai:gpt-5.2"]
READ = {"call": "read_file", "input": {"path": "pump.py"}}
HEADING = ranking.HEADING


def project(folder: Path) -> Path:
    """Create a folder with two files, and return it."""
    folder.mkdir()
    (folder / "pump.py").write_text("class Pump:\n    def flow(self): ...\n")
    (folder / "notes.md").write_text("# Valves\n\n## Seals\n")
    return folder


@pytest.mark.parametrize("model", MODELS)
async def test_workspace_block_is_in_the_tail_and_keeps_the_prefix(
    server: ModelServer, model: str, tmp_path: Path
) -> None:
    """The tail lists the artifacts from the request after the calls on, the most relevant first.

    Without artifacts, there is no workspace block.
    """
    cwd = project(tmp_path / "project")
    server.script += [
        call(READ, {"call": "read_file", "input": {"path": "notes.md"}}),
        say("Read."),
        say("It flows."),
        say("They seal."),
    ]
    config = Config(workspace=WorkspaceConfig(enabled=True))
    async with AsyncOrchestrator(
        model, home=tmp_path / "home", env=environment(server), config=config, launcher=InProcessLauncher
    ) as o:
        agent = await o.spawn("Look", tools=["read_file"], cwd=cwd)
        await agent.query("Read both.")
        await agent.query("What of the flow of the pump?")
        await agent.query("And the seals of the valves?")
        shown = await agent.prompt_parts()
        messages = str((await agent.show()).messages)
    assert server.refused == []
    sent = of_agents(server.requests)
    for before, after in pairwise(sent):
        assert_goes_on(before, after)
    tails = [each.tail.replace("\\n", "\n") for each in sent]
    assert [HEADING in tail for tail in tails] == [False, True, True, True]
    for tail in tails[1:]:
        assert "file:pump.py (36 B; read_file, turn 1): class Pump: ... defines Pump, flow" in tail
        assert "file:notes.md (19 B; read_file, turn 1): # Valves ... headings: Valves, Seals" in tail
    assert [tail.index("file:pump") < tail.index("file:notes") for tail in tails[2:]] == [True, False]
    assert HEADING not in messages
    part = next(part for part in shown.parts if part.name == "objects")
    assert (part.tier, part.change) == ("volatile", "")
    assert 0 < part.tokens <= 1_000


async def test_workspace_is_off_by_default(server: ModelServer, tmp_path: Path) -> None:
    """Without configuration, there is no workspace block, tool or entry."""
    cwd = project(tmp_path / "project")
    server.script += [call(READ), say("Read.")]
    async with AsyncOrchestrator(
        MODELS[0], home=tmp_path / "home", env=environment(server), launcher=InProcessLauncher
    ) as o:
        agent = await o.spawn("Look", tools=["read_file"], cwd=cwd)
        await agent.query("Read it.")
        there = await agent.workspace.show()
        types = {row.type for row in (await agent.session.tree()).entries}
    assert (there.enabled, there.artifacts, there.digest) == (False, (), "")
    assert "custom" not in types
    sent = "".join(str(request.body) for request in server.requests)
    assert HEADING not in sent
    assert "pin_object" not in sent
