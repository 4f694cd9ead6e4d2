"""What a grandchild wants is asked at the root; denied there, each conversation of the tree stays whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AsyncOrchestrator, Config, PolicyConfig, Question, SubagentsConfig
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment

TOOLS = ["bash", "spawn_subagent", "query_subagent"]
DOWN = {"call": "spawn_subagent", "input": {"task": "tidy up", "tools": TOOLS, "query": "tidy up"}}
REMOVE = {"call": "bash", "input": {"command": "rm precious.txt"}}


@pytest.mark.parametrize("model", [MODEL, "openai:gpt-4o", "openai:gpt-6-luna"])
async def test_a_grandchilds_rm_is_denied_at_the_root(server: ModelServer, tmp_path: Path, model: str) -> None:
    """The root is asked once, with the grandchild's context; nothing is removed, each agent hears of it and goes on.

    The server refuses any conversation that is not whole, in this turn and in the next.
    """
    (tmp_path / "precious.txt").write_text("x")
    asked: list[Question] = []

    def approve(question: Question) -> bool:
        asked.append(question)
        return False

    server.script += [call(DOWN), call(DOWN), call(REMOVE), *map(say, ["I was denied.", "It was.", "They were."])]
    config = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(approval_mode="ask"))
    home, env = tmp_path / "home", environment(server)
    async with AsyncOrchestrator(model, config=config, home=home, env=env, approve=approve) as root:
        agent = await root.spawn("Keep order", tools=TOOLS, cwd=tmp_path)
        assert (await agent.query("Tidy up")).text == "They were."
        (question,) = asked
        assert (question.depth, question.tool, question.subject) == (3, "bash", "rm precious.txt")
        assert question.task == "tidy up"
        denied = server.requests[3].body
        assert "the user said no" in str(denied)
        assert "Stop and ask" in str(denied)
        server.script += map(say, ["one", "two", "three"])
        assert [(await (await root.get(seq)).query("And now?")).text for seq in (1, 2, 3)] == ["one", "two", "three"]
    assert (tmp_path / "precious.txt").exists()
    assert server.refused == []
