"""What the model is told of a way that its conversation leaves: by a model's word, or what was asked and answered."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from agent_history import EAGER, Life, steps
from orch import AsyncSubagent, ScriptedBackend
from orch_protocol.core.messages import text_of
from orch_worker.context.branch_summary import extract_branch_summary, left_behind
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import read_session
from orchestrator.root_double import World, opened

LEFT = "[What came of a branch of this conversation that was left:]"


async def talked(o: World, summaries: Any = ()) -> tuple[AsyncSubagent, str]:
    """Return an agent that was asked twice, and the entry behind the first answer."""
    agent = await o.spawn(
        "Plan a trip", backend=ScriptedBackend(["By train.", "Two hours.", "One."], summaries), context="none"
    )
    await agent.query("How?")
    place = (await agent.session.tree()).leaf
    assert place is not None
    await agent.query("How long?")
    return agent, place


def said(o: World, agent: AsyncSubagent) -> list[str]:
    """Return what the model is shown."""
    session: SessionState = read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))
    return [text_of(message) for message in session.messages]


async def test_the_model_writes_what_came_of_it(tmp_path: Path) -> None:
    """It is shown what is left and nothing else; the next request has its notes, and what it took is counted."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, ["Tried: the train, two hours."])
        before = (await agent.state()).usage.output_tokens
        await agent.session.checkout(place, summarize=True)
        assert said(o, agent)[-1] == f"{LEFT}\n\nTried: the train, two hours."
        assert (await agent.state()).usage.output_tokens > before
        assert (await agent.query("And else?")).text == "One."


async def test_an_agent_without_a_process_gets_one_for_it(tmp_path: Path) -> None:
    """As for a question; what it writes is on record when the call returns."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, ["Tried: the train."])
        gone = o.supervisor.waiters.watch(f"gone:{agent.id}:{o.supervisor.tree.agents[agent.id].incarnation}")
        o.launcher.worker(agent.id).die(-signal.SIGKILL)
        await gone
        await agent.session.checkout(place, summarize=True)
        assert said(o, agent)[-1] == f"{LEFT}\n\nTried: the train."
        assert o.status(agent) == "idle"


@pytest.mark.parametrize("why", ["no model", "it fails", "it says nothing", "killed"])
async def test_without_a_model_it_is_what_was_asked_and_answered(tmp_path: Path, why: str) -> None:
    """Also when the model fails, or the agent is killed and gets no process: going back does not."""
    summaries = {"no model": (), "it fails": [{"error": "BackendError"}], "it says nothing": [""], "killed": ["x"]}
    async with opened(tmp_path) as o:
        agent, place = await talked(o, summaries[why])
        if why == "killed":
            await agent.kill()
        await agent.session.checkout(place, summarize=True)
        assert said(o, agent)[-1] == f"{LEFT}\n\nAsked: How long?\nSaid: Two hours."


async def test_where_nothing_is_left_nothing_is_said(tmp_path: Path) -> None:
    """Going to where it is leaves nothing behind; words of one's own come before the model's."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, ["never asked"])
        leaf = (await agent.session.tree()).leaf
        await agent.session.checkout(leaf, summarize=True)
        assert LEFT not in str(said(o, agent))
        await agent.session.checkout(place, summary="my own", summarize=True)
        assert said(o, agent)[-1] == f"{LEFT}\n\nmy own"
        assert await agent.session.branch(place[:4], summarize=True) is None


def test_what_stays_is_not_told_of(tmp_path: Path) -> None:
    """Of turns that are archived as of others: what is behind the place is left, what is before it is not."""
    life = Life(tmp_path / "agent", EAGER)
    ids = []
    for turn in range(4):
        life.turn(*steps(1, f"t{turn}", 30), asked=f"ask {turn}", answer=f"answer {turn}")
        ids.append(life.entries()[-1].id)
        if turn < 3:
            life.archive()
    session = life.transcript.session
    texts = "\n".join(map(text_of, left_behind(session, ids[1])))
    assert "ask 2" in texts
    assert "ask 3" in texts
    assert "ask 1" not in texts
    assert len(left_behind(session, None)) == len(session.view.items)
    told = extract_branch_summary(left_behind(session, ids[1])).text
    assert "Asked: ask 3" in told
    assert "Calls that were made" in told
    assert extract_branch_summary([]).text == ""
    life.close()
