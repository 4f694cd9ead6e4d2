"""Who may come to be, be asked and ask: the limits, in one place. Each check raises, saying what and what to do."""

from __future__ import annotations

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
from .inherited_rights import own_rights

__all__ = [
    "check_answers",
    "check_asker",
    "check_concurrency",
    "check_spawn",
    "name_for",
    "no_idle_agent_error",
    "not_persisted_error",
]


def check_spawn(config: SubagentsConfig, parent: AgentRecord | None, spec: AgentSpec, depth: int) -> None:
    """Raise SpawnError unless `parent` (None: the user's program) may have an agent `spec` at `depth`."""
    if not config.enabled:
        raise SpawnError("subagents are disabled in the configuration: set subagents.enabled = true")
    if parent is not None:
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


def check_concurrency(config: SubagentsConfig, nodes: TreeState) -> None:
    """Raise ConcurrencyLimitError when as many agents are alive as may be."""
    alive = len(nodes.alive)
    if alive >= config.max_concurrent:
        raise ConcurrencyLimitError(
            f"{alive} agents are alive and subagents.max_concurrent is {config.max_concurrent}: "
            "kill one, wait for one to go cold, or raise the limit"
        )


def no_idle_agent_error(config: SubagentsConfig, nodes: TreeState) -> ConcurrencyLimitError:
    """Return why no process can be had for an agent that is asked: none of those that have one can be sent to sleep."""
    return ConcurrencyLimitError(
        f"none of the {len(nodes.alive)} agents that are alive is idle, and subagents.max_concurrent is "
        f"{config.max_concurrent}: wait for one to become idle, cancel or kill one, or raise the limit"
    )


def name_for(nodes: TreeState, wanted: str, seq: int) -> str:
    """Return the name of the agent with number `seq`: the one that is `wanted`, else a free one.

    Raises ConfigError for one that is no name, SpawnError for one that is taken.
    """
    if not wanted:
        name, number = f"agent-{seq}", 1
        while name in nodes.names:
            number += 1
            name = f"agent-{seq}-{number}"
        return name
    if wanted.isdigit():
        raise ConfigError(f"name {wanted!r} would read as a sequence number; add a letter")
    if wanted == LATEST:
        raise ConfigError(f"name {wanted!r} would read as the agent that was active last; choose another")
    if wanted in nodes.by_id:
        raise ConfigError(f"name {wanted!r} would read as the agent with that id; choose another")
    holder = nodes.names.get(wanted)
    if holder is not None:
        raise SpawnError(f"name {wanted!r} is taken by agent {holder}; choose another or kill that one")
    return wanted


def not_persisted_error(node: AgentRecord) -> AgentGoneError:
    """Return the error for who wants an agent back of which nothing was kept."""
    return AgentGoneError(
        f"agent {node.spec.name!r} ({node.spec.id}) was killed, and nothing of it was kept (persist=False): "
        "it cannot be brought back; spawn another one"
    )


def check_answers(node: AgentRecord) -> None:
    """Raise AgentGoneError for an agent that answers nobody until it is resumed, ArchiveDeletedError or
    SessionDeletedError for one of which nothing is left."""
    spec = node.spec
    if node.deleted:
        raise node.refusal()
    if node.status == "killed" and not spec.persist:
        raise not_persisted_error(node)
    if node.status == "killed":
        raise AgentGoneError(f"agent {spec.name!r} ({spec.id}) was killed; `orch resume {spec.seq}` brings it back")
    if node.status == "failed":
        raise AgentGoneError(
            f"agent {spec.name!r} ({spec.id}) could not be started: {node.error}; `orch resume {spec.seq}` tries again"
        )


def check_asker(asker: AgentRecord) -> None:
    """Raise AgentGoneError for an agent that was killed: what it still asks for comes too late."""
    if asker.status == "killed":
        raise AgentGoneError(f"agent {asker.spec.name!r} ({asker.spec.id}) was killed and asks for nothing any more")


def _check_grant(parent: AgentRecord, spec: AgentSpec) -> None:
    granted, own = parent.spec.active, own_rights(spec)
    wider = [tool for tool in spec.tools if tool not in granted and tool not in own]
    if wider:
        raise ToolNotGrantedError(
            f"agent {parent.spec.name!r} cannot grant {', '.join(map(repr, wider))}: it does not hold "
            f"{'it' if len(wider) == 1 else 'them'} itself; it holds {', '.join(granted) or 'no tools'}"
        )
