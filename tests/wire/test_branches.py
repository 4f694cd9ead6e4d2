"""Requests after a move to another entry, with each API and real processes: they contain the messages on the path.

The server refuses incomplete conversations.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from orch import AsyncOrchestrator, AsyncSubagent
from orch_protocol.services.sessions.sessions import EntryRow
from wire.each_api import each_model
from wire.model_server import ModelServer, call, fail, say
from wire.test_end_to_end import folder, read, root

__all__ = ["folder", "root"]


def conversation(server: ModelServer) -> str:
    """Return the messages of the last request as text."""
    body: dict[str, Any] = server.requests[-1].body
    return str(body.get("messages") or body.get("input"))


def order(text: str, *parts: str) -> bool:
    """Return whether `text` contains `parts` in this order."""
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


async def messages(agent: AsyncSubagent) -> list[EntryRow]:
    """Return the message entries on the current path."""
    return [row for row in (await agent.session.tree()).entries if row.type == "message" and row.on_path]


@each_model
async def test_next_request_after_a_move_is_the_path(
    server: ModelServer, root: AsyncOrchestrator, folder: Path, model: str
) -> None:
    """The request after a move contains exactly the messages on the new path.

    The targets are: before a question, between a call and its result with a kill -9 after the move, another branch, and
    the beginning.
    """
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

    # The target is a call without its results. The server refuses a request that is not valid.
    call_row = next(row for row in await messages(agent) if row.head.startswith("read_file"))
    await agent.session.checkout(call_row.id, summary="Both files were read in vain.")
    pid = agent.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)  # right after the checkout was acknowledged
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
async def test_model_summarizes_the_abandoned_branch(
    server: ModelServer, root: AsyncOrchestrator, folder: Path, model: str
) -> None:
    """The model gets only the abandoned part of the branch, without tools, and the next request contains its summary.

    If the model refuses, the move succeeds with a summary that was made without a model.
    """
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
