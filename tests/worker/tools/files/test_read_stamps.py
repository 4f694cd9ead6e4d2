"""Files that somebody changes while an agent means to write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.messages import ToolUse
from orch_worker.tools.api.base import Tool, ToolContext, tool
from orch_worker.tools.dispatch.result_limits import text_in
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.files.edit import replace_in_file, write_file
from orch_worker.tools.files.read import read_file
from orch_worker.tools.files.read_stamps import ReadStamps


@tool
def make() -> str:
    """Run code of a user."""
    return "made"


TOOLS: list[Tool] = [read_file, write_file, replace_in_file, make]


class Agent:
    """An agent that works in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.context = ToolContext(folder)
        self.box = Toolbox(TOOLS, self.context)

    async def __call__(self, name: str, **input: Any) -> str:
        """Return what comes of a call."""
        outcome = await self.box.dispatch(ToolUse("c", name, input))
        return text_in(outcome.result)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a project."""
    (tmp_path / "a.txt").write_text("one\n")
    return tmp_path


async def test_what_another_one_wrote_since_it_was_read_is_not_written_over(folder: Path) -> None:
    """Another agent, or whoever has the file in an editor; read again, it can be written."""
    mine, other = Agent(folder), Agent(folder)
    await mine("read_file", path="a.txt")
    assert (await other("write_file", path="a.txt", content="theirs\n")).startswith("Wrote")
    refused = await mine("write_file", path="./a.txt", content="mine\n")
    assert (
        refused == "'./a.txt' has changed since you read it, and not by you: nothing was written. Read it again first."
    )
    assert (folder / "a.txt").read_text() == "theirs\n"
    await mine("read_file", path="a.txt", limit=1)
    assert (await mine("write_file", path="a.txt", content="mine\n")).startswith("Wrote")
    assert (folder / "a.txt").read_text() == "mine\n"


async def test_its_own_changes_count_as_read(folder: Path) -> None:
    """However it made them: by replacing, adding or writing, or by code, of which nobody knows what it changes."""
    agent = Agent(folder)
    await agent("read_file", path="a.txt")
    await agent("replace_in_file", path="a.txt", old_text="one", new_text="two")
    await agent("write_file", path="a.txt", content="more\n", append=True)
    assert (await agent("write_file", path="a.txt", content="1\n")).startswith("Wrote")
    (folder / "a.txt").write_text("by its code\n")
    await agent("make")
    assert (await agent("write_file", path="a.txt", content="2\n")).startswith("Wrote")


async def test_adding_to_a_file_that_has_changed_leaves_what_is_unread_unread(folder: Path) -> None:
    """Nothing is lost by adding, and nothing is known of what stands before it."""
    agent = Agent(folder)
    await agent("read_file", path="a.txt")
    (folder / "a.txt").write_text("another one's\n")
    assert (await agent("write_file", path="a.txt", content="!\n", append=True)).startswith("Added")
    assert "has changed since you read it" in await agent("write_file", path="a.txt", content="x")
    assert (folder / "a.txt").read_text() == "another one's\n!\n"


async def test_what_was_never_read_or_is_gone_is_written(folder: Path) -> None:
    """An agent that never looked at a file means to make it."""
    agent = Agent(folder)
    assert (await agent("write_file", path="a.txt", content="1\n")).startswith("Wrote")
    (folder / "a.txt").unlink()
    assert (await agent("write_file", path="a.txt", content="2\n")).startswith("Wrote")


def test_of_very_many_files_the_latest_are_known(tmp_path: Path) -> None:
    """What is kept in mind has a bound."""
    sights = ReadStamps(ToolContext(tmp_path), most=2)
    for name in "abc":
        sights.note(name, (1, 1, 1, 1))
    assert [sights.changed(name, (2, 2, 2, 2)) for name in "abc"] == [False, True, True]
