"""Changing the model of a conversation."""

from __future__ import annotations

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.messages import Text, text_of
from orch_protocol.policy.budget import BudgetAmounts
from orch_worker.backends.base import check_backend
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.backends.switchable import SwitchableBackend

TOOL = ToolSpec("look", "Look.", {"type": "object", "properties": {}})


async def test_switching_models_keeps_the_conversation() -> None:
    """The new backend gets the system text, tools, messages, tail and callbacks of the old backend."""
    first, second = ScriptedBackend(["one", "never"]), ScriptedBackend(["never", "two"])
    moving = SwitchableBackend(first)
    check_backend(moving)
    moving.append_system("Be brief.", (TOOL,))
    moving.append_user((Text("hi"),))
    turn = await moving.assistant_turn()
    moving.append_assistant(turn.message)
    moving.append_user((Text("and?"),))
    heard: list[object] = []
    moving.tail, moving.on_retry, moving.reserved = "now", heard.append, BudgetAmounts(usd=1.0)
    await moving.switch_to(second)
    assert [text_of(each) for each in moving.transcript()] == ["hi", "one", "and?"]
    assert (second.system, second.tools, second.tail, second.on_retry) == ("Be brief.", (TOOL,), "now", heard.append)
    assert moving.reserved is None
    assert text_of((await moving.assistant_turn()).message) == "two"
    assert len(first.transcript()) == 3
