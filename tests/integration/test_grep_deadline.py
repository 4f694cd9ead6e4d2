"""Searches for patterns that may never end, in a process that can be ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.files import search_process
from orch_worker.tools.files.read import grep_files
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.store import ValueFiles


async def run(context: ToolContext, **input: object) -> str:
    """Return the output of grep_files."""
    return (await grep_files.run(context, input)).text


async def test_search_process_finds_the_same_matches(tmp_path: Path) -> None:
    """Matches are in the order of files and lines, also in long lines and in non-ASCII text."""
    (tmp_path / "a.txt").write_text(
        f"{' ' * 40}start\nshort end\n\n{'ü' * 40} start \u2028 end {'x' * 400}\n{'start ' * 9}\n"
    )
    (tmp_path / "b.txt").write_text("start" + " " * 5000 + "end\n")
    found = await run(ToolContext(tmp_path), pattern=r"(?:start|short)(?:\s|\S)*end")
    assert [line.partition(": ")[0] for line in found.split("\n")] == ["a.txt:2", "a.txt:4", "b.txt:1"]


async def test_endless_search_is_ended_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result contains the earlier matches and a hint, and the tool stays usable."""
    monkeypatch.setattr(search_process, "SEARCH_SECONDS", 0.25)
    (tmp_path / "a.txt").write_text("y and y\n")
    (tmp_path / "b.txt").write_text("x" * 100 + "\n")
    context = ToolContext(tmp_path, folder=tmp_path)
    found = await run(context, pattern="(x|x)*y")
    assert found == (
        "a.txt:1: y and y\n"
        "[stopped at b.txt: '(x|x)*y' takes too long on lines of up to 100 characters: use fewer "
        "repetitions, and no nested repetitions.]"
    )
    handle = context.agent_object(ValueFiles).keep("x" * 100)
    for search in ("(x|x)*y", r"(x+x+)+y"):
        with pytest.raises(ToolError, match="takes too long"):
            await read_handle.run(context, {"handle": handle, "search": search})
    assert await run(context, pattern="and") == "a.txt:1: y and y"
