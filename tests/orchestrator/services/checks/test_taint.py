"""Taint labels come from the root's record of the asking agent, and reach each agent that gets its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import AsyncSubagent
from orch.policy.caller import AgentCaller
from orch.services import call, serve_worker
from orch_protocol.core.errors import ProtocolError
from orch_protocol.core.taint import TaintConfig
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.services.agents.query import ASK_ALL, COLLECT, QUERY, SUBMIT, AskAll, Collect, QueryAgent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.agents.status import LIST_AGENTS, ListAgents
from orch_protocol.services.archives.recall import READ_ARCHIVE, SEARCH_ARCHIVE, ReadArchive, SearchArchive
from orch_protocol.wire.worker_messages import RootCall
from orchestrator.root_double import NEST, World, nesting, opened
from virtual_clock import virtual

READ = {"tool": "read_file", "input": {"path": "mail.txt"}}
RECALL = ("search_archive", "read_archive", "map_subagents")


def tainting(folder: Path, **more: Any) -> Any:
    """Return a configuration in which `mail.txt` in `folder` is untrusted."""
    (folder / "mail.txt").write_text("Follow me")
    taint = TaintConfig(untrusted_paths=(str(folder / "mail.txt"),))
    return replace(nesting(), policy=PolicyConfig(taint=taint), **more)


async def reader(world: World, folder: Path, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent that has read the untrusted file."""
    options = {"tools": ["read_file", *NEST, *RECALL], "cwd": folder} | options
    agent = await world.scripted(READ, "read", *said, **options)
    await agent.query("read")
    return agent


async def clean(world: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent that has not read the file."""
    return await world.scripted(*(said or ("ok",) * 9), **({"tools": [*NEST, *RECALL]} | options))


def bits(world: World, id: str) -> set[str]:
    """Return the bits that the root's record of the agent `id` contains."""
    return {mark.bit for mark in world.supervisor.tree.agents[id].spec.marks}


async def shown(agent: AsyncSubagent) -> set[str]:
    """Return the bits of the agent's conversation."""
    return {mark.bit for mark in (await agent.show()).marks}


@pytest.mark.parametrize("from_command", [False, True])
@pytest.mark.parametrize("way", ["spawn", "query", "submit", "ask_all"])
@virtual
async def test_text_of_a_labeled_agent_takes_its_labels(tmp_path: Path, way: str, from_command: bool) -> None:
    """This holds for the task and for each kind of query, from a tool and from a command."""
    async with opened(tmp_path, config=tainting(tmp_path)) as world:
        peer = await clean(world)
        asker = await reader(world, tmp_path, peers=[peer])
        root, caller = world.supervisor, AgentCaller(asker.id, from_command=from_command)
        target = peer.id
        if way == "spawn":
            target = (await call(root, caller, SPAWN, Spawn("as in the mail", tools=(), script=("x",) * 3))).id
        elif way == "ask_all":
            [row] = await call(root, caller, ASK_ALL, AskAll((peer.id,), "as in the mail"))
            assert row.error is None
        else:
            await call(root, caller, {"query": QUERY, "submit": SUBMIT}[way], QueryAgent(peer.id, "as in the mail"))
        assert bits(world, target) == {"untrusted"}
        agent = await world.get(target)
        await world.wait(agent)
        await agent.query("go")
        assert await shown(agent) == {"untrusted"}


@pytest.mark.parametrize(("service", "params"), [("spawn", Spawn("t")), ("query", QueryAgent("x", "go"))])
@virtual
async def test_request_cannot_name_labels(tmp_path: Path, service: str, params: Any) -> None:
    """A request with labels of its own is refused, and the error names the field."""
    async with opened(tmp_path, config=nesting()) as world:
        agent = await clean(world)
        payload = msgspec.msgpack.encode(msgspec.to_builtins(params) | {"marks": []})
        with pytest.raises(ProtocolError, match="marks"):
            await serve_worker(world.supervisor, agent.id, RootCall(service, msgspec.Raw(payload)))


@pytest.mark.parametrize("way", ["query", "collect", "ask_all"])
@virtual
async def test_reply_to_a_command_labels_its_agent(tmp_path: Path, way: str) -> None:
    """The output of a command has no labels, so the root adds those of the reply, also in a running turn."""
    async with opened(tmp_path, config=tainting(tmp_path)) as world:
        peer = await reader(world, tmp_path, *["as in the mail"] * 9)
        asker = await clean(world, peers=[peer])
        root, caller = world.supervisor, AgentCaller(asker.id, from_command=True)
        assert await shown(asker) == set()
        if way == "query":
            await call(root, caller, QUERY, QueryAgent(peer.id, "go"))
        elif way == "ask_all":
            await call(root, caller, ASK_ALL, AskAll((peer.id,), "go"))
        else:
            await call(root, caller, SUBMIT, QueryAgent(peer.id, "go"))
            await call(root, caller, COLLECT, Collect(peer.id))
        assert bits(world, asker.id) == {"untrusted"}
        await asker.ping()
        assert await shown(asker) == {"untrusted"}


async def test_recall_by_a_command_labels_its_agent(tmp_path: Path) -> None:
    """Hits and messages of an archive have the labels of the archived conversation."""
    config = tainting(tmp_path, archival=replace(EAGER, async_=False))
    async with opened(tmp_path, config=config) as world:
        owner = await world.scripted(READ, "the code is 4711", tools=["read_file"], cwd=tmp_path)
        archive = (await owner.query("read")).archived_to or ""
        for service, params in (
            (SEARCH_ARCHIVE, SearchArchive("code is")),
            (READ_ARCHIVE, ReadArchive(archive)),
        ):
            asker = await clean(world, archives=[archive])
            assert await call(world.supervisor, AgentCaller(asker.id, from_command=True), service, params)
            assert bits(world, asker.id) == {"untrusted"}


@virtual
async def test_list_of_agents_has_the_labels_of_their_tasks(tmp_path: Path) -> None:
    """An agent that lists a grandchild sees the task that a labeled child wrote. Its own children add no label."""
    async with opened(tmp_path, config=tainting(tmp_path)) as world:
        root, top = world.supervisor, await clean(world, tools=["read_file", *NEST], cwd=tmp_path)
        asked = Spawn("t", tools=("read_file", *NEST), script=(READ, "read", "x"))
        child = await world.get((await call(root, AgentCaller(top.id), SPAWN, asked)).id)
        await call(root, AgentCaller(top.id), LIST_AGENTS, ListAgents())
        await child.query("read")
        await call(root, AgentCaller(top.id), LIST_AGENTS, ListAgents())
        assert bits(world, top.id) == set()
        await call(root, AgentCaller(child.id), SPAWN, Spawn("as in the mail", tools=(), script=("x",)))
        await call(root, AgentCaller(top.id), LIST_AGENTS, ListAgents())
        assert bits(world, top.id) == {"untrusted"}
