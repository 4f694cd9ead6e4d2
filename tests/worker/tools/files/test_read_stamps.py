"""Writes to files that another writer changed after the agent read them."""

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
        """Return the text of the result of a call."""
        outcome = await self.box.dispatch(ToolUse("c", name, input))
        return text_in(outcome.result)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project folder with the file `a.txt`."""
    (tmp_path / "a.txt").write_text("one\n")
    return tmp_path


async def test_file_changed_by_another_writer_is_not_overwritten(folder: Path) -> None:
    """A write is refused until the agent has read the changed file again."""
    mine, other = Agent(folder), Agent(folder)
    await mine("read_file", path="a.txt")
    assert (await other("write_file", path="a.txt", content="theirs\n")).startswith("Wrote")
    refused = await mine("write_file", path="./a.txt", content="mine\n")
    assert (
        refused == "'./a.txt' was changed by others after you read it: nothing was written. Read the file again first."
    )
    assert (folder / "a.txt").read_text() == "theirs\n"
    await mine("read_file", path="a.txt", limit=1)
    assert (await mine("write_file", path="a.txt", content="mine\n")).startswith("Wrote")
    assert (folder / "a.txt").read_text() == "mine\n"


async def test_own_changes_count_as_read(folder: Path) -> None:
    """An agent can write a file after it changed the file with an edit, an append or code."""
    agent = Agent(folder)
    await agent("read_file", path="a.txt")
    await agent("replace_in_file", path="a.txt", old_text="one", new_text="two")
    await agent("write_file", path="a.txt", content="more\n", append=True)
    assert (await agent("write_file", path="a.txt", content="1\n")).startswith("Wrote")
    (folder / "a.txt").write_text("by its code\n")
    await agent("make")
    assert (await agent("write_file", path="a.txt", content="2\n")).startswith("Wrote")


async def test_append_to_a_changed_file_does_not_count_as_reading(folder: Path) -> None:
    """The append is allowed, because it keeps the other content, but a later overwrite is still refused."""
    agent = Agent(folder)
    await agent("read_file", path="a.txt")
    (folder / "a.txt").write_text("another one's\n")
    assert (await agent("write_file", path="a.txt", content="!\n", append=True)).startswith("Added")
    assert "was changed by others after you read it" in await agent("write_file", path="a.txt", content="x")
    assert (folder / "a.txt").read_text() == "another one's\n!\n"


async def test_unread_or_deleted_file_can_be_written(folder: Path) -> None:
    """An agent that never read a file intends to create it, so its write is not refused."""
    agent = Agent(folder)
    assert (await agent("write_file", path="a.txt", content="1\n")).startswith("Wrote")
    (folder / "a.txt").unlink()
    assert (await agent("write_file", path="a.txt", content="2\n")).startswith("Wrote")


def test_number_of_read_stamps_is_bounded(tmp_path: Path) -> None:
    """At the limit, the oldest stamp is dropped, and a change of its file is no longer detected."""
    sights = ReadStamps(ToolContext(tmp_path), limit=2)
    for name in "abc":
        sights.record(name, (1, 1, 1, 1))
    assert [sights.changed(name, (2, 2, 2, 2)) for name in "abc"] == [False, True, True]
