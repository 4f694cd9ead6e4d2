"""Approvals of calls of a grandchild: the user of the root decides, and all conversations stay valid."""

from __future__ import annotations

from pathlib import Path

from orch import AsyncOrchestrator, Config, PolicyConfig, Question, SubagentsConfig
from wire.each_api import MODELS
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment

TOOLS = ["bash", "spawn_subagent", "query_subagent"]
DOWN = {"call": "spawn_subagent", "input": {"task": "tidy up", "tools": TOOLS, "query": "tidy up"}}
REMOVE = {"call": "bash", "input": {"command": "rm precious.txt"}}


async def test_call_of_a_grandchild_is_denied_at_the_root(server: ModelServer, tmp_path: Path) -> None:
    """The user is asked once about the call of the grandchild. A denied call has no effect.

    After the denial, the server accepts the requests of all three agents, in this turn and in the next turn.
    """
    (tmp_path / "precious.txt").write_text("x")
    asked: list[Question] = []

    def approve(question: Question) -> bool:
        asked.append(question)
        return False

    config = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(approval_mode="ask"))
    home, env = tmp_path / "home", environment(server)
    async with AsyncOrchestrator(MODEL, config=config, home=home, env=env, approve=approve) as root:
        for model in MODELS:
            server.requests.clear()
            asked.clear()
            server.script += [call(DOWN), call(DOWN), call(REMOVE)]
            server.script += map(say, ["I was denied.", "It was.", "They were."])
            agent = await root.spawn("Keep order", model=model, tools=TOOLS, cwd=tmp_path)
            assert (await agent.query("Tidy up")).text == "They were."
            (question,) = asked
            assert (question.depth, question.tool, question.subject) == (3, "bash", "rm precious.txt")
            assert question.task == "tidy up"
            assert len({request.path for request in server.requests}) == 1, "all three ask the model of the first"
            denied = server.requests[3].body
            assert "the user denied it" in str(denied)
            assert "Stop and ask" in str(denied)
            server.script += map(say, ["one", "two", "three"])
            below = [await root.get(seq) for seq in range(agent.seq, agent.seq + 3)]
            assert [(await each.query("And now?")).text for each in below] == ["one", "two", "three"]
            assert server.refused == []
    assert (tmp_path / "precious.txt").exists()
