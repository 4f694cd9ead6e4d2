"""What the model learns about commands that the user ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hooked_agent import Hooked, Watched, ended_threads, fails, on
from orch_protocol.hooks.patches import Abort, Block
from orch_protocol.resources.slash_commands import RunUserTool
from orch_protocol.session.tree import AddMessage, EditResult, SessionEdit
from orch_protocol.wire.worker_messages import Query
from orch_worker.agent.hooks import AgentHooks
from orch_worker.agent.user_actions import MAX_HEARD, command_text, run_action
from orch_worker.hooks.hook import Hook
from orch_worker.session.transcript import Transcript
from orch_worker.tools.api.base import ToolContext

__all__ = ["ended_threads"]


def test_long_output_of_a_user_command_is_clipped_for_the_model() -> None:
    """The model sees head, tail and the omitted length. Short output is unchanged."""
    assert command_text("!ls") == "[The user ran:]\n!ls\n"
    told = command_text("/py x = '" + "a" * 1_000_000 + "z'")
    assert len(told) < MAX_HEARD + 100
    assert "/py x = 'aaa" in told
    assert "the user typed all of it" in told
    assert told.endswith("z'\n")


class Agent:
    """An agent with `hooks` that is busy or idle, and the texts its model received."""

    def __init__(self, folder: Path, *hooks: Hook, busy: bool = False) -> None:
        self.hooked = Hooked(Watched(), *hooks)
        self.hooks = self.hooked.hooks if hooks else None
        self.context = ToolContext(folder)
        self.transcript = Transcript.open(folder / "session", agent="a1", cwd=str(folder))
        self.extensions = None
        self.busy = busy
        self.told: list[str] = []
        if busy:
            self.hooks_for("q1", Query("go"))

    def hooks_for(self, query_id: str, query: Query) -> AgentHooks | None:
        """Return the hooks for another turn."""
        if self.hooks is not None:
            self.hooks.calls.turn_began(query_id, query.hooks, lambda *_: None)
        return self.hooks

    def edit(self, edit: SessionEdit) -> EditResult:
        """Record the text for an idle agent."""
        assert isinstance(edit.change, AddMessage)
        self.told.append(edit.change.text)
        return EditResult()

    def queue_own_message(self, text: str, _follow_up: bool) -> None:
        """Record the text for a busy agent."""
        self.told.append(text)


async def run(agent: Agent, *, heard: bool = True) -> str:
    """Run Python code for the user, and return the output that the user sees."""
    deed = RunUserTool("run_python", {"code": "'token 12345'"}, "/py token", heard=heard)
    try:
        return (await run_action(agent, deed)).text  # type: ignore[arg-type]
    finally:
        agent.context.tool_state.close()
        agent.transcript.close()


def hide(event: Any) -> Any:
    """Hide the secret part of a result."""
    return event.patch(text=event.text.replace("12345", "*****"))


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("hook", "heard"),
    [
        (on("tool_result", hide), "'token *****'"),
        (on("tool_result", Block("secret")), "[Withheld: secret]"),
        (on("tool_result", Abort("enough"), kind="control"), "[Withheld: a hook ended the turn]"),
        (fails("tool_result", on_error="closed"), "[Withheld: hook 'h' failed: ValueError: broken]"),
    ],
)
async def test_result_hooks_filter_user_commands_for_the_model(
    tmp_path: Path, hook: Hook, heard: str, busy: bool
) -> None:
    """The user sees the complete output. An abort does not end the running turn."""
    agent = Agent(tmp_path, hook, busy=busy)
    assert await run(agent) == "'token 12345'"
    assert agent.told == [f"[The user ran:]\n/py token\n[It came to:]\n{heard}"]
    assert agent.hooks is not None
    await agent.hooks.step_end(())  # raises if a hook has ended the turn


async def test_user_commands_do_not_reach_observers(tmp_path: Path) -> None:
    """Observers are notified of the agent's actions only."""
    seen: list[Any] = []
    agent = Agent(tmp_path, on("tool_result", seen.append, kind="observe"), on("tool_result", hide, "hide"))
    await run(agent)
    other = Agent(tmp_path / "other", on("tool_result", lambda event: seen.append(event)))
    assert await run(other, heard=False) == "'token 12345'"
    assert (seen, other.told) == ([], [])


async def test_failed_result_hook_on_a_user_command_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is logged even if the fail mode lets the output pass."""
    agent = Agent(tmp_path, fails("tool_result", on_error="open"))
    await run(agent)
    assert agent.told == ["[The user ran:]\n/py token\n[It came to:]\n'token 12345'"]
    assert "hook h at tool_result: failed: ValueError: broken" in capsys.readouterr().out
