"""What can be asked of a root, in one table: served to workers, to the CLI and to the Python API alike.

A service is `async (root, caller, params) -> result`; `caller` is the id of the agent that asks, None for the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, ProtocolError, ToolNotGrantedError
from orch_protocol.services.requests import SERVICES
from orch_protocol.wire.frames import DECODE_ERRORS, encode_body
from orch_protocol.wire.worker_messages import RootCall

from .agents import lifecycle, query, queue, spawn, status, steering, watch
from .archives import archiving, prune, recall
from .checks import local_only
from .models import approvals, budgets, model_selection, models, rate_limits
from .resources import export_values, hooks, program_tools, prompts, slash_commands, workspace
from .sessions import compaction, fork, import_export, plan_mode, repair, retention, sessions

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor
    from ..supervisor.watchers import Watcher

__all__ = ["GRANTS", "HANDLERS", "call", "check_command", "check_grant", "check_seconds", "fitting", "serve_worker"]

Params = TypeVar("Params", bound=Struct)

HANDLERS: Final[dict[str, Callable[..., Awaitable[Any]]]] = {
    "spawn": spawn.spawn,
    "query": query.query,
    "submit": query.submit,
    "collect": query.collect,
    "value": export_values.value,
    "wait": query.wait,
    "kill": lifecycle.kill,
    "steer": steering.steer,
    "cancel": steering.cancel,
    "queue": queue.queue,
    "clear_queue": queue.clear_queue,
    "set_queue": queue.set_queue,
    "resume": lifecycle.resume,
    "narrow": steering.narrow,
    "import": import_export.import_session,
    "list": status.list_agents,
    "show": status.show,
    "events": status.events,
    "session": sessions.session,
    "change_session": sessions.change_session,
    "compact": compaction.compact,
    "kept": sessions.kept,
    "workspace": workspace.workspace,
    "arrange_workspace": workspace.arrange_workspace,
    "fork": fork.fork,
    "set_planning": plan_mode.set_planning,
    "fsck_session": repair.fsck_session,
    "state": status.state,
    "watch": watch.watch,
    "prompt": prompts.prompt,
    "commands": slash_commands.commands,
    "execute": slash_commands.execute,
    "catalogs": slash_commands.catalogs,
    "survey": status.survey,
    "spec": status.spec,
    "run_tool": program_tools.run_tool,
    "run_hooks": hooks.run_hooks,
    "hooks_ran": hooks.hooks_ran,
    "judge": approvals.judge,
    "approve": approvals.approve,
    "answer": approvals.answer,
    "permissions": approvals.permissions,
    "revoke": approvals.revoke,
    "archive": archiving.archive,
    "archived": archiving.archived,
    "summarise": archiving.summarise,
    "live": archiving.live,
    "archives": recall.archives,
    "search_archive": recall.search_archive,
    "read_archive": recall.read_archive,
    "marks": recall.marks,
    "prune": prune.prune,
    "prune_sessions": retention.prune_sessions,
    "map": query.map_agents,
    "reserve": budgets.reserve,
    "settle": budgets.settle,
    "spent": budgets.spent,
    "budget": budgets.budget,
    "refused": rate_limits.refused,
    "admit": rate_limits.admit,
    "left": rate_limits.left,
    "models": models.list_models,
    "find_model": models.find_model,
    "localise": local_only.localise,
    "answers": model_selection.answers,
}


GRANTS: Final[dict[str, frozenset[str]]] = {
    "spawn": frozenset({"spawn_subagent"}),
    "query": frozenset({"query_subagent", "spawn_subagent"}),
    "submit": frozenset({"query_subagent"}),
    "collect": frozenset({"collect_subagent"}),
    "value": frozenset({"query_subagent", "collect_subagent"}),
    "wait": frozenset({"wait_subagents"}),
    "kill": frozenset({"kill_subagent"}),
    "list": frozenset({"list_subagents"}),
    "search_archive": frozenset({"search_archive"}),
    "read_archive": frozenset({"read_archive"}),
    "marks": frozenset({"search_archive", "read_archive"}),
    "map": frozenset({"map_subagents"}),
    "models": frozenset({"list_models"}),
}
"""The tools that ask for a service. Any one is enough; a service that no tool asks for is for people alone."""

OF_ITS_OWN: Final = frozenset({"archive", "archived", "summarise", "spent", "live"})
"""Services by which the process of an agent that archives looks after its conversation, whatever tools it has."""

ELSEWHERE: Final = "To use orch as yourself, run the command in another terminal"

WATCHED: Final = frozenset({"query", "watch"})
"""Services that take a watcher."""

EVERYBODYS: Final = frozenset(
    {
        "survey",
        "judge",
        "approve",
        "localise",
        "answers",
        "reserve",
        "settle",
        "refused",
        "admit",
        "left",
        "run_hooks",
        "hooks_ran",
        "find_model",
    }
)
"""What an agent asks for by itself, whatever its tools are."""


async def call(
    root: Supervisor, caller: str | None, method: str, params: Struct, watcher: Watcher | None = None
) -> Any:
    """Serve `method` with its parameter struct. Raises ProtocolError for an unknown one, else the service's error.

    With `watcher` a service of WATCHED tells it of TurnEvents, Questions and CallEvents, as far as it is to be told.
    """
    handler = HANDLERS.get(method)
    if handler is None:
        raise ProtocolError(f"no service {method!r}; there are {', '.join(HANDLERS)}")
    check_seconds(getattr(params, "timeout", None))
    if watcher is not None and method in WATCHED:
        return await handler(root, caller, params, watcher)
    return await handler(root, caller, params)


def fitting(method: str, params: Params) -> Params:
    """Return what a program asks `method` with as another process would get it. Raises ConfigError for what nothing is
    asked with.

    Nobody checks what a program says; a worker's process would leave unread what does not fit, and whoever waits for
    its answer would wait for ever.
    """
    check_seconds(getattr(params, "timeout", None))
    try:
        return msgspec.msgpack.decode(encode_body(params), type=type(params))
    except (*DECODE_ERRORS, ProtocolError, TypeError) as error:
        raise ConfigError(f"{method.replace('_', ' ')} takes no such thing: {error}") from error


def check_seconds(timeout: Any) -> None:
    """Raise ConfigError unless `timeout` is None or a number of seconds. A NaN would wait for ever."""
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
        raise ConfigError(f"a timeout is a number of seconds, 0 or more, or None for the default; not {timeout!r}")


async def serve_worker(root: Supervisor, caller: str, request: RootCall) -> msgspec.Raw:
    """Serve a worker's RootCall and return the result as msgpack.

    Raises ToolNotGrantedError for what none of the agent's tools asks for: what its process says is not believed.
    """
    if request.service not in SERVICES:
        raise ProtocolError(f"no service {request.service!r}; there are {', '.join(HANDLERS)}")
    check_grant(root.tree.agents[caller].spec, request.service)
    try:
        params = msgspec.msgpack.decode(request.payload, type=SERVICES[request.service][0])
    except DECODE_ERRORS as error:
        raise ProtocolError(f"parameters of {request.service!r}: {error}") from error
    return msgspec.Raw(encode_body(await call(root, caller, request.service, params)))


def check_command(root: Supervisor, caller: str, service: str) -> None:
    """Raise ToolNotGrantedError for what a command that the agent `caller` runs may not ask for.

    It may ask for what the agent's tools ask for. What a worker asks for by itself, such as to settle what a request
    cost, is not a command's, and neither is what people ask for.
    """
    spec = root.tree.agents[caller].spec
    if service not in GRANTS:
        raise ToolNotGrantedError(
            f"{service!r} is for users, and this command was started by agent {spec.name!r} ({caller}). {ELSEWHERE}"
        )
    try:
        check_grant(spec, service)
    except ToolNotGrantedError as error:
        raise ToolNotGrantedError(f"{error}. {ELSEWHERE}") from None


def check_grant(spec: AgentSpec, service: str) -> None:
    """Raise ToolNotGrantedError for a service that none of the tools of the agent `spec` asks for."""
    if service in EVERYBODYS:
        return
    if service == "run_tool" and spec.root_tools:
        return
    if service in OF_ITS_OWN and spec.archival is not None:
        return
    if GRANTS.get(service, frozenset()).isdisjoint(spec.active):
        wanted = " or ".join(sorted(GRANTS.get(service, ()))) or "any tool that asks for that"
        raise ToolNotGrantedError(f"agent {spec.name!r} may not ask for {service!r}: it was not granted {wanted}")
