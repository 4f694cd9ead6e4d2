"""Summaries of abandoned branches: written by a model, or extracted from questions and answers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from agent_history import EAGER, Life, steps
from orch import AsyncSubagent, ScriptedBackend
from orch.tree.interface.topics import ExitTopic
from orch_protocol.core.messages import text_of
from orch_worker.context.branch_summary import extract_branch_summary, left_behind
from orch_worker.session.session import SessionState
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import World, opened

LEFT = "[What came of a branch of this conversation that was left:]"


async def talked(o: World, summaries: Any = ()) -> tuple[AsyncSubagent, str]:
    """Return an agent that has answered two queries, and the id of the entry after the first answer."""
    agent = await o.spawn(
        "Plan a trip", backend=ScriptedBackend(["By train.", "Two hours.", "One."], summaries), context="none"
    )
    await agent.query("How?")
    place = (await agent.session.tree()).leaf
    assert place is not None
    await agent.query("How long?")
    return agent, place


def shown_texts(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the texts of the messages that the model is shown."""
    session: SessionState = read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))
    return [text_of(message) for message in session.messages]


async def test_model_writes_a_branch_summary(tmp_path: Path) -> None:
    """The summary becomes the last message, and the tokens of the summary request count as usage."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, ["Tried: the train, two hours."])
        before = (await agent.state()).usage.output_tokens
        await agent.session.checkout(place, summarize=True)
        assert shown_texts(o, agent)[-1] == f"{LEFT}\n\nTried: the train, two hours."
        assert (await agent.state()).usage.output_tokens > before
        assert (await agent.query("And else?")).text == "One."


async def test_model_is_shown_only_the_left_branch(tmp_path: Path) -> None:
    """The messages that stay in the conversation are not part of the summary request."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, [{"echo": True}])
        await agent.session.checkout(place, summarize=True)
        request = shown_texts(o, agent)[-1]
        assert request.endswith("## user\nHow long?\n\n## assistant\nTwo hours.")
        assert "By train." not in request


async def test_cold_agent_gets_a_process_for_the_branch_summary(tmp_path: Path) -> None:
    """A checkout with a summary starts a process, and returns when the summary is recorded."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, ["Tried: the train."])
        gone = o.supervisor.waiters.watch(ExitTopic(agent.id, o.supervisor.tree.agents[agent.id].incarnation))
        o.launcher.worker(agent.id).die(-signal.SIGKILL)
        await gone
        await agent.session.checkout(place, summarize=True)
        assert shown_texts(o, agent)[-1] == f"{LEFT}\n\nTried: the train."
        assert o.status(agent) == "idle"


@pytest.mark.parametrize("why", ["no model", "it fails", "it says nothing", "killed"])
async def test_branch_summary_without_a_model_lists_questions_and_answers(tmp_path: Path, why: str) -> None:
    """The list also replaces the summary of a model that fails or returns nothing, and of a killed agent."""
    summaries = {"no model": (), "it fails": [{"error": "BackendError"}], "it says nothing": [""], "killed": ["x"]}
    async with opened(tmp_path) as o:
        agent, place = await talked(o, summaries[why])
        if why == "killed":
            await agent.kill()
        await agent.session.checkout(place, summarize=True)
        assert shown_texts(o, agent)[-1] == f"{LEFT}\n\nAsked: How long?\nSaid: Two hours."


async def test_no_branch_summary_when_nothing_is_abandoned(tmp_path: Path) -> None:
    """A checkout of the current entry adds no summary; a text that the caller gives replaces the model's summary."""
    async with opened(tmp_path) as o:
        agent, place = await talked(o, ["never asked"])
        leaf = (await agent.session.tree()).leaf
        await agent.session.checkout(leaf, summarize=True)
        assert LEFT not in str(shown_texts(o, agent))
        await agent.session.checkout(place, summary="my own", summarize=True)
        assert shown_texts(o, agent)[-1] == f"{LEFT}\n\nmy own"
        assert await agent.session.branch(place[:4], summarize=True) is None


def test_branch_summary_excludes_entries_that_stay(tmp_path: Path) -> None:
    """Only entries after the branch point are summarized, also if their turns are archived."""
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
    text = extract_branch_summary(left_behind(session, ids[1])).text
    assert "Asked: ask 3" in text
    assert "Calls that were made" in text
    assert extract_branch_summary([]).text == ""
    life.close()
