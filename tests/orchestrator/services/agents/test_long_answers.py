"""What an agent hears of those it asks, when that is too much, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch import Limits, ScriptedBackend
from orch_protocol.core.messages import Text, ToolResult
from orch_worker.session.transcript import read_session
from orchestrator.root_double import World, opened

ASK = ["query_subagent", "collect_subagent", "list_subagents"]
REPORT = f"{'head ' * 400}the pump is K-77{' tail' * 400}"


def query(id: Any) -> dict[str, Any]:
    """Return a call that asks the agent `id`."""
    return {"tool": "query_subagent", "input": {"id": id, "prompt": "Report."}}


async def heard(o: World, said: str, *calls: Any, tools: list[str]) -> list[str]:
    """Return what comes of `calls` of an agent with `tools` beside one called `scout`, which says `said`."""
    limits = Limits(reply_tokens=200)
    await o.spawn("scout", name="scout", tools=[], backend=ScriptedBackend([said]), limits=limits)
    lead = await o.spawn("lead", depth=0, tools=tools, peers=["scout"], backend=ScriptedBackend([*calls, "done"]))
    await lead.query("go")
    folder = Path((await lead.state()).folder)
    blocks = [block for message in read_session(folder).messages for block in message.content]
    results = [block for block in blocks if isinstance(block, ToolResult)]
    return ["".join(part.text for part in each.content if isinstance(part, Text)) for each in results]


async def test_who_cannot_read_handles_is_told_to_ask_for_the_rest(tmp_path: Path) -> None:
    """A handle that none of its tools reads would be no help."""
    async with opened(tmp_path) as o:
        (answer,) = await heard(o, REPORT, query("scout"), tools=ASK)
    assert ".h_001" not in answer
    assert answer.endswith("[Ask it for what was left out.]")


async def test_an_answer_without_a_word_is_told_as_one(tmp_path: Path) -> None:
    """Nothing is not taken for a report."""
    async with opened(tmp_path) as o:
        (answer,) = await heard(o, " ", query("scout"), tools=ASK)
    assert answer.endswith("(end_turn, 0 tool calls):\n\n(It said nothing.)")


async def test_an_agent_is_asked_by_its_number(tmp_path: Path) -> None:
    """As models write one: without quotes."""
    async with opened(tmp_path) as o:
        (answer,) = await heard(o, "It is fine.", query(1), tools=ASK)
    assert answer.endswith("It is fine.")
