"""The task list of an agent: its rules, its display, and its entries in the transcript."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.agent.plan import STATUS_SYMBOLS, Task, TaskStatus
from orch_protocol.core.messages import Text, ToolUse
from orch_protocol.session.entries import PlanApproved
from orch_worker.session.plan import HEADING, TaskList, new_tasks, task_block, task_lines, update_task
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.presets import make_toolbox
from orch_worker.tools.dispatch.toolbox import Toolbox

STATUSES: tuple[TaskStatus, ...] = ("pending", "in_progress", "completed", "cancelled")
steps = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(STATUSES)), max_size=12)


def test_new_tasks_are_pending() -> None:
    """New tasks are pending, and white space in the text of a task is normalized to one line."""
    assert new_tasks(["Read\n it ", "write"]) == (Task("Read it"), Task("write"))


@given(steps)
def test_at_most_one_task_is_in_progress(changes: list[tuple[int, TaskStatus]]) -> None:
    """A task keeps its last status, but starting a task sets the task in progress back to pending."""
    tasks = new_tasks(["a", "b", "c", "d"])
    for index, status in changes:
        before, tasks = tasks, update_task(tasks, index, status)
        assert tasks[index - 1].status == status
        assert [task.status for task in tasks].count("in_progress") <= 1
        for number, (old, new) in enumerate(zip(before, tasks, strict=True), 1):
            gave_way = status == "in_progress" and old.status == "in_progress"
            assert number == index or new == (Task(old.text) if gave_way else old)


def test_plan_approval_of_another_agent_does_not_count(tmp_path: Path) -> None:
    """An agent that continues the conversation of another agent needs a new plan approval."""
    planner = Transcript.open(tmp_path / "one", agent="a1", cwd="/")
    planner.plan_approved("")
    (entry,) = planner.session.entries
    planner.close()
    heir = Transcript.open(tmp_path / "two", agent="a2", cwd="/")
    assert isinstance(entry, PlanApproved)
    heir.append(entry)
    assert (planner.session.plans_approved, heir.session.plans_approved) == ({""}, set())
    assert TaskList(heir, planning=True).planning
    heir.close()


@pytest.mark.parametrize("index", [0, 3, -1])
def test_unknown_task_number_is_refused(index: int) -> None:
    """Task numbers start at 1."""
    with pytest.raises(IndexError):
        update_task(new_tasks(["a", "b"]), index, "completed")


def test_tasks_are_shown_with_status_marks() -> None:
    """The task block is empty if every task is completed or cancelled."""
    tasks = tuple(Task(status, status) for status in STATUSES)
    assert task_lines(tasks).splitlines() == [
        f"{STATUS_SYMBOLS[each]} {number}. {each}" for number, each in enumerate(STATUSES, 1)
    ]
    assert task_block(tasks).startswith(HEADING)
    assert task_block(tasks).endswith(task_lines(tasks))
    assert task_block(tasks[2:]) == task_block(()) == ""


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Transcript]:
    """A function that opens the transcript of one agent."""
    return lambda: Transcript.open(tmp_path, agent="a1", cwd=str(tmp_path))


def box(transcript: Transcript) -> Toolbox:
    """Return the task tools of the agent that has this transcript."""
    context = ToolContext(transcript.path.parent, task_list=TaskList(transcript, planning=False))
    return make_toolbox(["tasks"], (), context)


async def called(toolbox: Toolbox, tool: str, **input: object) -> tuple[bool, str]:
    """Call `tool`. Return whether the result is an error, and the text of the result."""
    result = (await toolbox.dispatch(ToolUse("c1", tool, input))).result
    (text,) = result.content
    assert isinstance(text, Text)
    return result.is_error, text.text


async def test_task_change_is_recorded_as_an_entry(opened: Callable[[], Transcript]) -> None:
    """A reopened session has the same task list, and a new task list replaces the old one."""
    transcript = opened()
    toolbox = box(transcript)
    assert await called(toolbox, "task_update", index=1, status="completed") == (
        True,
        "The task list is empty: create tasks with task_create.",
    )
    assert await called(toolbox, "task_create", tasks=["a", "b"]) == (False, "[ ] 1. a\n[ ] 2. b")
    await called(toolbox, "task_update", index=2, status="in_progress")
    assert await called(toolbox, "task_update", index=1, status="in_progress") == (False, "[>] 1. a\n[ ] 2. b")
    assert await called(toolbox, "task_update", index=3, status="completed") == (
        True,
        "No task 3: task numbers are 1 to 2.",
    )
    before = transcript.session.tasks
    assert read_session(transcript.path.parent).tasks == before
    transcript.close()
    transcript = opened()
    assert transcript.session.tasks == before
    await called(box(transcript), "task_create", tasks=["c"])
    assert transcript.session.tasks == (Task("c"),)
    transcript.close()


async def test_going_back_restores_the_tasks_of_that_entry(opened: Callable[[], Transcript]) -> None:
    """After going back, the open session and the session read from the file have the earlier tasks."""
    transcript = opened()
    toolbox = box(transcript)
    await called(toolbox, "task_create", tasks=["a"])
    then = transcript.session.leaf
    await called(toolbox, "task_update", index=1, status="completed")
    transcript.checkout(then)
    assert transcript.session.tasks == (Task("a"),)
    transcript.checkout(None)
    assert transcript.session.tasks == ()
    assert read_session(transcript.path.parent).tasks == ()
    transcript.close()


@pytest.mark.parametrize("tasks", [[], [" "], ["a", ""], "a", ["x" * 501], ["x"] * 51])
async def test_invalid_task_lists_are_refused(opened: Callable[[], Transcript], tasks: object) -> None:
    """Empty lists, empty tasks, long tasks and long lists are refused."""
    transcript = opened()
    is_error, text = await called(box(transcript), "task_create", tasks=tasks)
    assert is_error
    assert text.startswith("Invalid arguments for task_create")
    assert transcript.session.tasks == ()
    transcript.close()


async def test_unknown_task_status_is_refused(opened: Callable[[], Transcript]) -> None:
    transcript = opened()
    await called(box(transcript), "task_create", tasks=["a"])
    assert (await called(box(transcript), "task_update", index=1, status="done"))[0]
    assert transcript.session.tasks == (Task("a"),)
    transcript.close()
