"""The list of tasks: its rules, how it is shown, and that it is the fold of its entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.agent.plan import MARKS, Task, TaskStatus
from orch_protocol.core.messages import Text, ToolUse
from orch_protocol.session.entries import PlanApproved
from orch_worker.session.plan import HEADING, TaskList, new_tasks, task_block, task_lines, update_task
from orch_worker.session.transcript import Transcript, read_session
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.presets import make_toolbox
from orch_worker.tools.dispatch.toolbox import Toolbox

STATUSES: tuple[TaskStatus, ...] = ("pending", "in_progress", "completed", "cancelled")
steps = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(STATUSES)), max_size=12)


def test_a_new_list_is_pending() -> None:
    """Each task is on one line, and none is begun."""
    assert new_tasks(["Read\n it ", "write"]) == (Task("Read it"), Task("write"))


@given(steps)
def test_at_most_one_is_in_progress(changes: list[tuple[int, TaskStatus]]) -> None:
    """Whatever is said of tasks, each is what was said last of it, but for those that gave way to another."""
    tasks = new_tasks(["a", "b", "c", "d"])
    for index, status in changes:
        before, tasks = tasks, update_task(tasks, index, status)
        assert tasks[index - 1].status == status
        assert [task.status for task in tasks].count("in_progress") <= 1
        for number, (old, new) in enumerate(zip(before, tasks, strict=True), 1):
            gave_way = status == "in_progress" and old.status == "in_progress"
            assert number == index or new == (Task(old.text) if gave_way else old)


def test_the_approval_of_another_agents_plan_says_nothing(tmp_path: Path) -> None:
    """Who goes on with a conversation in which a plan was approved has had none approved."""
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
def test_a_task_that_is_not_there(index: int) -> None:
    """Numbers count from 1 to the last one."""
    with pytest.raises(IndexError):
        update_task(new_tasks(["a", "b"]), index, "completed")


def test_shown_with_marks() -> None:
    """Each status has its mark; the block is there as long as something is open."""
    tasks = tuple(Task(status, status) for status in STATUSES)
    assert task_lines(tasks).splitlines() == [
        f"{MARKS[each]} {number}. {each}" for number, each in enumerate(STATUSES, 1)
    ]
    assert task_block(tasks).startswith(HEADING)
    assert task_block(tasks).endswith(task_lines(tasks))
    assert task_block(tasks[2:]) == task_block(()) == ""


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Transcript]:
    """Opens the transcript of one agent."""
    return lambda: Transcript.open(tmp_path, agent="a1", cwd=str(tmp_path))


def box(transcript: Transcript) -> Toolbox:
    """Return the tools for tasks of the agent whose transcript that is."""
    context = ToolContext(transcript.path.parent, agenda=TaskList(transcript, planning=False))
    return make_toolbox(["tasks"], (), context)


async def told(toolbox: Toolbox, tool: str, **input: object) -> tuple[bool, str]:
    """Call `tool`; return whether that is an error, and what the model reads."""
    result = (await toolbox.dispatch(ToolUse("c1", tool, input))).result
    (text,) = result.content
    assert isinstance(text, Text)
    return result.is_error, text.text


async def test_what_changes_is_an_entry(opened: Callable[[], Transcript]) -> None:
    """The list is what the file says, also for whoever reads it, and when it is opened anew; a new one replaces it."""
    transcript = opened()
    toolbox = box(transcript)
    assert await told(toolbox, "task_update", index=1, status="completed") == (
        True,
        "The task list is empty: create tasks with task_create.",
    )
    assert await told(toolbox, "task_create", tasks=["a", "b"]) == (False, "[ ] 1. a\n[ ] 2. b")
    await told(toolbox, "task_update", index=2, status="in_progress")
    assert await told(toolbox, "task_update", index=1, status="in_progress") == (False, "[>] 1. a\n[ ] 2. b")
    assert await told(toolbox, "task_update", index=3, status="completed") == (
        True,
        "No task 3: task numbers are 1 to 2.",
    )
    before = transcript.session.tasks
    assert read_session(transcript.path.parent).tasks == before
    transcript.close()
    transcript = opened()
    assert transcript.session.tasks == before
    await told(box(transcript), "task_create", tasks=["c"])
    assert transcript.session.tasks == (Task("c"),)
    transcript.close()


async def test_going_back_goes_back_to_the_tasks_of_then(opened: Callable[[], Transcript]) -> None:
    """Where the conversation goes on behind an earlier entry, so does the list, live and as it is read again."""
    transcript = opened()
    toolbox = box(transcript)
    await told(toolbox, "task_create", tasks=["a"])
    then = transcript.session.leaf
    await told(toolbox, "task_update", index=1, status="completed")
    transcript.checkout(then)
    assert transcript.session.tasks == (Task("a"),)
    transcript.checkout(None)
    assert transcript.session.tasks == ()
    assert read_session(transcript.path.parent).tasks == ()
    transcript.close()


@pytest.mark.parametrize("tasks", [[], [" "], ["a", ""], "a", ["x" * 501], ["x"] * 51])
async def test_a_list_says_something(opened: Callable[[], Transcript], tasks: object) -> None:
    """An empty list, an empty task and what is too much are errors, and change nothing."""
    transcript = opened()
    is_error, text = await told(box(transcript), "task_create", tasks=tasks)
    assert is_error
    assert text.startswith("Invalid arguments for task_create")
    assert transcript.session.tasks == ()
    transcript.close()


async def test_a_status_that_is_none(opened: Callable[[], Transcript]) -> None:
    """Only the four statuses there are can be given."""
    transcript = opened()
    await told(box(transcript), "task_create", tasks=["a"])
    assert (await told(box(transcript), "task_update", index=1, status="done"))[0]
    assert transcript.session.tasks == (Task("a"),)
    transcript.close()
