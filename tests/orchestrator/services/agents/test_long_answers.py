"""Answers that an agent gets from other agents: truncated answers, empty answers, and numbers as ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch import Limits, ScriptedBackend
from orch_protocol.core.messages import Text, ToolResult
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import World, opened

ASK = ["query_subagent", "collect_subagent", "list_subagents"]
REPORT = f"{'head ' * 400}the pump is K-77{' tail' * 400}"


def query(id: Any) -> dict[str, Any]:
    """Return a call of query_subagent for the agent `id`."""
    return {"tool": "query_subagent", "input": {"id": id, "prompt": "Report."}}


async def heard(o: World, text: str, *calls: Any, tools: list[str]) -> list[str]:
    """Return the tool results of an agent that makes `calls`. Its peer `scout` answers `text`."""
    limits = Limits(reply_tokens=200)
    await o.spawn("scout", name="scout", tools=[], backend=ScriptedBackend([text]), limits=limits)
    lead = await o.spawn("lead", depth=0, tools=tools, peers=["scout"], backend=ScriptedBackend([*calls, "done"]))
    await lead.query("go")
    folder = Path((await lead.state()).folder)
    blocks = [block for message in read_session(folder).messages for block in message.content]
    results = [block for block in blocks if isinstance(block, ToolResult)]
    return ["".join(part.text for part in each.content if isinstance(part, Text)) for each in results]


async def test_truncated_answer_suggests_asking_when_handles_are_unavailable(tmp_path: Path) -> None:
    """The notice of a truncated answer names no handle if the agent has no tool that reads handles."""
    async with opened(tmp_path) as o:
        (answer,) = await heard(o, REPORT, query("scout"), tools=ASK)
    assert ".h_001" not in answer
    assert answer.endswith("[Ask it for what was left out.]")


async def test_empty_answer_is_reported_as_empty(tmp_path: Path) -> None:
    """A note replaces an answer that contains only spaces."""
    async with opened(tmp_path) as o:
        (answer,) = await heard(o, " ", query("scout"), tools=ASK)
    assert answer.endswith("(end_turn, 0 tool calls):\n\n(It said nothing.)")


async def test_query_subagent_accepts_a_number(tmp_path: Path) -> None:
    """The `id` of query_subagent can be a number, because models sometimes write it without quotes."""
    async with opened(tmp_path) as o:
        (answer,) = await heard(o, "It is fine.", query(1), tools=ASK)
    assert answer.endswith("It is fine.")
