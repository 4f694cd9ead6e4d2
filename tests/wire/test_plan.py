"""Plan mode and revoked tools in requests: notices are at the end, and the cached prefix does not change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from orch import AsyncOrchestrator
from orch.testing import fake_world
from wire.each_api import MODELS, each_model
from wire.model_server import ModelServer, call, say
from wire.sent_requests import Sent, assert_goes_on, of_agents
from wire.test_end_to_end import MODEL, environment, read


@pytest.fixture
async def root(server: ModelServer, tmp_path: Path) -> AsyncIterator[AsyncOrchestrator]:
    """A root that approves every plan, and a folder with a file."""
    (tmp_path / "one.txt").write_text("this is one\n")
    env = environment(server)
    async with AsyncOrchestrator(
        MODEL, home=tmp_path / "home", env=env, approve=lambda _: True, **fake_world()
    ) as root:
        yield root


@each_model
async def test_plan_mode_keeps_the_cached_prefix(
    server: ModelServer, root: AsyncOrchestrator, tmp_path: Path, model: str
) -> None:
    """Each request extends the previous one with the same tools, before and after the approval.

    The tail describes plan mode until the plan is approved.
    """
    write = {"call": "write_file", "input": {"path": "out.txt", "content": "x"}}
    plan = {"call": "exit_plan_mode", "input": {"plan": "Write out.txt."}}
    server.script += [call(read("one.txt")), call(write), call(plan), call(write), say("done"), say("again")]
    agent = await root.spawn("x", model=model, tools=["read_file", "write_file"], cwd=tmp_path, plan=True)
    assert (await agent.query("Go")).text == "done"
    await agent.query("And?")
    sent = of_agents(server.requests)
    assert ["Plan mode" in each.tail for each in sent] == [True, True, True, False, False, False]
    assert all("exit_plan_mode" in each.tools for each in sent)
    for before, after in pairwise(sent):
        assert_goes_on(before, after)
    plain = await root.spawn("x", model=model, tools=["read_file"], cwd=tmp_path)
    await plain.query("Go")
    last = of_agents(server.requests)[-1]
    assert last.tail == ""
    assert "exit_plan_mode" not in last.tools
    (tmp_path / "out.txt").unlink()


async def test_revoking_tools_keeps_the_cached_prefix(server: ModelServer, tmp_path: Path) -> None:
    """Revoked tools stay in the list of tools, and the tail of each later request names them as denied."""
    (tmp_path / "one.txt").write_text("this is one\n")
    reading = [call(read("one.txt")), say("one")]
    home, env = tmp_path / "home", environment(server)
    first, then, ids = dict[str, list[Sent]](), dict[str, list[Sent]](), dict[str, str]()
    async with AsyncOrchestrator(MODEL, home=home, env=env, run="r", **fake_world()) as root:
        for model in MODELS:
            server.script += reading * 2
            agent = await root.spawn("x", model=model, tools=["read_file", "list_files"], cwd=tmp_path)
            assert (await agent.query("Go")).tool_calls == 1
            await agent.revoke_tools(keep=["list_files"])
            assert (await agent.query("Go")).tool_calls == 0
            ids[model], first[model] = agent.id, of_agents(server.requests[-4:])
    async with AsyncOrchestrator(MODEL, home=home, env=env, run="r", **fake_world()) as root:
        for model in MODELS:
            server.script += reading
            assert (await (await root.get(ids[model])).query("Go")).tool_calls == 0
            then[model] = of_agents(server.requests[-2:])
    for model in MODELS:
        sent = first[model] + then[model]
        denied = ["Revoked for you, so calls are denied: read_file." in each.tail for each in sent]
        assert denied == [False] * 2 + [True] * 4, model
        for before, after in pairwise(sent):
            assert_goes_on(before, after)
    assert server.refused == []
