"""`call` checks each request of an agent: the service, the fields of its parameters, and what they refer to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import ScriptedBackend
from orch.policy.caller import USER, AgentCaller, Caller
from orch.policy.permissions import CallService, may, refusal
from orch.services import HANDLERS, call
from orch_protocol.agent.spec import Limits, ToolSpec
from orch_protocol.core.errors import AgentNotFoundError, OrchError, ToolNotGrantedError
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.services.agents.query import QUERY, QueryAgent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.archives.recall import READ_ARCHIVE, ReadArchive
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.resources.tools import RUN_TOOL, RunTool
from orch_protocol.services.service import AnyService
from orchestrator.root_double import NEST, World, nesting, opened
from orchestrator.tree_double import Forest
from virtual_clock import virtual

DEPLOY = ToolSpec("deploy", "Deploy.", {"type": "object", "properties": {"target": {"type": "string"}}})
FOR_AGENTS = {
    name: service for name, service in SERVICES.items() if service.agents.tools or service.agents.workers != "none"
}
SET_BY_USERS = [(service, field) for service in FOR_AGENTS.values() for field in service.fields.users]


def groups(service: AnyService) -> list[str]:
    """Return the names in all groups of the fields of `service`."""
    fields = service.fields
    return [*fields.free, *fields.users, *fields.own, *fields.recorded, *fields.refs]


def params_of(service: AnyService, **fields: Any) -> msgspec.Struct:
    """Return parameters of `service` with `fields`. The other required fields are empty texts."""
    required = {
        each.name: ""
        for each in msgspec.structs.fields(service.params)
        if each.default is msgspec.NODEFAULT and each.default_factory is msgspec.NODEFAULT
    }
    params: msgspec.Struct = service.params(**(required | fields))
    return params


@pytest.fixture
def forest() -> Forest:
    """The agent `able` with all tools and with `deploy`, and its neighbor `other`."""
    forest = Forest(allow_nested=True)
    limits = Limits(max_turns=5, max_tokens=100)
    tools = (*BUILTIN_TOOLS, "deploy")
    forest.spawn(id="able", name="able", tools=tools, root_tools=(DEPLOY,), limits=limits)
    forest.spawn(id="other", name="other")
    return forest


# The fields of parameters.


@pytest.mark.parametrize("name", FOR_AGENTS)
def test_each_field_of_a_service_for_agents_is_in_one_group(name: str) -> None:
    """A new field needs a decision: may an agent set it, and to what."""
    service = FOR_AGENTS[name]
    assert sorted(groups(service)) == sorted(service.params.__struct_fields__)


def test_services_for_users_have_no_groups() -> None:
    """No agent calls them, so there is nothing to decide."""
    assert [name for name, service in SERVICES.items() if name not in FOR_AGENTS and groups(service)] == []


@pytest.mark.parametrize("from_command", [False, True])
@pytest.mark.parametrize(("service", "field"), SET_BY_USERS, ids=lambda value: getattr(value, "name", value))
def test_field_of_users_is_refused_with_its_name(
    forest: Forest, service: AnyService, field: str, from_command: bool
) -> None:
    """Any value but the default is refused. The user may set the field."""
    agents, caller = forest.tree.agents, AgentCaller("able", from_command=from_command)
    params = params_of(service, **{field: object()})
    error = refusal(agents, caller, CallService(service.name, params))
    assert isinstance(error, ToolNotGrantedError)
    assert f"cannot set {field!r} of {service.name!r}: only the user can" in str(error)
    assert may(agents, USER, CallService(service.name, params))
    fields = {"ref": ""} if "ref" in service.params.__struct_fields__ else {}
    assert may(agents, caller, CallService(service.name, params_of(service, **fields)))


def test_field_without_a_decision_is_refused(forest: Forest) -> None:
    """A field in no group counts as a field of users, so a forgotten decision opens nothing."""
    undecided = replace(SPAWN, fields=replace(SPAWN.fields, free=()))
    services = dict(SERVICES) | {"spawn": undecided}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orch.policy.permissions.SERVICES", services)
        error = refusal(forest.tree.agents, AgentCaller("able"), CallService("spawn", Spawn("t", cwd="/")))
    assert "cannot set" in str(error)
    assert "'cwd'" in str(error)


OWN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"root_tools": (DEPLOY,)}, {"root_tools": (ToolSpec("reset", "Reset.", {"type": "object"}),)}),
    ({"root_tools": ()}, {"root_tools": (replace(DEPLOY, description="Forged."),)}),
    ({"budget": Budget(max_tokens=100)}, {"budget": Budget(max_tokens=101)}),
    ({"budget": Budget(max_tool_calls=9)}, {"budget": Budget(max_tool_calls=9, max_tokens=101)}),
    ({"limits": Limits(max_turns=5)}, {"limits": Limits(max_turns=6)}),
    ({"limits": Limits(max_turns=1, turn_seconds=9.0)}, {"limits": Limits(max_turns=5, turn_seconds=1e9)}),
    ({"persist": True}, {"persist": False}),
]


@pytest.mark.parametrize(("within", "beyond"), OWN, ids=str)
def test_child_gets_at_most_what_its_parent_has(forest: Forest, within: dict[str, Any], beyond: dict[str, Any]) -> None:
    """A root tool of the parent may be granted on, unchanged. Limits are at most those of the parent."""
    agents, caller = forest.tree.agents, AgentCaller("able")
    assert refusal(agents, caller, CallService("spawn", Spawn("t", **within))) is None
    error = refusal(agents, caller, CallService("spawn", Spawn("t", **beyond)))
    assert isinstance(error, ToolNotGrantedError)
    assert f"cannot set {next(iter(beyond))!r} of 'spawn'" in str(error)


def test_revoked_root_tool_is_not_granted_on(forest: Forest) -> None:
    """The tool stays in the agent's spec, but the agent may not use it."""
    forest.spawn(id="narrow", name="narrow", tools=("spawn_subagent",), root_tools=(DEPLOY,), withdrawn=("deploy",))
    asked = CallService("spawn", Spawn("t", root_tools=(DEPLOY,)))
    assert not may(forest.tree.agents, AgentCaller("narrow"), asked)


@virtual
async def test_repeated_request_of_another_caller_is_refused(tmp_path: Path) -> None:
    """The root would answer with the agent or the query of that caller."""
    async with opened(tmp_path, config=nesting()) as world:
        root = world.supervisor
        asker = await world.scripted("x", tools=NEST)
        asked = Spawn("t", script=("secret",), request_id="r1")
        first = await call(root, USER, SPAWN, asked)
        with pytest.raises(ToolNotGrantedError, match="'request_id'"):
            await call(root, AgentCaller(asker.id), SPAWN, replace(asked, tools=()))
        reader = await world.scripted("x", tools=NEST, peers=[first.id])
        await call(root, USER, QUERY, QueryAgent(first.id, "go", request_id="q1"))
        with pytest.raises(ToolNotGrantedError, match="'request_id'"):
            await call(root, AgentCaller(reader.id), QUERY, QueryAgent(first.id, "go", request_id="q1"))
        own = Spawn("t", tools=(), script=("x",), request_id="r2")
        made = [(await call(root, AgentCaller(asker.id), SPAWN, own)).id for _ in range(2)]
        assert made[0] == made[1]


def deploy(target: str) -> str:
    """Deploy to `target`."""
    return f"deployed {target}"


@virtual
async def test_root_tool_reaches_only_children_of_its_holders(tmp_path: Path) -> None:
    """A holder grants the tool on by its name. Another agent cannot grant it, by name or with a forged description."""
    async with opened(tmp_path, config=nesting()) as world:
        world.register_tool(deploy)
        root = world.supervisor
        holder = await world.scripted("x", tools=["deploy", *NEST])
        guest = await world.scripted("x", tools=NEST)
        child = await call(root, AgentCaller(holder.id), SPAWN, Spawn("t", tools=("deploy",), script=("x",)))
        ran = await call(root, AgentCaller(child.id), RUN_TOOL, RunTool("deploy", {"target": "test"}))
        assert ran.text == "deployed test"
        [spec] = root.tree.agents[holder.id].spec.root_tools
        for fields in ({"tools": ("deploy",)}, {"tools": (), "root_tools": (spec,)}):
            with pytest.raises(OrchError, match=r"deploy|root_tools"):
                await call(root, AgentCaller(guest.id), SPAWN, Spawn("t", script=("x",), **fields))
        with pytest.raises(ToolNotGrantedError):
            await call(root, AgentCaller(guest.id), RUN_TOOL, RunTool("deploy", {"target": "prod"}))


# What parameters refer to.


def names(service: AnyService, agent: str, archive: str) -> list[dict[str, Any]]:
    """Return values for the fields of `service` that refer to agents and archives of others."""
    fields = service.params.__struct_fields__
    found: list[dict[str, Any]] = []
    for ref in (agent, agent[:8], archive, archive[:8]):
        given = {"ref": ref, "refs": (ref,), "archives": (ref,)} | ({"id": ref} if service is READ_ARCHIVE else {})
        if chosen := {name: value for name, value in given.items() if name in fields}:
            found.append(chosen)
    return found


@pytest.mark.parametrize("kind", ["worker", "command", "other subtree"])
async def test_no_agent_reaches_agents_and_archives_of_others(tmp_path: Path, kind: str) -> None:
    """This holds for every service with a reference, and for workers, commands and agents of another subtree."""
    config = replace(nesting(), archival=replace(EAGER, async_=False))
    async with opened(tmp_path, config=config) as world:
        root = world.supervisor
        owner = await world.scripted(*["secret"] * 5, tools=NEST, name="owner")
        archive = (await owner.query("The code is 4711")).archived_to or ""
        able = await world.scripted("x", tools=[*NEST, "search_archive", "read_archive", "map_subagents"])
        caller: Caller = AgentCaller(able.id, from_command=kind == "command")
        if kind == "other subtree":
            asked = Spawn("t", tools=(*NEST, "search_archive", "read_archive", "map_subagents"), script=("x",))
            caller = AgentCaller((await call(root, caller, SPAWN, asked)).id)
        before, tried = _state(world), 0
        for service in SERVICES.values():
            for fields in names(service, owner.id, archive):
                params = _filled(service, fields)
                tried += 1
                if service.name == "ask_all":  # reports an error for each reference
                    rows = await call(root, caller, service, params)
                    assert all(row.reply is None and row.error for row in rows)
                    continue
                with pytest.raises((AgentNotFoundError, ToolNotGrantedError)):
                    await call(root, caller, service, params)
        assert tried > 100
        assert _state(world) == before
        assert "4711" in str(await call(root, AgentCaller(owner.id), READ_ARCHIVE, ReadArchive(archive)))


def _filled(service: AnyService, fields: dict[str, Any]) -> msgspec.Struct:
    """Return parameters with `fields`, and with a value for each other required field."""
    values = {"prompt": "go", "query": "code", "name": "x", "task": "t", "text": "go", "keep": (), "older": 0.0}
    required = service.params.__struct_fields__
    return params_of(service, **({name: value for name, value in values.items() if name in required} | fields))


def _state(world: World) -> list[Any]:
    """Return what a foreign request could change: the agents with their queries, states and labels."""
    return [
        (node.spec.id, node.status, node.queries, node.spec.marks, node.spec.withdrawn)
        for node in world.supervisor.tree.agents
    ]


@pytest.mark.parametrize("from_command", [False, True])
@virtual
async def test_services_for_users_are_refused_to_agents(tmp_path: Path, from_command: bool) -> None:
    """This covers questions, permissions, runs, budgets and files: the check does not depend on the handler."""
    async with opened(tmp_path, config=nesting()) as world:
        agent = await world.spawn("t", tools=[*NEST], backend=ScriptedBackend(["x"]))
        caller = AgentCaller(agent.id, from_command=from_command)
        for name in HANDLERS:
            if name not in FOR_AGENTS:
                with pytest.raises(ToolNotGrantedError):
                    await call(world.supervisor, caller, SERVICES[name], params_of(SERVICES[name]))
