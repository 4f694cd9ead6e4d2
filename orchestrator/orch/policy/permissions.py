"""What a caller may do. Guards of services describe the action as an object and call this module.

The user may do everything. `Caller.reaches` decides which agents a caller can refer to. Other modules check budgets and
the limits of the tree.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentError, ConfigError, OrchError, ToolNotGrantedError
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import AnyService
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.registry import is_remote

from ..tree.agents.state import AgentRecord, QueryResult, TreeState
from ..tree.journal.entries import QueryStarted
from .caller import Caller, is_below

__all__ = [
    "Action",
    "AskAgent",
    "CallFromCommand",
    "CallService",
    "ImportBackend",
    "ReadContent",
    "ReadReply",
    "SpawnAgent",
    "UseModel",
    "check",
    "may",
    "refusal",
]

RUN_IT_YOURSELF: Final = "To use orch as yourself, run the command in another terminal"


class CallService(Struct, frozen=True):
    """Call a service through the agent's worker. The checks of the worker are not trusted."""

    service: AnyService


class CallFromCommand(Struct, frozen=True):
    """Call the service `name` from a command that the agent runs.

    The command may call the services of the agent's tools. The command may not call services for users. The command may
    also not call services that workers call without a tool, such as the end of a reservation.
    """

    name: str


class SpawnAgent(Struct, frozen=True):
    """Spawn an agent with the peers `peers`. `executor` says that the request names a tool executor."""

    peers: tuple[str, ...]
    executor: bool = False


class AskAgent(Struct, frozen=True):
    """Query an agent or holder that the caller reaches."""

    agent: AgentRecord


class ReadReply(Struct, frozen=True):
    """Collect the reply `answer` of `agent`.

    `agent` can be a peer of the caller, or an archive given to the caller by the user. Then the caller may collect only
    replies to its own queries.
    """

    agent: AgentRecord
    answer: QueryResult | QueryStarted | None


class ReadContent(Struct, frozen=True):
    """Read the conversation of `agent`. The conversation may be restricted to local models."""

    agent: AgentRecord


class UseModel(Struct, frozen=True):
    """Send content to the model `backend`. The caller used the name `name` for this model."""

    name: str
    backend: BackendSpec


class ImportBackend(Struct, frozen=True):
    """Make a worker import the class of a custom backend that neither models.json nor the configuration names."""

    backend: BackendSpec


Action: TypeAlias = (
    CallService | CallFromCommand | SpawnAgent | AskAgent | ReadReply | ReadContent | UseModel | ImportBackend
)


def check(agents: TreeState, caller: Caller, action: Action) -> None:
    """Raise an error that states the reason unless `caller` may do `action`."""
    error = refusal(agents, caller, action)
    if error is not None:
        raise error


def may(agents: TreeState, caller: Caller, action: Action) -> bool:
    """Return whether `caller` may do `action`."""
    return refusal(agents, caller, action) is None


def refusal(agents: TreeState, caller: Caller, action: Action) -> OrchError | None:
    """Return the error that states why `caller` may not do `action`. Return None if `caller` may do `action`."""
    agent = caller.find_agent(agents)
    if agent is None:
        return None
    spec = agent.spec
    match action:
        case CallService(service):
            return _service_refusal(spec, service)
        case CallFromCommand(name):
            return _command_refusal(spec, name)
        case SpawnAgent(peers, executor):
            return _spawn_refusal(spec, peers, executor=executor)
        case AskAgent(target):
            return _query_refusal(spec, target)
        case ReadReply(target, answer):
            own = is_below(agents, spec.id, target.spec.id) or (answer is not None and answer.asker == spec.id)
            return None if own else AgentError(_collect_only_own(spec, target))
        case ReadContent(target):
            hidden = target.spec.local and not spec.local
            return ConfigError(_local_only(target.spec)) if hidden else None
        case UseModel(name, backend):
            elsewhere = spec.local and is_remote(backend)
            why = f"{name!r} is not on this machine, and only local models may be used in this conversation"
            return ConfigError(why) if elsewhere else None
        case ImportBackend(backend):
            name = model_of(backend)
            why = f"agent {spec.name!r} cannot select the custom backend {name}; only the user can select it"
            return None if name == model_of(spec.backend) else ToolNotGrantedError(why)


def _service_refusal(spec: AgentSpec, service: AnyService) -> ToolNotGrantedError | None:
    match service.agents.workers:
        case "all":
            return None
        case "archiving" if spec.archival is not None:
            return None
        case "root tools" if spec.root_tools or (spec.executor is not None and spec.executor.in_program):
            return None
    if not service.agents.tools.isdisjoint(spec.active):
        return None
    tools = " or ".join(sorted(service.agents.tools)) or "a tool that uses this service"
    return ToolNotGrantedError(f"agent {spec.name!r} may not call {service.name!r}: it was not granted {tools}")


def _command_refusal(spec: AgentSpec, name: str) -> ToolNotGrantedError | None:
    service = SERVICES.get(name)
    if service is None or not service.agents.tools:
        return ToolNotGrantedError(
            f"{name!r} is a command for users, but agent {spec.name!r} ({spec.id}) started it. {RUN_IT_YOURSELF}"
        )
    error = _service_refusal(spec, service)
    return ToolNotGrantedError(f"{error}. {RUN_IT_YOURSELF}") if error is not None else None


def _spawn_refusal(spec: AgentSpec, peers: tuple[str, ...], *, executor: bool) -> ToolNotGrantedError | None:
    if "spawn_subagent" not in spec.active:
        return ToolNotGrantedError(f"agent {spec.name!r} was not granted spawn_subagent")
    if peers:
        return ToolNotGrantedError(
            f"agent {spec.name!r} cannot name peers: only the user can, with spawn(peers=[...]) or --peers"
        )
    if executor:
        return ToolNotGrantedError(
            f"agent {spec.name!r} cannot name a tool executor: only the user can, with spawn(tool_executor=...)"
        )
    return None


def _query_refusal(spec: AgentSpec, target: AgentRecord) -> OrchError | None:
    if target.is_holder:
        return None
    if spec.recall_only and "spawn_subagent" not in spec.active:
        return ToolNotGrantedError(
            f"agent {spec.name!r} was granted query_subagent for archives only, and {target.spec.name!r} is an agent"
        )
    if spec.plan and not target.spec.plan:  # otherwise the other agent could do what this agent may not do
        return AgentError(
            f"agent {spec.name!r} is in plan mode and may query only agents in plan mode; {target.spec.name!r} is not "
            "in plan mode"
        )
    return None


def _collect_only_own(spec: AgentSpec, target: AgentRecord) -> str:
    return (
        f"agent {spec.name!r} can collect only results of its own queries to {target.spec.name!r}; submit a query first"
    )


def _local_only(spec: AgentSpec) -> str:
    return f"agent {spec.name!r} ({spec.id}): only local models may see its details"
