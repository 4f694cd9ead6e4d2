"""What observers are told of a call, from the toolbox: each outcome, in order, and the dry run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.messages import Text, ToolUse
from orch_protocol.policy.approval import digest_of
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.wire.tool_events import CallReport
from orch_worker.tools.api.base import tool
from orch_worker.tools.dispatch.call_events import TASKS
from orch_worker.tools.dispatch.toolbox import Toolbox
from worker.tools.dispatch.test_guard import Root, box

RULES = PolicyConfig(denied_paths=("no",))


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("broken")


@tool(category=TASKS)
def note(text: str) -> str:
    """Note a task."""
    return f"[ ] {text}"


def observed(toolbox: Toolbox) -> list[CallReport]:
    """Return the list that what `toolbox` tells goes into."""
    told: list[CallReport] = []
    toolbox.observe = told.append
    return told


async def outcomes(toolbox: Toolbox, name: str, **input: Any) -> list[tuple[str, str, str]]:
    """Call a tool and return outcome, decision and reason of each event, and the head of the result as a reason."""
    told = observed(toolbox)
    await toolbox.dispatch(ToolUse("c1", name, input))
    assert {(each.tool, each.call_id, repr(each.input)) for each in told} == {(name, "c1", repr(input))}
    return [(each.outcome, each.decision, each.reason or each.result) for each in told]


async def test_a_call_that_runs_begins_and_ends(tmp_path: Path) -> None:
    """`start`, then `ran` with the result, whether it was one, how long it took, and the same digest."""
    toolbox = box(tmp_path, PolicySpec(rules=RULES))
    told = observed(toolbox)
    await toolbox.dispatch(ToolUse("c1", "touch", {"path": "a"}))
    start, ran = told
    assert (start.outcome, start.success, start.elapsed_ms) == ("start", None, None)
    assert (ran.outcome, ran.result, ran.success) == ("ran", "touched a 1", True)
    assert ran.elapsed_ms is not None
    paths = sorted([str(tmp_path), str(tmp_path / "a")])
    assert start.digest == ran.digest == digest_of("touch", {"path": "a"}, paths)


@pytest.mark.parametrize(
    ("name", "input", "expected"),
    [
        ("touch", {"path": "no"}, [("deny", "deny", "denied by denied_paths")]),
        ("touch", {"path": "~/.ssh/id"}, [("declined", "ask", "holds credentials; the user said no")]),
        ("touch", {"path": "a", "times": "x"}, [("deny", "deny", "Invalid arguments")]),
        ("other", {}, [("deny", "deny", "not granted")]),
        ("fail", {}, [("start", "allow", ""), ("ran", "allow", "ValueError: broken")]),
        ("note", {"text": "sweep"}, [("task", "allow", "[ ] sweep")]),
    ],
)
async def test_each_outcome(
    tmp_path: Path, name: str, input: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    """Each call that was made is told of, with what was decided and why, also one that was never to run."""
    toolbox = box(tmp_path, PolicySpec(rules=RULES), tools=[fail, note], call_root=Root(allowed=False))
    told = await outcomes(toolbox, name, **input)
    assert [each[:2] for each in told] == [each[:2] for each in expected]
    assert all(said in reason for (_, _, reason), (_, _, said) in zip(told, expected, strict=True))


@pytest.mark.parametrize("asked", [False, True])
async def test_a_call_that_is_cut_off_is_told_of(tmp_path: Path, asked: bool) -> None:
    """When the turn ends first, a call that runs has failed, and one that waits for its approval was declined."""
    reached = asyncio.Event()

    async def root(*_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    toolbox = box(tmp_path, PolicySpec(), tools=[wait], call_root=root)
    told = observed(toolbox)
    call = ToolUse("c1", "touch", {"path": "~/.ssh/id"}) if asked else ToolUse("c1", "wait", {})
    running = asyncio.create_task(toolbox.dispatch(call))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    expected = [("declined", None)] if asked else [("start", None), ("ran", False)]
    assert [(each.outcome, each.success) for each in told] == expected


async def test_arguments_that_no_json_can_be_are_told_of(tmp_path: Path) -> None:
    """What cannot be told apart has no digest, and the call is told of all the same."""
    toolbox = box(tmp_path, PolicySpec())
    told = observed(toolbox)
    await toolbox.dispatch(ToolUse("c1", "touch", {"path": "\ud800"}))
    assert (told[0].digest, told[0].input) == ("", {"path": "\N{REPLACEMENT CHARACTER}"})


@pytest.mark.parametrize(
    ("path", "decision", "told"),
    [
        ("a", "allow", "touch would have run."),
        ("~/.ssh/id", "ask", "touch would have needed approval: "),
        ("no", "deny", "touch would have been denied: "),
    ],
)
async def test_a_dry_run_judges_and_runs_nothing(tmp_path: Path, path: str, decision: str, told: str) -> None:
    """No tool runs and nobody is asked; the model and observers hear what the policy says of that very call."""
    root = Root()
    rules = PolicyConfig(denied_paths=("no",), dry_run=True)
    toolbox = box(tmp_path, PolicySpec(rules=rules), call_root=root)
    events = observed(toolbox)
    outcome = await toolbox.dispatch(ToolUse("c1", "touch", {"path": path}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    assert block.text.startswith(f"[Dry run: nothing was done. {told}")
    assert (outcome.ran, outcome.result.is_error, root.asked, root.bound) == (False, False, [], 0)
    (event,) = events
    assert (event.outcome, event.decision, bool(event.reason)) == ("dry_run", decision, decision != "allow")
    assert (event.input, len(event.digest)) == ({"path": path}, 64)
