"""The project description in requests, with each API: cached, the same in every request, and never archived."""

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
    """A project with a context file and a file to read."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "AGENTS.md").write_text(f"{RULE}\n" + "Rule upon rule.\n" * 900)
    (folder / "one.txt").write_text("this is one\n")
    return folder


@pytest.fixture
async def begin(server: ModelServer, tmp_path: Path) -> AsyncIterator[Begin]:
    """A function that opens roots and closes the root before. Their models are at `server`."""
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
    """A model of each API."""
    return MODELS[request.param]


def read(*paths: str) -> Answer:
    """Return an answer that reads all files `paths` at the same time."""
    return call(*({"call": "read_file", "input": {"path": path}} for path in paths))


def project_parts_of(sent: Sent) -> list[str]:
    """Return the pieces of a request that describe the project."""
    return [piece for piece in sent.pieces if RULE in piece or "Rule upon rule" in piece]


@pytest.mark.parametrize("preset", ["investigate", "work"])
async def test_every_request_extends_the_previous_one(
    server: ModelServer, begin: Begin, model: str, folder: Path, preset: str
) -> None:
    """Requests extend each other in a turn, across turns, after a death and in another root.

    A change of the project files does not change the requests.
    """
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
    assert all(project_parts_of(each) for each in sent)
    assert not any(b"scores" in each for each in bare)


async def test_siblings_share_everything_before_their_tasks(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """The requests of two agents in one folder are the same up to their tasks."""
    root, _ = await begin(model)
    for task in ("Count zebras", "Sum yaks"):
        server.script.append(say("done"))
        await (await root.spawn(task, cwd=folder)).query("go")
    one, other = (request.raw.partition(b"Task: ") for request in server.requests)
    assert RULE.encode() in one[0]
    assert one[0] == other[0]
    assert (one[2][:12], other[2][:8]) == (b"Count zebras", b"Sum yaks")


async def test_shared_prefix_has_a_cache_marker(server: ModelServer, begin: Begin, folder: Path) -> None:
    """The project description has a cache marker, and each request has at most four cache markers."""
    root, _ = await begin(MODELS["messages"])
    agent = await root.spawn("Count", cwd=folder)
    server.script += [read("one.txt"), read("one.txt"), say("done")]
    await agent.query("How many?")
    for request in server.requests:
        first = request.body["messages"][0]["content"]
        assert [RULE in part["text"] for part in first] == [True, False]
        assert first[0]["cache_control"] == {"type": "ephemeral"}
        assert request.raw.count(b'"cache_control"') <= 4


async def test_project_description_stays_when_turns_are_archived(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """After turns are archived, the whole project description is at the same place.

    The archive does not contain it.
    """
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
    assert project_parts_of(sent[-1]) == project_parts_of(sent[0])
    assert "".join(project_parts_of(sent[-1])).count("Rule upon rule.") == 900
    [first, *_] = await root.archives.read(replies[0].archived_to)
    assert RULE not in str(first)


async def test_level_none_equals_an_empty_folder(server: ModelServer, begin: Begin, model: str, folder: Path) -> None:
    """With the context `none`, a request is the same, byte by byte, as a request in an empty folder."""
    (folder.parent / "empty").mkdir()
    root, _ = await begin(model)
    for where, context in ((folder, "none"), (folder.parent / "empty", "full")):
        server.script.append(say("done"))
        await (await root.spawn("Count", cwd=where, context=context)).query("go")
    assert server.requests[0].raw == server.requests[1].raw
