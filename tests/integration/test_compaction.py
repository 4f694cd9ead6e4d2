"""Real agents exceed the context window and continue; kills during compaction lose nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from integration import killed_archiving
from leak_check import allow
from orch import AsyncOrchestrator, CompactionConfig, Config, ScriptedBackend
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.agent.config import ChildCompactionConfig, SubagentsConfig
from orch_protocol.core.errors import AgentDiedError
from orch_protocol.core.messages import assistant, text_of, user
from orch_worker.session.session_reader import read_session

Open = Any
HERE = Path(__file__).parent
HISTORY = [message for n in range(8) for message in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 400))]


def compacting(tokens: int = 800, **child: Any) -> Config:
    """Return a configuration that compacts conversations at `tokens`. `child` configures the compaction of
    subagents.
    """
    theirs = SubagentsConfig(allow_nested=True, context_compaction=ChildCompactionConfig(**child))
    return Config(context_compaction=CompactionConfig(compact_tokens=tokens), subagents=theirs)


@pytest.mark.parametrize("world", ["zygote"], indirect=True)
async def test_compaction_keeps_every_message_in_the_session(world: Open, tmp_path: Path) -> None:
    """The summary replaces the first messages of the conversation, and checking out an earlier leaf shows these
    messages.
    """
    o = await world(config=compacting())
    script = ScriptedBackend(["nine", "ten"], ["Eight questions were answered."])
    agent = await o.spawn("count", tools=[], backend=script, cwd=tmp_path, history=HISTORY)
    leaf = (await agent.session.tree()).leaf
    assert (await agent.query("how many?")).text == "nine"
    shown = await agent.show()
    assert text_of(shown.messages[0]).startswith("[Summary of the conversation so far]\n\nEight questions")
    assert "answer 0" not in str(shown.messages)
    assert (await agent.state()).context_tokens < 400
    assert [entry.type for entry in (await agent.session.tree()).entries].count("compaction") == 1
    await agent.session.checkout(leaf)
    assert "answer 0" in str((await agent.show()).messages)


@pytest.mark.parametrize("world", ["fake"], indirect=True)
async def test_subagents_have_their_own_compaction_mode(world: Open) -> None:
    """With the mode `off`, subagents are not compacted, and their parent is."""
    o = await world(config=compacting(100, mode="off"))
    spawn = {"tool": "spawn_subagent", "input": {"task": "x" * 800, "tools": ["list_files"]}}
    agent = await o.spawn("lead", tools=["spawn_subagent", "list_files"], backend=ScriptedBackend([spawn, "done"]))
    await agent.query("go")
    [child] = [each for each in await o.agents() if each.id != agent.id]
    assert o.supervisor.tree.agents[child.id].spec.compaction is None
    assert o.supervisor.tree.agents[agent.id].spec.compaction.tokens == 100


@pytest.mark.skipif(sys.platform != "linux", reason="these processes are tied together by Linux")
@pytest.mark.parametrize("point", killed_archiving.compaction_points())
async def test_killed_worker_during_compaction_leaves_a_whole_conversation(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation contains either the summary or all original messages, and the next query is answered."""
    roots = [str(HERE.parents[1] / root) for root in ("orchestrator", "worker", "protocol")]
    monkeypatch.setenv("PYTHONPATH", ":".join([*roots, str(HERE)]))
    deadly_file = tmp_path / "deadly"
    monkeypatch.setenv("DEADLY", str(deadly_file))
    allow(monkeypatch, "DEADLY")
    deadly_file.write_text(point)
    async with AsyncOrchestrator(
        home=tmp_path / "home",
        env={},
        config=compacting(),
        launcher=lambda run, folder: ZygoteLauncher(run, folder, entry="killed_archiving:main"),
    ) as o:
        script = ScriptedBackend(["nine"], ["Eight questions were answered."])
        agent = await o.spawn("count", tools=[], backend=script, cwd=tmp_path, history=HISTORY)
        folder = Path((await agent.state()).folder)
        deadly_file.unlink()
        with pytest.raises(AgentDiedError):
            await agent.query("how many?")
        left = read_session(folder)
        assert ("answer 0" in str(left.messages)) != ("Eight questions" in str(left.messages))
        assert (await agent.query("how many?")).text == "nine"
        lines = (folder / "session.jsonl").read_text()
        assert all(lines.count(f'"text":"answer {n} x') == 1 for n in range(8))
        assert lines.count('{"type":"compaction"') == 1
        shown = await agent.show()
        assert text_of(shown.messages[0]).count("Eight questions were answered.") == 1
        assert "answer 7" in str(shown.messages)
