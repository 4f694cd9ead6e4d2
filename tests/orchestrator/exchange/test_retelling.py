"""Recorded conversations as tests: what is told again is the same, until something between has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import ScriptedBackend, tool
from orch.exchange.reading import read_conversation
from orch.exchange.writing import found_of
from orch.retelling import retell, source_of, story_of
from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message, Reply, Text, assistant, user
from orch_protocol.services import AgentRow
from orch_worker.transcript import Transcript
from orchestrator.world import opened
from recordings import dump_lines
from sessions import pi_tree

SCRIPT = [
    {"text": "I look.", "tools": [{"tool": "read_file", "input": {"path": name}} for name in ("one.txt", "no.txt")]},
    {"tool": "roll", "input": {"sides": 6}},
    {"tool": "roll", "input": {"sides": 6}},
    "One is there.",
    {"text": "And that's", "stop_reason": "max_tokens"},
]


@tool
def roll(sides: int) -> str:
    """Roll a die."""
    if not ROLLED:
        raise ValueError("it fell off the table")
    return f"{ROLLED.pop()} of {sides}"


ROLLED = ["four"]


def lived(tmp_path: Path, session: Path | None = None) -> AgentRow:
    """Return an agent that was asked twice, and called tools: one fails, one answers differently each time."""
    (tmp_path / "one.txt").write_text("this is one\n")
    ROLLED[:] = ["four"]

    async def live() -> AgentRow:
        async with opened(tmp_path / "home") as world:
            backend = ScriptedBackend(SCRIPT)
            if session is None:
                agent = await world.spawn("Look", backend=backend, tools=["read_file", roll], cwd=tmp_path, name="a-b")
            else:
                agent = await world.import_session(session, backend=backend, tools=["read_file"], cwd=tmp_path)
            await agent.query("What is there?")
            await agent.query("Is that all?")
            return await agent.state()

    return asyncio.run(live())


def generated(row: AgentRow) -> Callable[[Path], None]:
    """Return the test in the module that is written for the agent."""
    source = source_of(row.name, story_of(found_of(row), row.task))
    scope: dict[str, Any] = {"__file__": str(Path(row.cwd) / "test_it.py"), "__name__": "test_it"}
    exec(compile(source, "test_it.py", "exec"), scope)
    (found,) = [value for name, value in scope.items() if name.startswith("test_")]
    made: Callable[[Path], None] = found
    return made


def test_a_recorded_conversation_is_a_test_that_passes(tmp_path: Path) -> None:
    """Two turns, calls at once, a failing one, the same call with two answers: all as recorded, without the files."""
    row = lived(tmp_path)
    test = generated(row)
    assert test.__name__ == "test_a_b"
    (tmp_path / "one.txt").unlink()
    test(tmp_path / "again")


def test_what_has_changed_fails_it(tmp_path: Path) -> None:
    """Another result, another prompt, a call more: the conversation is not the recorded one."""
    row = lived(tmp_path)
    story = story_of(found_of(row), row.task)
    assert retell(story, tmp_path / "1") == story["conversation"]
    other = retell(story | {"turns": [story["turns"][0] | {"prompt": "Else?"}, story["turns"][1]]}, tmp_path / "2")
    assert other != story["conversation"]
    assert other[1:] == story["conversation"][1:]


def test_tools_that_run(tmp_path: Path) -> None:
    """A tool that is named runs in the folder: as long as the files are the same, so is the conversation."""
    row = lived(tmp_path)
    story = story_of(found_of(row), row.task)
    assert retell(story, tmp_path / "1", folder=tmp_path, live=["read_file"]) == story["conversation"]
    (tmp_path / "one.txt").write_text("changed\n")
    assert retell(story, tmp_path / "2", folder=tmp_path, live=["read_file"]) != story["conversation"]


def test_what_went_before_is_there(tmp_path: Path) -> None:
    """Of an imported conversation, what was said elsewhere is the beginning."""
    row = lived(tmp_path, dump_lines(tmp_path / "s.jsonl", pi_tree()))
    story = story_of(found_of(row), row.task)
    assert "We read two files." in str(story["history"][0])
    assert retell(story, tmp_path / "1") == story["conversation"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nothing", "no finished turn"),
        ("running", "no finished turn"),
        ("steered", "something was said to the agent meanwhile"),
        ("cancelled", "ended with 'cancelled'"),
        ("cut", "was cut short"),
    ],
)
def test_what_cannot_be_told_again(tmp_path: Path, what: str, words: str) -> None:
    """What was not the model's doing is an error that says which turn, and why."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/")
    if what == "nothing":
        transcript.seed([user("q"), assistant("a")])
    else:
        transcript.message(user("q"), "t1")
        transcript.message(assistant("half"), "t1")
    if what == "steered":
        transcript.message(user("[Steering] no"), "t1")
        transcript.message(Message("assistant", (Text("yes"),)), "t1")
    if what == "cut":
        transcript.turn_start("t2", "t1")
        transcript.message(user("again"), "t2")
    if what not in ("nothing", "running", "cut"):
        transcript.turn_end("t1", Reply("a", "t1", "x", "cancelled" if what == "cancelled" else "end_turn"))
    transcript.close()
    found = read_conversation(tmp_path / "a" / "session.jsonl")
    with pytest.raises(ConfigError, match=words):
        story_of(found, "task")
