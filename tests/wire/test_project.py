"""What agents are told of their project, by each API: cached, the same in every request, never archived."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config
from orch.testing import FakeLauncher, fake_world
from orch_protocol.agent.config import TriggerConfig
from wire.model_server import Answer, ModelServer, call, say
from wire.sent_requests import Sent, assert_goes_on, of_agents

MODELS = {
    "messages": "anthropic:claude-sonnet-5-5",
    "chat": "openai:gpt-4o",
    "responses": "openai:gpt-6-luna",
}
SEED = ArchivalConfig(enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=2))
RULE = "Count in dozens."

Begin = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with context files, and something to read."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "AGENTS.md").write_text(f"{RULE}\n" + "Rule upon rule.\n" * 900)
    (folder / "one.txt").write_text("this is one\n")
    return folder


@pytest.fixture
async def begin(server: ModelServer, tmp_path: Path) -> AsyncIterator[Begin]:
    """Opens roots whose models are the server's, with agents on the test's own event loop; closes the one before."""
    opened: list[AsyncOrchestrator] = []

    async def begin(model: str, **config: Any) -> tuple[AsyncOrchestrator, FakeLauncher]:
        if opened:
            await opened[-1].close()
        env = {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_BASE_URL": server.url}
        env |= {"OPENAI_API_KEY": "k2", "OPENAI_BASE_URL": f"{server.url}/v1"}
        launcher = FakeLauncher()
        root = AsyncOrchestrator(
            model, config=Config(**config), home=tmp_path / "home", run="r", env=env, **fake_world(launcher)
        )
        opened.append(await root.start())
        return root, launcher

    yield begin
    await opened[-1].close()


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    """A model by each API in turn."""
    return MODELS[request.param]


def read(*paths: str) -> Answer:
    """Return an answer that reads files at once."""
    return call(*({"call": "read_file", "input": {"path": path}} for path in paths))


def told(sent: Sent) -> list[str]:
    """Return the pieces of a request that tell of the project."""
    return [piece for piece in sent.pieces if RULE in piece or "Rule upon rule" in piece]


@pytest.mark.parametrize("preset", ["investigate", "work"])
async def test_every_request_begins_with_the_one_before(
    server: ModelServer, begin: Begin, model: str, folder: Path, preset: str
) -> None:
    """In a turn, over turns, after a death and in another root, byte for byte, though the files are others by then."""
    root, launcher = await begin(model)
    agent = await root.spawn("Count", preset=preset, cwd=folder)
    server.script += [read("one.txt", "one.txt"), say("one"), say("two"), say("three"), say("four")]
    await agent.query("How many?")
    (folder / "AGENTS.md").write_text("Count in scores.\n")
    (folder / "new").mkdir()
    await agent.query("And now?")
    launcher.worker(agent.id).die(9)
    await agent.query("And now?")
    root, _ = await begin(model)
    await (await root.get(agent.id)).query("And now?")
    sent = of_agents(server.requests)
    assert server.refused == []
    assert len(sent) == 5
    for before, after in pairwise(sent):
        assert_goes_on(before, after)
    bare = [each.bare for each in sent]
    assert len({each[: each.index(b"Task: ")] for each in bare}) == 1
    assert all(told(each) for each in sent)
    assert not any(b"scores" in each for each in bare)


async def test_siblings_share_all_before_their_tasks(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """Two agents in one folder differ from their task on."""
    root, _ = await begin(model)
    for task in ("Count zebras", "Sum yaks"):
        server.script.append(say("done"))
        await (await root.spawn(task, cwd=folder)).query("go")
    one, other = (request.raw.partition(b"Task: ") for request in server.requests)
    assert RULE.encode() in one[0]
    assert one[0] == other[0]
    assert (one[2][:12], other[2][:8]) == (b"Count zebras", b"Sum yaks")


async def test_what_siblings_share_is_marked(server: ModelServer, begin: Begin, folder: Path) -> None:
    """Where caching is asked for by markers there is one behind it, of the four that there may be."""
    root, _ = await begin(MODELS["messages"])
    agent = await root.spawn("Count", cwd=folder)
    server.script += [read("one.txt"), read("one.txt"), say("done")]
    await agent.query("How many?")
    for request in server.requests:
        first = request.body["messages"][0]["content"]
        assert [RULE in part["text"] for part in first] == [True, False]
        assert first[0]["cache_control"] == {"type": "ephemeral"}
        assert request.raw.count(b'"cache_control"') <= 4


async def test_it_stays_when_turns_are_archived(server: ModelServer, begin: Begin, model: str, folder: Path) -> None:
    """It belongs to no turn: after the first one is archived, and after the next, it stands whole where it stood."""
    root, _ = await begin(model, archival=SEED)
    agent = await root.spawn("Count", preset="work", cwd=folder)
    replies = []
    for prompt in ("How many?", "And now?", "Thanks"):
        if prompt != "Thanks":
            server.script += [read("one.txt", "one.txt"), say("one"), say('{"outcome": "Read."}')]
        else:
            server.script.append(say("bye"))
        replies.append(await agent.query(prompt))
    assert server.refused == []
    sent = of_agents(server.requests)
    assert sent[-1].holders == [reply.archived_to for reply in replies[:2]]
    for before, after in pairwise(sent):
        assert_goes_on(before, after)
    assert told(sent[-1]) == told(sent[0])
    assert "".join(told(sent[-1])).count("Rule upon rule.") == 900
    [first, *_] = await root.archives.read(replies[0].archived_to)
    assert RULE not in str(first)


async def test_none_is_nothing(server: ModelServer, begin: Begin, model: str, folder: Path) -> None:
    """With `none` a request is that of an agent in an empty folder, byte for byte."""
    (folder.parent / "empty").mkdir()
    root, _ = await begin(model)
    for where, context in ((folder, "none"), (folder.parent / "empty", "full")):
        server.script.append(say("done"))
        await (await root.spawn("Count", cwd=where, context=context)).query("go")
    assert server.requests[0].raw == server.requests[1].raw
