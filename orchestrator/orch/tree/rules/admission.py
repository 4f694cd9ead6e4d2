"""Limits on spawning and querying. Each check raises an error that states the limit and the remedy."""

from __future__ import annotations

from collections.abc import Iterable

from orch_protocol.agent.config import SubagentsConfig
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import (
    AgentGoneError,
    ConcurrencyLimitError,
    ConfigError,
    DepthCapError,
    SpawnError,
    ToolNotGrantedError,
)

from ..agents.agent_refs import LATEST
from ..agents.state import AgentRecord, TreeState
from ..agents.wait_graph import agents_blocked_by
from .inherited_rights import own_rights

__all__ = [
    "check_asker",
    "check_can_be_queried",
    "check_dead_end",
    "check_spawn",
    "name_for",
    "no_idle_agent_error",
    "not_persisted_error",
]


def check_spawn(config: SubagentsConfig, parent: AgentRecord | None, spec: AgentSpec, depth: int) -> None:
    """Raise SpawnError unless `parent` may spawn the agent `spec` at `depth`.

    `parent` is None for the user's program.
    """
    if parent is not None:
        if not config.enabled:
            raise SpawnError("subagents are disabled in the configuration (subagents.enabled = false)")
        check_asker(parent)
        if not config.allow_nested and parent.spec.depth > 0:
            raise DepthCapError(
                f"agent {parent.spec.name!r} may not spawn: nested spawning is off "
                "(subagents.allow_nested = true turns it on); report that you are blocked"
            )
    if depth > config.depth_cap:
        raise DepthCapError(f"depth cap {config.depth_cap} reached; report that you are blocked")
    if parent is not None:
        _check_grant(parent, spec)


def no_idle_agent_error(config: SubagentsConfig, agents: TreeState) -> ConcurrencyLimitError:
    """Return the error for a request that needs a process while the limit is reached and no idle agent can be stopped.

    Callers that can wait repeat the request when an agent becomes idle.
    """
    return ConcurrencyLimitError(
        f"none of the {len(agents.alive)} agents that are alive is idle, and subagents.max_concurrent is "
        f"{config.max_concurrent}: wait for one to become idle, cancel or kill one, or raise the limit"
    )


def check_dead_end(config: SubagentsConfig, agents: TreeState, asker: str | None, waiting: Iterable[str]) -> None:
    """Raise ConcurrencyLimitError if no agent can become idle before `asker` gets a place.

    `asker` is the agent that waits, None for the user. `waiting` are the other agents that wait for a place. An agent
    that waits for a place, or for the reply of such an agent, does not become idle.
    """
    blocked = agents_blocked_by(agents.pending.values(), {*waiting, *([asker] if asker is not None else [])})
    if blocked.issuperset(agents.alive):
        raise ConcurrencyLimitError(
            f"all {len(agents.alive)} agents that are alive wait for another agent to become idle, and "
            f"subagents.max_concurrent is {config.max_concurrent}: do the work yourself, cancel or kill an agent, or "
            "raise the limit"
        )


def name_for(agents: TreeState, requested: str, seq: int) -> str:
    """Return the name of the agent with sequence number `seq`.

    The name is `requested`, or a generated name if `requested` is "". Raises ConfigError for an invalid name,
    SpawnError for a name in use.
    """
    if not requested:
        name, number = f"agent-{seq}", 1
        while name in agents.names:
            number += 1
            name = f"agent-{seq}-{number}"
        return name
    if requested.isdigit():
        raise ConfigError(f"invalid agent name {requested!r}: digits refer to a sequence number; add a letter")
    if requested == LATEST:
        raise ConfigError(
            f"agent name {requested!r} is reserved for the agent that was active last; choose another name"
        )
    if requested in agents.by_id:
        raise ConfigError(f"agent name {requested!r} is the id of an agent; choose another name")
    name_owner = agents.names.get(requested)
    if name_owner is not None:
        raise SpawnError(
            f"agent {name_owner} already has the name {requested!r}; choose another name or kill that agent"
        )
    return requested


def not_persisted_error(agent: AgentRecord) -> AgentGoneError:
    """Return the error for resuming an agent that was spawned with persist=False."""
    return AgentGoneError(
        f"agent {agent.spec.name!r} ({agent.spec.id}) was killed, and its session was not stored (persist=False); "
        "spawn another agent"
    )


def check_can_be_queried(agent: AgentRecord) -> None:
    """Raise an error if the agent cannot be queried.

    AgentGoneError means that the agent must be resumed first. ArchiveDeletedError and SessionDeletedError mean that the
    agent's content was deleted.
    """
    spec = agent.spec
    if agent.deleted:
        raise agent.refusal()
    if agent.status == "killed" and not spec.persist:
        raise not_persisted_error(agent)
    if agent.status == "killed":
        raise AgentGoneError(
            f"agent {spec.name!r} ({spec.id}) was killed; `orch resume {spec.seq}` makes it usable again"
        )
    if agent.status == "failed":
        raise AgentGoneError(
            f"agent {spec.name!r} ({spec.id}) could not be started: {agent.error}; `orch resume {spec.seq}` tries again"
        )


def check_asker(asker: AgentRecord) -> None:
    """Raise AgentGoneError for a request of an agent that was killed."""
    if asker.status == "killed":
        raise AgentGoneError(f"agent {asker.spec.name!r} ({asker.spec.id}) was killed and can make no more requests")


def _check_grant(parent: AgentRecord, spec: AgentSpec) -> None:
    active_tools, own_tools = parent.spec.active, own_rights(spec)
    missing_tools = [tool for tool in spec.tools if tool not in active_tools and tool not in own_tools]
    if missing_tools:
        raise ToolNotGrantedError(
            f"agent {parent.spec.name!r} cannot grant {', '.join(map(repr, missing_tools))}: it does not hold "
            f"{'it' if len(missing_tools) == 1 else 'them'} itself; it holds {', '.join(active_tools) or 'no tools'}"
        )
