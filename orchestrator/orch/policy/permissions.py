"""What a caller may do. Guards of services describe the action as an object and call this module.

The user may do everything. `Caller.reaches` decides which agents a caller can refer to. Other modules check budgets and
the limits of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import (
    AgentError,
    AgentNotFoundError,
    AmbiguousRefError,
    ConfigError,
    OrchError,
    ToolNotGrantedError,
)
from orch_protocol.policy.budget import Budget
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import AnyService, Reach
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.registry import is_remote

from ..tree.agents.agent_refs import resolve
from ..tree.agents.state import AgentRecord, QueryResult, TreeState
from ..tree.journal.entries import QueryStarted
from .caller import AgentCaller, Caller, is_below

__all__ = [
    "Action",
    "AskAgent",
    "CallService",
    "ImportBackend",
    "ReadContent",
    "ReadReply",
    "UseModel",
    "check",
    "may",
    "refusal",
    "unreachable_error",
]

RUN_IT_YOURSELF: Final = "To use orch as yourself, run the command in another terminal"


class CallService(Struct, frozen=True):
    """Call the service `name` with `params`. None means that the request is not decoded yet.

    An agent may call the services of its tools with the parameters that `Service.fields` permits. Its worker may also
    call services without a tool, such as the end of a reservation. A command of the agent may not.
    """

    name: str
    params: Struct | None = None


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


Action: TypeAlias = CallService | AskAgent | ReadReply | ReadContent | UseModel | ImportBackend


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
        case CallService(name, params):
            assert isinstance(caller, AgentCaller)
            return _call_refusal(agents, caller, spec, name, params)
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


def _call_refusal(
    agents: TreeState, caller: AgentCaller, spec: AgentSpec, name: str, params: Struct | None
) -> OrchError | None:
    service = SERVICES.get(name)
    if caller.from_command and (service is None or not service.agents.tools):
        return ToolNotGrantedError(
            f"{name!r} is a command for users, but agent {spec.name!r} ({spec.id}) started it. {RUN_IT_YOURSELF}"
        )
    if service is None:
        return ToolNotGrantedError(f"agent {spec.name!r} may not call {name!r}: there is no such service")
    hint = f". {RUN_IT_YOURSELF}" if caller.from_command else ""
    if not _may_call(spec, service, from_command=caller.from_command):
        tools = " or ".join(sorted(service.agents.tools)) or "a tool that uses this service"
        return ToolNotGrantedError(f"agent {spec.name!r} may not call {name!r}: it was not granted {tools}{hint}")
    if params is None:
        return None
    refused_fields = (
        *_set_by_users_only(service, params),
        *(each for each in service.fields.own if not _is_own(agents, spec, each, params)),
    )
    if refused_fields:
        return ToolNotGrantedError(_fields_refused(spec, service, refused_fields) + hint)
    return next(
        (
            unreachable_error(spec, ref, reach)
            for field, reach in service.fields.refs.items()
            for ref in _refs_in(getattr(params, field))
            if _is_foreign(agents, caller, ref, reach)
        ),
        None,
    )


def _may_call(spec: AgentSpec, service: AnyService, *, from_command: bool) -> bool:
    if not service.agents.tools.isdisjoint(spec.active):
        return True
    match service.agents.workers:
        case "all":
            return not from_command
        case "archiving":
            return not from_command and spec.archival is not None
        case "root tools":
            has_tools = bool(spec.root_tools) or (spec.executor is not None and spec.executor.in_program)
            return not from_command and has_tools
    return False


def _set_by_users_only(service: AnyService, params: Struct) -> Iterable[str]:
    """Return the names of the fields with a value that an agent may not set. A field without a group is one of them."""
    fields = service.fields
    for_agents = {*fields.free, *fields.own, *fields.recorded, *fields.refs}
    for field in msgspec.structs.fields(service.params):
        if field.name not in for_agents:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if getattr(params, field.name) != default:
                yield field.name


def _is_own(agents: TreeState, spec: AgentSpec, field: str, params: Any) -> bool:
    """Return whether the value of `field` is at most what the agent `spec` has itself."""
    value = getattr(params, field)
    match field:
        case "root_tools":
            return all(tool in spec.root_tools and tool.name in spec.active for tool in value)
        case "limits":
            return value is None or _is_within(value, spec.limits)
        case "budget":
            return _is_within(value, spec.limits)
        case "persist":
            return value or not spec.persist
        case "request_id":
            return _is_own_request(agents, spec, value, getattr(params, "ref", None))
    return False  # A field of this group without a rule is refused.


def _is_within(limits: Budget, own: Budget) -> bool:
    """Return whether no limit in `limits` is higher than the same limit in `own`. None means no limit of its own."""
    pairs = ((getattr(limits, name), getattr(own, name)) for name in limits.__struct_fields__)
    return all(value is None or maximum is None or value <= maximum for value, maximum in pairs)


def _is_own_request(agents: TreeState, spec: AgentSpec, id: str | None, ref: str | None) -> bool:
    """Return whether no other caller has sent the request `id`.

    Otherwise the root would answer with that caller's agent or query.

    `ref` is the queried agent, or None for a spawn.
    """
    if id is None:
        return True
    if ref is None:
        return id not in agents.requests or agents[agents.requests[id]].spec.parent_id == spec.id
    try:
        target = resolve(agents, ref)
    except AgentError:
        return True  # there is no such query
    query = target.pending or target.last
    return id not in target.requests or (query is not None and query.asker == spec.id)


def _refs_in(value: str | Iterable[str] | None) -> Iterable[str]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def _is_foreign(agents: TreeState, caller: AgentCaller, ref: str, reach: Reach) -> bool:
    """Return whether `ref` means only agents and archives that `caller` does not reach.

    For references that mean nothing, the result is False: the handler reports them with the same error.
    """
    try:
        resolve(agents, ref, lambda id: caller.reaches(agents, id, reach.scope))
    except AmbiguousRefError:
        return False
    except AgentNotFoundError:
        archives = [id for id in agents.holders if id.startswith(ref)]
        if any(caller.reaches(agents, id, reach.scope) for id in archives):
            return False
        try:
            return bool(archives) or bool(resolve(agents, ref))
        except AmbiguousRefError:
            return True
        except AgentNotFoundError:
            return False
    return False


def unreachable_error(spec: AgentSpec, ref: str, reach: Reach) -> AgentNotFoundError:
    """Return the error for a reference to an agent or archive outside the reach of the agent `spec`.

    The error does not show whether that agent or archive exists.
    """
    if not reach.action:
        return AgentNotFoundError(f"you have no archive {ref[:80]!r}: use search_archive to find ids of archives")
    reachable = "agents below itself and its peers" if reach.scope == "ask" else "agents below itself"
    return AgentNotFoundError(
        f"agent {spec.name!r} may only {reach.action} {reachable}, and {ref[:80]!r} is none of them; "
        "list them with `orch list`"
    )


def _fields_refused(spec: AgentSpec, service: AnyService, fields: tuple[str, ...]) -> str:
    names = ", ".join(map(repr, fields))
    users_only = [name for name in fields if name not in service.fields.own]
    who = "only the user can" if users_only else "its own record does not allow the value"
    return f"agent {spec.name!r} cannot set {names} of {service.name!r}: {who}"


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
