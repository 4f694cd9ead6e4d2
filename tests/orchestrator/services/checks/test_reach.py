"""Agents that an agent may use: its descendants, the peers that the user named, and archives that it was given."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import ArchivalConfig, AsyncSubagent, CallEvent, Config
from orch.policy.caller import USER, AgentCaller
from orch.services import HANDLERS, call
from orch.services.agents.spawn import spec_of
from orch.tree.interface import events
from orch.tree.interface.topics import QueryTopic, ReadyTopic
from orch_protocol.core.errors import (
    AgentError,
    AgentNotFoundError,
    BudgetExceededError,
    ConfigError,
    NoValueError,
    QueryCycleError,
    ToolNotGrantedError,
)
from orch_protocol.core.messages import Usage, text_of
from orch_protocol.core.taint import TaintConfig
from orch_protocol.policy.budget import limit_of
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.services.agents.lifecycle import Kill
from orch_protocol.services.agents.query import QUERY, AskAll, Collect, QueryAgent, Wait
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.agents.status import LIST_AGENTS, ListAgents
from orch_protocol.services.archives.recall import ListArchives, ReadArchive, SearchArchive
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.resources.values import TAKE_VALUE, TakeValue
from orchestrator.policy.test_budget_kinds import Land
from orchestrator.root_double import NEST, World, nesting, opened
from orchestrator.services.test_services import ask_root
from virtual_clock import virtual

READ, LIST, GREP, HELP, PACKAGES = ALL = ("read_file", "list_files", "grep_files", "py_help", "installed_packages")
INPUT = {READ: {"path": "x"}, LIST: {}, GREP: {"pattern": "x"}, HELP: {"topic": "os"}, PACKAGES: {}}
ASKING = ("query", "submit", "ask_all", "wait", "collect")


async def child_of(world: World, parent: AsyncSubagent, **options: Any) -> AsyncSubagent:
    """Spawn a child of `parent`."""
    spawned = await call(
        world.supervisor, AgentCaller(parent.id), SPAWN, Spawn("t", **({"script": ("ok",) * 9} | options))
    )
    return AsyncSubagent(world, spawned.id)


def asks(ref: str) -> dict[str, Any]:
    """Return parameters that name `ref` for each service that queries or waits for an agent."""
    return {
        "query": QueryAgent(ref, "go"),
        "submit": QueryAgent(ref, "go"),
        "ask_all": AskAll((ref,), "go"),
        "wait": Wait((ref,)),
        "collect": Collect(ref, 0.0),
    }


@virtual
async def test_agent_cannot_ask_agent_outside_its_subtree(tmp_path: Path) -> None:
    """The services query, submit, ask_all, wait and collect refuse its id, id prefix, number and name."""
    async with opened(tmp_path, config=nesting()) as world:
        other = await world.scripted("secret", tools=["bash"], name="builder")
        await other.query("go")
        asker = await world.scripted("x", tools=NEST)
        for ref in (other.id, other.id[:6], "1", "builder"):
            for service, params in asks(ref).items():
                if service == "ask_all":
                    [mapped] = await HANDLERS[service](world.supervisor, AgentCaller(asker.id), params)
                    assert mapped.reply is None
                    assert "and its peers" in (mapped.error or "")
                    continue
                with pytest.raises(AgentNotFoundError, match=r"below itself and its peers.*list them with"):
                    await call(world.supervisor, AgentCaller(asker.id), SERVICES[service], params)
        assert world.supervisor.tree.agents[other.id].queries == 1


@virtual
async def test_unreachable_and_unknown_agents_give_the_same_error(tmp_path: Path) -> None:
    """The message is the same for id, id prefix, number and name, so it does not reveal that an agent exists."""
    async with opened(tmp_path, config=nesting()) as world:
        other = await world.scripted("secret", name="builder")
        asker = await world.scripted("x", tools=NEST)
        for service, params in {"query": QueryAgent("", "go"), "kill": Kill()}.items():
            collected = set()
            for ref in (other.id, other.id[:6], "1", "builder", "buildr", "nobody", "99"):
                named = replace(params, **({"refs": (ref,)} if service == "kill" else {"ref": ref}))
                with pytest.raises(AgentNotFoundError) as caught:
                    await call(world.supervisor, AgentCaller(asker.id), SERVICES[service], named)
                collected.add(str(caught.value).replace(repr(ref), "REF"))
            (text,) = collected
            assert text.endswith("REF is none of them; list them with `orch list`")


@virtual
async def test_latest_is_never_the_calling_agent(tmp_path: Path) -> None:
    """The caller was active last, because it runs its own turn. Without other agents, `latest` is refused."""
    async with opened(tmp_path, config=nesting()) as world:
        asker = await world.scripted("x", tools=NEST)
        with pytest.raises(AgentNotFoundError, match="'latest' is none of them"):
            await call(world.supervisor, AgentCaller(asker.id), QUERY, QueryAgent("latest", "go"))
        child = await child_of(world, asker, tools=())
        await asker.query("go")
        reply = await call(world.supervisor, AgentCaller(asker.id), QUERY, QueryAgent("latest", "go"))
        assert reply.id == child.id


@virtual
async def test_references_resolve_within_reach(tmp_path: Path) -> None:
    """`latest` and id prefixes are resolved among reachable agents only."""
    async with opened(tmp_path, config=nesting()) as world:
        asker = await world.scripted("x", tools=NEST)
        child = await child_of(world, asker, tools=())
        other = await world.scripted("secret", "secret")
        await child.query("go")
        await other.query("go")
        reply = await call(world.supervisor, AgentCaller(asker.id), QUERY, QueryAgent("latest", "go"))
        assert reply.id == child.id
        others = (asker.id, other.id)
        unique = next(child.id[:n] for n in range(1, 13) if not any(id.startswith(child.id[:n]) for id in others))
        assert (await call(world.supervisor, AgentCaller(asker.id), QUERY, QueryAgent(unique, "go"))).id == child.id


def _about(service: str, ref: str) -> msgspec.Struct | None:
    """Return parameters of `service` that name `ref`, or None if the service names no agent."""
    kind = SERVICES[service].params
    names = {"ref": ref, "refs": (ref,)}
    given: dict[str, Any] = {name: names[name] for name in kind.__struct_fields__ if name in names}
    if not given or service in ("spawn", "import"):
        return None
    more: dict[str, Any] = {
        "prompt": "go",
        "text": "go",
        "keep": ("read_file",),
        "change": {"type": "Rename", "name": "x"},
        "name": "x",
        "on": True,
        "query": "x",
        "older": 0,
        "dry_run": True,
    }
    given |= {name: more[name] for name in kind.__struct_fields__ if name in more}
    if service == "change_session":
        from orch_protocol.services.sessions.sessions import ChangeSession
        from orch_protocol.session.tree import SetTitle

        return ChangeSession(ref, SetTitle("x"))
    return msgspec.convert(given, kind)


@virtual
async def test_every_service_refuses_agents_out_of_reach(tmp_path: Path) -> None:
    """The check also covers services that no tool calls, because requests need not come from a tool."""
    async with opened(tmp_path, config=nesting()) as world:
        other = await world.scripted("secret", name="builder")
        asker = await world.scripted("x", tools=NEST)
        checked = []
        permitted = {name for name, service in SERVICES.items() if not service.agents.tools.isdisjoint(NEST)}
        for service in HANDLERS:
            if (params := _about(service, other.id)) is None:
                continue
            checked.append(service)
            if service == "ask_all":
                assert (await HANDLERS[service](world.supervisor, AgentCaller(asker.id), params))[0].reply is None
                continue
            with pytest.raises(AgentNotFoundError if service in permitted else ToolNotGrantedError):
                await call(world.supervisor, AgentCaller(asker.id), SERVICES[service], params)
        assert {"query", "kill", "take_value", "show", "fork", "revoke_tools", "steer", "execute", "resume"} <= {
            *checked
        }
        assert world.status(other) == "idle"


@virtual
async def test_values_come_only_from_descendants(tmp_path: Path) -> None:
    """Unrelated agents and peers of the owner cannot take its values."""
    async with opened(tmp_path, config=nesting()) as world:
        parent = await world.scripted("x", tools=NEST)
        child = await child_of(world, parent, tools=())
        with pytest.raises(NoValueError):
            await call(world.supervisor, AgentCaller(parent.id), TAKE_VALUE, TakeValue(child.id, ".h_001"))
        for options in ({}, {"peers": [child]}):
            other = await world.scripted("x", tools=NEST, **options)
            with pytest.raises(AgentNotFoundError, match="may only take values of agents below itself"):
                await call(world.supervisor, AgentCaller(other.id), TAKE_VALUE, TakeValue(child.id, ".h_001"))


@virtual
async def test_list_shows_descendants_and_peers(tmp_path: Path) -> None:
    """The list of agents for an agent contains its descendants and peers, but not the agent itself."""
    async with opened(tmp_path, config=nesting()) as world:
        peer, _ = await world.scripted("x"), await world.scripted("x")
        asker = await world.scripted("x", tools=NEST, peers=[peer])
        child = await child_of(world, asker, tools=("spawn_subagent",))
        grandchild = await child_of(world, child, tools=())
        rows = await call(world.supervisor, AgentCaller(asker.id), LIST_AGENTS, ListAgents())
        assert [row.id for row in rows] == [peer.id, child.id, grandchild.id]
        assert len(await world.agents()) == 5


@virtual
async def test_peer_can_be_queried_only(tmp_path: Path) -> None:
    """The peer uses its own tools; all other services refuse it, and it cannot query the asking agent."""
    async with opened(tmp_path, config=nesting()) as world:
        look = {"tool": "list_files", "input": {}}
        peer = await world.scripted(look, "one", "two", "three", "for the user", tools=["list_files"], name="reader")
        asker = await world.scripted(
            {"tool": "query_subagent", "input": {"id": "reader", "prompt": "go"}}, "done", tools=[], peers=["reader"]
        )
        assert set((await asker.state()).tools) == {
            "query_subagent",
            "collect_subagent",
            "wait_subagents",
            "list_subagents",
        }
        assert (await asker.query("go")).text == "done"
        assert world.supervisor.tree.agents[peer.id].usage.tool_calls == 1
        await ask_root(world, asker.id, "submit", QueryAgent("reader", "go"))
        await ask_root(world, asker.id, "wait", Wait((peer.id,)))
        assert (await ask_root(world, asker.id, "collect", Collect("1"))).text == "two"
        [mapped] = await HANDLERS["ask_all"](world.supervisor, AgentCaller(asker.id), AskAll(("reader",), "go"))
        assert mapped.reply is not None
        for service in HANDLERS:
            if service in (*ASKING, "state") or (params := _about(service, peer.id)) is None:
                continue
            with pytest.raises((AgentNotFoundError, ToolNotGrantedError)):
                await call(world.supervisor, AgentCaller(asker.id), SERVICES[service], params)
        peer.submit("go")
        with pytest.raises(AgentError, match="can collect only results of its own queries to 'reader'"):
            await ask_root(world, asker.id, "collect", Collect(peer.id))
        with pytest.raises(AgentNotFoundError):
            await HANDLERS["query"](world.supervisor, AgentCaller(peer.id), QueryAgent(asker.id, "back"))


@virtual
async def test_only_the_user_names_peers(tmp_path: Path) -> None:
    """An agent cannot pass its own peers to a child; a peer that the user names must exist."""
    async with opened(tmp_path, config=nesting()) as world:
        peer = await world.scripted("x")
        asker = await world.scripted("x", tools=NEST, peers=[peer])
        with pytest.raises(ToolNotGrantedError, match="cannot set 'peers' of 'spawn': only the user can"):
            await child_of(world, asker, tools=("query_subagent",), peers=(peer.id,))
        child = await child_of(world, asker, tools=("query_subagent",))
        with pytest.raises(AgentNotFoundError):
            await ask_root(world, child.id, "query", QueryAgent(peer.id, "go"))
        with pytest.raises(AgentNotFoundError, match="nobody"):
            await world.scripted("x", peers=["nobody"])


async def test_peers_and_archives_survive_resume_fork_and_a_new_root(tmp_path: Path) -> None:
    """Peers and granted archives are part of the agent's spec, so a resumed agent and a fork can use them too."""
    config = replace(nesting(), archival=replace(EAGER, async_=False))
    async with opened(tmp_path, run="r", config=config) as world:
        peer = await world.scripted(*["yes"] * 9)
        archive = (await peer.query("The code is 4711")).archived_to
        asker = await world.scripted(*["ok"] * 9, peers=[peer], archives=[archive])
        await asker.kill()
        await asker.resume()
        copy = await asker.session.fork()
        ids = [asker.id, copy.id]
    async with opened(tmp_path, run="r", config=config) as world:
        for id in ids:
            assert (await ask_root(world, id, "query", QueryAgent(peer.id, "go"))).text == "yes"
            assert "4711" in text_of((await ask_root(world, id, "read_archive", ReadArchive(archive)))[0])


async def test_archive_granted_to_a_child_is_usable(tmp_path: Path) -> None:
    """The child can use only the granted archive, and its own children need a separate grant."""
    config = replace(nesting(), archival=replace(EAGER, async_=False))
    async with opened(tmp_path, config=config) as world:
        parent = await world.scripted(*["ok"] * 9, tools=NEST)
        given = (await parent.query("The code is 4711")).archived_to or ""
        kept = (await parent.query("The code is 4712")).archived_to or ""
        child = await child_of(world, parent, tools=("spawn_subagent",), archives=(given[:6],))
        hits = await ask_root(world, child.id, "search_archive", SearchArchive("code is"))
        assert {hit.id for hit in hits} == {given}
        assert "4711" in text_of((await ask_root(world, child.id, "read_archive", ReadArchive(given)))[0])
        assert (await ask_root(world, child.id, "query", QueryAgent(given, "4711"))).id == given
        assert [
            row.id for row in await HANDLERS["list_archives"](world.supervisor, AgentCaller(child.id), ListArchives())
        ] == [given]
        with pytest.raises(AgentNotFoundError, match="you have no archive "):
            await ask_root(world, child.id, "read_archive", ReadArchive(kept))
        with pytest.raises(AgentNotFoundError):
            await ask_root(world, child.id, "query", QueryAgent(kept, "4712"))
        with pytest.raises(AgentNotFoundError):
            await child_of(world, child, tools=(), archives=(kept,))
        second = await child_of(world, child, tools=())
        third = await child_of(world, child, tools=(), archives=(given,))
        with pytest.raises(AgentNotFoundError):
            await ask_root(world, second.id, "read_archive", ReadArchive(given))
        assert len(await ask_root(world, third.id, "read_archive", ReadArchive(given))) == 2


async def test_archive_grant_adds_its_tools_without_archival(tmp_path: Path) -> None:
    """An agent that archives nothing gets the archive tools, with query_subagent limited to archives."""
    async with opened(tmp_path, run="r", config=Config(archival=replace(EAGER, async_=False))) as world:
        owner = await world.scripted("ok")
        given = (await owner.query("The code is 4711")).archived_to or ""
    read = {"tool": "read_archive", "input": {"id": given}}
    async with opened(tmp_path, run="r", config=Config(archival=ArchivalConfig(enabled=False))) as world:
        reader = await world.scripted(read, "done", tools=[], archives=[given])
        assert set((await reader.state()).tools) == {
            "search_archive",
            "read_archive",
            "map_subagents",
            "query_subagent",
        }
        assert (await reader.query("go")).tool_calls == 1
        result = (await reader.show()).messages[2].content[0]
        assert "4711" in result.content[0].text
        with pytest.raises(ConfigError, match="is an archive, not an agent"):
            await world.scripted("x", peers=[given])


@virtual
async def test_mutual_peer_queries_are_refused_as_a_cycle(tmp_path: Path) -> None:
    """While A waits for B, a query or wait of B for A raises QueryCycleError."""
    async with opened(tmp_path, config=nesting()) as world:
        root = world.supervisor
        ask = {"tool": "query_subagent", "input": {"id": "a", "prompt": "back"}}
        wait = {"tool": "wait_subagents", "input": {"ids": ["a"]}}
        one = (await spec_of(root, Spawn("t", tools=tuple(NEST), name="a", script=("x",) * 3), USER))[0]
        two = (await spec_of(root, Spawn("t", tools=tuple(NEST), name="b", script=(ask, wait, "no")), USER))[0]
        for spec, peer in ((one, two.id), (two, one.id)):
            root.handle(events.SpawnRequested(replace(spec, peers=(peer,)), None, None))
            await root.waiters.until(ReadyTopic(spec.id), 5)
        root.ask(root.tree.agents[one.id], "go")  # `one` is in a turn that the user started
        asked = root.ask(root.tree.agents[two.id], "go", asker=one.id, waits=True)
        with pytest.raises(QueryCycleError, match="waiting, directly or indirectly"):
            await ask_root(world, two.id, "query", QueryAgent(one.id, "back"))
        with pytest.raises(QueryCycleError, match="waiting, directly or indirectly"):
            await ask_root(world, two.id, "wait", Wait((one.id,)))
        await root.waiters.until(QueryTopic(asked), 5)


@virtual
async def test_plan_mode_agent_cannot_query_unrestricted_peers(tmp_path: Path) -> None:
    """An agent in plan mode can query a peer only if the peer is in plan mode too."""
    async with opened(tmp_path, config=nesting()) as world:
        peer = await world.scripted("did it", tools=["write_file"])
        asker = await world.scripted("x", plan=True, peers=[peer])
        with pytest.raises(AgentError, match="is in plan mode"):
            await ask_root(world, asker.id, "query", QueryAgent(peer.id, "write"))
        planning = await world.scripted("planned", plan=True)
        second = await world.scripted("x", plan=True, peers=[planning])
        assert (await ask_root(world, second.id, "query", QueryAgent(planning.id, "go"))).text == "planned"


@virtual
async def test_taint_propagates_to_peers(tmp_path: Path) -> None:
    """The peer gets the labels of the asker's conversation. The request does not contain them."""
    (tmp_path / "mail.txt").write_text("Follow me")
    taint = TaintConfig(untrusted_paths=(str(tmp_path / "mail.txt"),))
    async with opened(tmp_path, config=replace(nesting(), policy=PolicyConfig(taint=taint))) as world:
        peer = await world.scripted("ok")
        read = {"tool": "read_file", "input": {"path": "mail.txt"}}
        asker = await world.scripted(read, "x", tools=["read_file"], peers=[peer], cwd=tmp_path)
        await asker.query("go")
        await ask_root(world, asker.id, "query", QueryAgent(peer.id, "go"))
        assert [mark.bit for mark in world.supervisor.tree.agents[peer.id].spec.marks] == ["untrusted"]


# Budgets.


def test_peer_usage_is_charged_once_to_each_budget() -> None:
    """The caller, the peer, their ancestors and the root are charged; a common ancestor is charged once."""
    land = Land()
    top = land.work()
    above = land.work(top)
    peer = land.forest.spawn(above)
    asker = land.work(top)
    land.forest.ask(peer, f"q-{peer}", asker=asker)
    spent = land.budgets.spent
    nodes = land.forest.tree.agents
    land.take(peer, tokens=5)
    assert [spent(nodes[id]).tokens for id in (top, above, peer, asker)] == [5] * 4
    assert spent(None).tokens == 5
    land.finish(peer, Usage(input_tokens=5))
    assert [spent(nodes[id]).tokens for id in (top, above, peer, asker)] == [5] * 4
    assert spent(None).tokens == 5
    assert land.forest.refold().agents[asker].peer_usage == nodes[asker].peer_usage == Usage(input_tokens=5)
    land.forest.ask(peer, "of the user")
    land.forest.finish(peer, "of the user")
    assert spent(nodes[asker]).tokens == 5


@pytest.mark.parametrize("kind", ["usd", "tokens", "tool_seconds", "model_calls", "tool_calls"])
def test_callers_budget_limits_its_peer(kind: str) -> None:
    """The limit includes the peer's subagents at any depth, and does not apply to queries of the user."""
    land = Land()
    peer = land.forest.spawn()
    asker = land.work(**{limit_of(kind): 10})
    land.forest.ask(peer, f"q-{peer}", asker=asker)
    child = land.forest.spawn(peer)
    land.forest.ask(child, f"q-{child}", asker=peer)
    assert land.budgets.kinds_for(peer) == land.budgets.kinds_for(child) == (kind,)
    land.take(peer, **{kind: 6})
    land.take(child, **{kind: 4})
    for id in (peer, child, asker):
        with pytest.raises(BudgetExceededError, match="agent 'agent-2' and its descendants"):
            land.take(id, **{kind: 1})
    land.finish(peer)
    land.forest.ask(peer, "of the user")
    assert land.budgets.kinds_for(peer) == ()


def test_peer_time_and_processes_are_charged_to_the_caller() -> None:
    """A process that a peer starts for the caller counts; seconds in which both work count once."""
    land = Land()
    peer = land.forest.spawn()
    land.forest.gone(peer, 0)
    asker = land.work(max_seconds=60, max_processes=2)
    land.forest.now += 5
    land.budgets.require_process(peer, asker)
    land.forest.ask(peer, f"q-{peer}", asker=asker)
    land.forest.up(peer)
    land.forest.now += 5
    nodes = land.forest.tree.agents
    assert land.budgets.spent(nodes[asker]).seconds == 10
    assert land.budgets.spent(nodes[asker]).processes == 2
    assert land.budgets.time_left(peer) is not None
    with pytest.raises(BudgetExceededError, match="agent 'agent-2'"):
        land.budgets.require_process(peer, asker)
    land.finish(peer)
    land.finish(asker)
    land.forest.now += 5
    assert land.budgets.spent(nodes[asker]).seconds == 10


# Random trees and requests.


def _request(rng: random.Random, names: list[str]) -> dict[str, Any]:
    """Return a random call: of a reading tool, or of one that queries, awaits or collects an agent."""
    tool = rng.choice([*ALL, "query_subagent", "query_subagent", "wait_subagents", "collect_subagent"])
    if tool in INPUT:
        return {"tool": tool, "input": INPUT[tool]}
    if tool == "wait_subagents":
        return {"tool": tool, "input": {"ids": [rng.choice(names)]}}
    more = {"prompt": "go"} if tool == "query_subagent" else {"wait": False}
    return {"tool": tool, "input": {"id": rng.choice(names), **more}}


@pytest.mark.parametrize("with_peers", [False, True])
@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_no_call_exceeds_the_rights_of_its_originator(tmp_path: Path, seed: int, with_peers: bool) -> None:
    """In random trees, only tools run that the queried agent, its descendants or their peers have."""
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(7)]
    ran: list[str] = []

    def note(event: CallEvent) -> None:
        if event.outcome == "ran" and event.tool in ALL:
            ran.append(event.tool)

    async with opened(tmp_path, config=nesting(depth_cap=9)) as world:
        nodes = world.supervisor.tree.agents
        world.add_observer(note)
        made: list[str] = []
        for name in names:
            parent = rng.choice([None, *made]) if made else None
            held = nodes[parent].spec.active if parent is not None else (*ALL, *NEST)
            tools = tuple(tool for tool in held if tool in NEST or rng.random() < 0.6)
            peers = tuple(rng.sample(made, min(2, len(made)))) if with_peers and parent is None else ()
            script = ({"loop": [{"tools": [_request(rng, names) for _ in range(4)]}, "done"]},)
            asked = Spawn("t", name=name, tools=tools, peers=peers, script=script)
            made.append((await call(world.supervisor, AgentCaller(parent) if parent else USER, SPAWN, asked)).id)
        first = rng.choice(made)
        await call(world.supervisor, USER, QUERY, QueryAgent(first, "go"))
        rights = _rights(world, first)
    assert {*ran} <= rights


def _rights(world: World, id: str) -> set[str]:
    """Return the tools of the agent, of its descendants, and of all agents that these can reach through peers."""
    nodes, seen, left = world.supervisor.tree.agents, set[str](), [id]
    while left:
        at = left.pop()
        if at not in seen:
            seen.add(at)
            left += [peer for node in nodes.subtree(at) for peer in node.spec.peers]
    return {tool for each in seen for tool in nodes[each].spec.active}
