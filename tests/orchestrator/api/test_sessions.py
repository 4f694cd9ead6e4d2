"""Sessions: agents that one talks to, which go on where they were, with somebody of their own to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AsyncSession, ScriptedBackend
from orch_protocol.core.errors import AgentNotFoundError, ConfigError
from orch_protocol.core.messages import assistant, text_of, user
from orch_protocol.policy.approval import Question
from orchestrator.root_double import opened


async def test_a_session_is_talked_to_and_executes_commands(tmp_path: Path) -> None:
    """It is an agent as any other, with `run`."""
    async with opened(tmp_path) as o:
        chat = await o.session(backend=ScriptedBackend(["Hello.", "Twelve."]), tools=["read_file"], name="chat")
        assert isinstance(chat, AsyncSession)
        assert (await chat.run("Hello?")).text == "Hello."
        events = []
        assert (await chat.run("How many?", on_event=events.append)).text == "Twelve."
        assert events
        assert (await chat.execute("/tools")).data["tools"] == ["read_file"]
        assert [row.name for row in await o.agents()] == ["chat"]


async def test_it_is_who_it_is_told_to_be_and_knows_what_was_said(tmp_path: Path) -> None:
    """The text stands as it is, also with braces in it."""
    async with opened(tmp_path) as o:
        history = [user("My name is Ada."), assistant("Hello, Ada.")]
        chat = await o.session(
            backend=ScriptedBackend(["Ada."]), system="Speak {{plainly}}.", history=history, plan=True
        )
        await chat.run("Who am I?")
        assert (await chat.prompt_parts()).render("stable").startswith("Speak {{plainly}}.")
        assert [text_of(each) for each in (await chat.show()).messages][:2] == ["My name is Ada.", "Hello, Ada."]
        assert (await chat.state()).planning


async def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """The one that was active last, by itself, killed or not; any agent, by name; a new one where there is none."""
    async with opened(tmp_path) as o:
        assert await o.session(resume=True, backend=ScriptedBackend(["one"]), name="first")
        first = await o.session(resume=True)
        assert first.name == "first"
        other = await o.session(backend=ScriptedBackend(["two"]), name="second")
        await other.run("Hello?")
        worker = await o.scripted("three", name="worker")
        await worker.query("Go.")
        await other.kill()
        assert (await o.session(resume=True)).name == "second"
        assert (await (await o.session(resume="worker")).state()).task == "work"
        with pytest.raises(AgentNotFoundError):
            await o.session(resume="nobody")


async def test_its_questions_are_answered_by_its_own(tmp_path: Path) -> None:
    """Whatever the orchestrator's own says, which answers for all others."""
    asked: list[str] = []

    def yes(question: Question) -> bool:
        asked.append(question.agent)
        return True

    call = {"tool": "task_create", "input": {"tasks": ["look"]}}

    async def tasks(session: AsyncSession) -> int:
        await session.run("Plan.")
        return len((await session.show()).tasks)

    async with opened(tmp_path, approve=lambda _: False) as o:
        mine = await o.session(backend=ScriptedBackend([call, "x"]), tools=["tasks"], approve=yes, name="mine")
        theirs = await o.session(backend=ScriptedBackend([call, "x"]), tools=["tasks"], name="theirs")
        assert (await tasks(mine), await tasks(theirs)) == (1, 0)
        assert asked == ["mine"]
        with pytest.raises(ConfigError, match="approve must be a function"):
            await o.session(approve=True)  # type: ignore[arg-type]
