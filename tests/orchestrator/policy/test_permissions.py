"""Permissions of callers: an agent may do only what its tools permit, and the user may do everything."""

from __future__ import annotations

import pytest

from orch.policy.caller import USER, AgentCaller
from orch.policy.permissions import (
    Action,
    AskAgent,
    CallService,
    ImportBackend,
    ReadContent,
    ReadReply,
    UseModel,
    check,
    may,
    refusal,
)
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import AgentError, ConfigError, OrchError, ToolNotGrantedError
from orch_protocol.services.agents.lifecycle import KILL
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.policy.budgets import CHANGE_BUDGET, RESERVE_BUDGET
from orchestrator.tree_double import Forest

REMOTE = BackendSpec("acme", "m", {"api": "chat", "base_url": "https://example.org"})

CUSTOM = BackendSpec("package.module", "Class", {"api": "package.module:Class"})


@pytest.fixture
def forest() -> Forest:
    """Agents without tools: `a`, which may do nothing, and its neighbor `b`."""
    forest = Forest(allow_nested=True)
    for name in ("a", "b"):
        forest.spawn(id=name, name=name)
    return forest


def actions(forest: Forest) -> list[tuple[Action, type[OrchError]]]:
    """Return actions that the agent `limited` may not do, and the error of each."""
    nodes = forest.tree.agents
    return [
        (CallService(SPAWN.name), ToolNotGrantedError),
        (CallService("no_such_service"), ToolNotGrantedError),
        (AskAgent(nodes["b"]), AgentError),
        (ReadReply(nodes["b"], nodes["b"].last), AgentError),
        (ReadContent(nodes["secret"]), ConfigError),
        (ImportBackend(CUSTOM), ToolNotGrantedError),
    ]


@pytest.fixture
def limited(forest: Forest) -> Forest:
    """In addition to `a` and `b`: `limited` is in plan mode, and `secret` is restricted to local models."""
    forest.spawn(id="limited", name="limited", plan=True)
    forest.spawn(id="secret", name="secret", local=True)
    return forest


def test_an_agent_is_refused_with_the_error_that_states_why(limited: Forest) -> None:
    """`check` raises the error that `refusal` returns, and `may` returns False."""
    nodes, caller = limited.tree.agents, AgentCaller("limited")
    for action, kind in actions(limited):
        found = refusal(nodes, caller, action)
        assert type(found) is kind
        assert not may(nodes, caller, action)
        with pytest.raises(kind) as raised:
            check(nodes, caller, action)
        assert str(raised.value) == str(found)
        assert "limited" in str(found) or "secret" in str(found)


def test_the_user_may_do_everything(limited: Forest) -> None:
    """Every action that is refused to `limited` is permitted to the user."""
    for action, _ in (*actions(limited), (UseModel("acme:m", REMOTE), ConfigError)):
        assert may(limited.tree.agents, USER, action)
        check(limited.tree.agents, USER, action)


def test_a_granted_tool_permits_its_services(forest: Forest) -> None:
    """The agent calls the services that its tool needs, also from its commands. It cannot set options of users."""
    forest.spawn(id="c", name="c", tools=("spawn_subagent",))
    nodes = forest.tree.agents
    for caller in (AgentCaller("c"), AgentCaller("c", from_command=True)):
        assert may(nodes, caller, CallService(SPAWN.name))
        assert may(nodes, caller, CallService(SPAWN.name, Spawn("t")))
        assert not may(nodes, caller, CallService(SPAWN.name, Spawn("t", peers=("b",))))
        assert not may(nodes, caller, CallService(KILL.name))


def test_commands_call_only_services_of_tools(forest: Forest) -> None:
    """The worker may reserve budget without a tool, but a command of the same agent may not."""
    nodes = forest.tree.agents
    assert may(nodes, AgentCaller("a"), CallService(RESERVE_BUDGET.name))
    for name in (RESERVE_BUDGET.name, CHANGE_BUDGET.name, "daemon_stop"):
        error = refusal(nodes, AgentCaller("a", from_command=True), CallService(name))
        assert isinstance(error, ToolNotGrantedError)
        assert "is a command for users" in str(error)


def test_an_agent_for_archives_only_does_not_query_agents(forest: Forest) -> None:
    """With a tool that spawns agents, it may query agents, because it can have children."""
    forest.spawn(id="c", name="c", recall_only=True)
    forest.spawn(id="d", name="d", recall_only=True, tools=("spawn_subagent",))
    nodes = forest.tree.agents
    assert not may(nodes, AgentCaller("c"), AskAgent(nodes["b"]))
    assert may(nodes, AgentCaller("d"), AskAgent(nodes["b"]))


def test_a_reply_is_collected_by_its_asker_and_by_agents_above(forest: Forest) -> None:
    """A neighbor that did not ask may not collect the reply."""
    child = forest.spawn("a", name="child")
    forest.ask(child, asker="a")
    forest.finish(child)
    nodes = forest.tree.agents
    reply = ReadReply(nodes[child], nodes[child].last)
    assert may(nodes, AgentCaller("a"), reply)
    assert not may(nodes, AgentCaller("b"), reply)
    forest.ask("a", "q2", asker="b")
    forest.finish("a", "q2")
    assert may(nodes, AgentCaller("b"), ReadReply(nodes["a"], nodes["a"].last))


def test_local_only_content_stays_with_local_models(forest: Forest) -> None:
    """An agent restricted to local models reads such content and uses no other model."""
    for name in ("c", "d"):
        forest.spawn(id=name, name=name, local=True)
    nodes = forest.tree.agents
    assert may(nodes, AgentCaller("c"), ReadContent(nodes["d"]))
    assert not may(nodes, AgentCaller("a"), ReadContent(nodes["d"]))
    assert may(nodes, AgentCaller("a"), UseModel("acme:m", REMOTE))
    assert not may(nodes, AgentCaller("c"), UseModel("acme:m", REMOTE))


def test_an_agent_names_its_own_custom_backend(forest: Forest) -> None:
    """The agent's worker has already imported the class of the backend."""
    forest.spawn(id="c", name="c", backend=CUSTOM)
    assert may(forest.tree.agents, AgentCaller("c"), ImportBackend(CUSTOM))
