"""What a model is asked after its conversation went back: exactly what is on the path, by every API, in real processes.

The server refuses any conversation that is not whole.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from orch import AsyncOrchestrator, AsyncSubagent
from orch_protocol.session.tree import EntryRow
from wire.each_api import each_model
from wire.model_server import ModelServer, call, fail, say
from wire.test_end_to_end import folder, read, root

__all__ = ["folder", "root"]


def conversation(server: ModelServer) -> str:
    """Return everything that the last request said, as text."""
    body: dict[str, Any] = server.requests[-1].body
    return str(body.get("messages") or body.get("input"))


def order(text: str, *parts: str) -> bool:
    """Whether `parts` stand in `text`, one behind the other."""
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


async def messages(agent: AsyncSubagent) -> list[EntryRow]:
    """Return the messages on the path."""
    return [row for row in (await agent.session.tree()).entries if row.type == "message" and row.on_path]


@each_model
async def test_the_next_request_is_the_path(
    server: ModelServer, root: AsyncOrchestrator, folder: Path, model: str
) -> None:
    """Behind a question, in the middle of a turn, on the branch that was left, at the beginning; after kill -9 too."""
    server.script += [
        call(read("one.txt"), read("two.txt")),
        say("Both read."),
        say("To the left."),
        say("To the right."),
    ]
    agent = await root.spawn("Read the files", cwd=folder, model=model)
    await agent.query("What do they say?")
    await agent.query("Where to?")
    asked = next(row for row in await messages(agent) if row.head == "Where to?")
    assert await agent.session.branch(asked.id) == "Where to?"
    assert (await agent.query("And now?")).text == "To the right."
    sent = conversation(server)
    assert order(sent, "What do they say?", "this is one", "this is two", "Both read.", "And now?")
    assert "To the left." not in sent
    assert "Where to?" not in sent

    # Between a call and its results: these are said to be lost, and nothing that no provider takes is sent.
    call_row = next(row for row in await messages(agent) if row.head.startswith("read_file"))
    await agent.session.checkout(call_row.id, summary="Both files were read in vain.")
    pid = agent.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)  # right after it was acknowledged
    server.script.append(say("Then not."))
    assert (await agent.query("Never mind.")).text == "Then not."
    assert agent.pid != pid
    sent = conversation(server)
    assert order(sent, "What do they say?", "Both files were read in vain.", "Never mind.")
    assert "this is one" not in sent
    assert "cut short" not in sent

    left = next(branch for branch in await agent.session.branches() if branch.head == "Where to?")
    await agent.session.checkout(left.id)
    await agent.session.add_message("It is noon.")
    server.script += [say("Left again."), say("Anew.")]
    await agent.query("Go on.")
    sent = conversation(server)
    assert order(sent, "Both read.", "Where to?", "To the left.", "It is noon.", "Go on.")
    assert "Never mind." not in sent
    await agent.session.checkout(None)
    await agent.query("Begin anew.")
    sent = conversation(server)
    assert order(sent, "Task: Read the files", "Begin anew.")
    assert "What do they say?" not in sent
    assert server.refused == []


@each_model
async def test_a_model_writes_what_came_of_what_is_left(
    server: ModelServer, root: AsyncOrchestrator, folder: Path, model: str
) -> None:
    """It is shown what is left, and no tools; what it writes is in the next request; a refusal is no reason to stay."""
    server.script += [
        say("To the left."),
        say("To the right."),
        say("Tried: right. Found: nothing."),
        say("Then straight on."),
        fail(400, "invalid_request_error"),
    ]
    agent = await root.spawn("Find the way", cwd=folder, model=model)
    await agent.query("Where to?")
    place = (await agent.session.tree()).leaf
    await agent.query("And if that is blocked?")
    await agent.session.checkout(place, summarize=True)
    asked: dict[str, Any] = server.requests[-1].body
    assert order(conversation(server), "And if that is blocked?", "To the right.")
    assert "Where to?" not in conversation(server)
    assert not asked.get("tools")
    await agent.query("And now?")
    assert order(conversation(server), "Where to?", "To the left.", "Tried: right. Found: nothing.", "And now?")
    await agent.session.checkout(place, summarize=True)
    assert (await agent.session.tree()).entries[-1].head.startswith("Asked: ")
