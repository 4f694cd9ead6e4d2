"""What the model is told of what a person ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hooked_agent import Hooked, Watched, fails, on
from orch_protocol.hooks.patches import Abort, Block
from orch_protocol.resources.slash_commands import RunUserTool
from orch_protocol.session.tree import AddMessage, EditResult, SessionEdit
from orch_protocol.wire.worker_messages import Query
from orch_worker.agent.hooks import AgentHooks
from orch_worker.agent.user_actions import MOST_HEARD, done, ran
from orch_worker.hooks.hook import Hook
from orch_worker.session.transcript import Transcript
from orch_worker.tools.api.base import ToolContext


def test_of_a_long_line_the_model_hears_a_part() -> None:
    """Its beginning and its end, and how much is between them; a short one is told as it was typed."""
    assert ran("!ls") == "[The user ran:]\n!ls\n"
    told = ran("/py x = '" + "a" * 1_000_000 + "z'")
    assert len(told) < MOST_HEARD + 100
    assert "/py x = 'aaa" in told
    assert "the user typed all of it" in told
    assert told.endswith("z'\n")


class Agent:
    """One with `hooks`, which is `busy` or not; keeps what its model is told."""

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
        """Return its hooks, for another turn."""
        if self.hooks is not None:
            self.hooks.calls.turn_began(query_id, query.hooks, lambda *_: None)
        return self.hooks

    async def hooks_done(self, hooks: AgentHooks) -> None:
        """That turn is over."""
        hooks.turn_ended()

    def edit(self, edit: SessionEdit) -> EditResult:
        """Let the model be told."""
        assert isinstance(edit.change, AddMessage)
        self.told.append(edit.change.text)
        return EditResult()

    def say_to_itself(self, text: str, _follow_up: bool) -> None:
        """Let it be told as it works."""
        self.told.append(text)


async def run(agent: Agent, *, heard: bool = True) -> str:
    """Return what a person is shown who runs some Python."""
    deed = RunUserTool("run_python", {"code": "'token 12345'"}, "/py token", heard=heard)
    try:
        return (await done(agent, deed)).text  # type: ignore[arg-type]
    finally:
        agent.context.belongings.close()
        agent.transcript.close()


def hide(event: Any) -> Any:
    """Hide what is secret."""
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
async def test_hooks_of_results_hide_from_the_model_what_a_person_ran(
    tmp_path: Path, hook: Hook, heard: str, busy: bool
) -> None:
    """The person has all of it; and a turn that runs is not ended by that."""
    agent = Agent(tmp_path, hook, busy=busy)
    assert await run(agent) == "'token 12345'"
    assert agent.told == [f"[The user ran:]\n/py token\n[It came to:]\n{heard}"]
    assert agent.hooks is not None
    await agent.hooks.step_end(())  # raises when a hook has ended the turn


async def test_what_a_person_ran_counts_for_no_hook_that_looks_on(tmp_path: Path) -> None:
    """They are told of what the agent does; and of what no model hears, none is told."""
    seen: list[Any] = []
    agent = Agent(tmp_path, on("tool_result", seen.append, kind="observe"), on("tool_result", hide, "hide"))
    await run(agent)
    other = Agent(tmp_path / "other", on("tool_result", lambda event: seen.append(event)))
    assert await run(other, heard=False) == "'token 12345'"
    assert (seen, other.told) == ([], [])


async def test_a_hook_that_failed_to_hide_something_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the log, also where what it looked at may be seen all the same."""
    agent = Agent(tmp_path, fails("tool_result", on_error="open"))
    await run(agent)
    assert agent.told == ["[The user ran:]\n/py token\n[It came to:]\n'token 12345'"]
    assert "hook h at tool_result: failed: ValueError: broken" in capsys.readouterr().out
