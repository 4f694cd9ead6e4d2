"""The events of a tool call for observers: each outcome, the order of events, and the dry run."""

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
    """Return the list that receives the events of `toolbox`."""
    collected: list[CallReport] = []
    toolbox.observe = collected.append
    return collected


async def outcomes(toolbox: Toolbox, name: str, **input: Any) -> list[tuple[str, str, str]]:
    """Call a tool and return outcome, decision and reason of each event, or the result if there is no reason."""
    found = observed(toolbox)
    await toolbox.dispatch(ToolUse("c1", name, input))
    assert {(each.tool, each.call_id, repr(each.input)) for each in found} == {(name, "c1", repr(input))}
    return [(each.outcome, each.decision, each.reason or each.result) for each in found]


async def test_executed_call_reports_start_and_end(tmp_path: Path) -> None:
    """A call that runs emits `start` and `ran` with the same digest, and `ran` has result, success and duration."""
    toolbox = box(tmp_path, PolicySpec(rules=RULES))
    found = observed(toolbox)
    await toolbox.dispatch(ToolUse("c1", "touch", {"path": "a"}))
    start, ran = found
    assert (start.outcome, start.success, start.elapsed_ms) == ("start", None, None)
    assert (ran.outcome, ran.result, ran.success) == ("ran", "touched a 1", True)
    assert ran.elapsed_ms is not None
    paths = sorted([str(tmp_path), str(tmp_path / "a")])
    assert start.digest == ran.digest == digest_of("touch", {"path": "a"}, paths)


@pytest.mark.parametrize(
    ("name", "input", "expected"),
    [
        ("touch", {"path": "no"}, [("deny", "deny", "denied by denied_paths")]),
        ("touch", {"path": "~/.ssh/id"}, [("declined", "ask", "holds credentials; the user denied it")]),
        ("touch", {"path": "a", "times": "x"}, [("deny", "deny", "Invalid arguments")]),
        ("other", {}, [("deny", "deny", "not granted")]),
        ("fail", {}, [("start", "allow", ""), ("ran", "allow", "ValueError: broken")]),
        ("note", {"text": "sweep"}, [("task", "allow", "[ ] sweep")]),
    ],
)
async def test_each_outcome_of_a_call_is_reported(
    tmp_path: Path, name: str, input: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    """Each event has a decision and a reason, also if the call was not run."""
    toolbox = box(tmp_path, PolicySpec(rules=RULES), tools=[fail, note], call_root=Root(allowed=False))
    found = await outcomes(toolbox, name, **input)
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert all(text in reason for (_, _, reason), (_, _, text) in zip(found, expected, strict=True))


@pytest.mark.parametrize("asked", [False, True])
async def test_interrupted_call_is_reported(tmp_path: Path, asked: bool) -> None:
    """A cancelled call counts as failed if it was running, and as declined if it waited for approval."""
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
    found = observed(toolbox)
    call = ToolUse("c1", "touch", {"path": "~/.ssh/id"}) if asked else ToolUse("c1", "wait", {})
    running = asyncio.create_task(toolbox.dispatch(call))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    expected = [("declined", None)] if asked else [("start", None), ("ran", False)]
    assert [(each.outcome, each.success) for each in found] == expected


async def test_unserializable_arguments_are_reported_without_a_digest(tmp_path: Path) -> None:
    """The event shows the arguments with replacement characters and has an empty digest."""
    toolbox = box(tmp_path, PolicySpec())
    found = observed(toolbox)
    await toolbox.dispatch(ToolUse("c1", "touch", {"path": "\ud800"}))
    assert (found[0].digest, found[0].input) == ("", {"path": "\N{REPLACEMENT CHARACTER}"})


@pytest.mark.parametrize(
    ("path", "decision", "expected"),
    [
        ("a", "allow", "touch would have run."),
        ("~/.ssh/id", "ask", "touch would have needed approval: "),
        ("no", "deny", "touch would have been denied: "),
    ],
)
async def test_dry_run_reports_verdicts_without_running_tools(
    tmp_path: Path, path: str, decision: str, expected: str
) -> None:
    """In a dry run, the model and the observers receive the verdict, and no question for approval is sent."""
    root = Root()
    rules = PolicyConfig(denied_paths=("no",), dry_run=True)
    toolbox = box(tmp_path, PolicySpec(rules=rules), call_root=root)
    events = observed(toolbox)
    outcome = await toolbox.dispatch(ToolUse("c1", "touch", {"path": path}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    assert block.text.startswith(f"[Dry run: nothing was done. {expected}")
    assert (outcome.ran, outcome.result.is_error, root.asked, root.bound) == (False, False, [], 0)
    (event,) = events
    assert (event.outcome, event.decision, bool(event.reason)) == ("dry_run", decision, decision != "allow")
    assert (event.input, len(event.digest)) == ({"path": path}, 64)
