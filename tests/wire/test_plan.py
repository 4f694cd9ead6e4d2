"""Plan mode on the wire: said at the end of each request, breaking nothing that is cached, gone with the approval."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from orch import AsyncOrchestrator
from wire.model_server import ModelServer, call, say
from wire.sent import assert_goes_on, of_agents
from wire.test_end_to_end import MODEL, environment, read


@pytest.mark.parametrize("model", [MODEL, "openai:gpt-4o", "openai:gpt-6-luna"])
async def test_plan_mode_breaks_no_cache(server: ModelServer, tmp_path: Path, model: str) -> None:
    """Before and after the approval each request is the one before it and more, with the same tools; an agent that
    does not plan is told nothing."""
    (tmp_path / "one.txt").write_text("this is one\n")
    write = {"call": "write_file", "input": {"path": "out.txt", "content": "x"}}
    plan = {"call": "exit_plan_mode", "input": {"plan": "Write out.txt."}}
    server.script += [call(read("one.txt")), call(write), call(plan), call(write), say("done"), say("again")]
    env = environment(server)
    async with AsyncOrchestrator(model, home=tmp_path / "home", env=env, approve=lambda _: True) as root:
        agent = await root.spawn("x", tools=["read_file", "write_file"], cwd=tmp_path, plan=True)
        assert (await agent.query("Go")).text == "done"
        await agent.query("And?")
        sent = of_agents(server.requests)
        assert ["Plan mode" in each.tail for each in sent] == [True, True, True, False, False, False]
        assert all("exit_plan_mode" in each.tools for each in sent)
        for before, after in pairwise(sent):
            assert_goes_on(before, after)
        plain = await root.spawn("x", tools=["read_file"], cwd=tmp_path)
        await plain.query("Go")
        last = of_agents(server.requests)[-1]
        assert last.tail == ""
        assert "exit_plan_mode" not in last.tools
    assert server.refused == []
    assert (tmp_path / "out.txt").exists()
