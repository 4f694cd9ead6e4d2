"""Calls of services: from the user's program, from workers, and from commands that agents run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, ProtocolError, ToolNotGrantedError
from orch_protocol.services.registry import SERVICES
from orch_protocol.services.service import AnyService, Service, StreamingService
from orch_protocol.wire.frames import DECODE_ERRORS, encode_body
from orch_protocol.wire.worker_messages import RootCall

from ...policy.caller import AgentCaller, Caller
from .handlers import HANDLERS

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher

__all__ = ["call", "check_command", "check_grant", "check_params", "check_seconds", "serve_worker", "service_named"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")

RUN_IT_YOURSELF: Final = "To use orch as yourself, run the command in another terminal"


async def call(
    root: Supervisor, caller: Caller, service: Service[P, R], params: P, watcher: Watcher | None = None
) -> R:
    """Call `service` for `caller` and return its result. Raises the service's errors.

    With `watcher` a streaming service sends it TurnEvents, Questions and CallEvents. Other services ignore it.
    """
    check_seconds(getattr(params, "timeout", None))
    handler = HANDLERS[service.name]
    streams = watcher is not None and isinstance(service, StreamingService)
    result: R = await (handler(root, caller, params, watcher) if streams else handler(root, caller, params))
    return result


def service_named(name: str) -> AnyService:
    """Return the service `name`. Raises ProtocolError for an unknown name."""
    service = SERVICES.get(name)
    if service is None:
        raise ProtocolError(f"no service {name!r}; the services are {', '.join(SERVICES)}")
    return service


def check_params(service: Service[P, Any], params: P) -> P:
    """Return `params` as another process would receive them. Raises ConfigError for values of a wrong type.

    A program's values are not checked before. A worker would reject them, and the program would wait without end.
    """
    check_seconds(getattr(params, "timeout", None))
    try:
        return msgspec.msgpack.decode(encode_body(params), type=type(params))
    except (*DECODE_ERRORS, ProtocolError, TypeError) as error:
        raise ConfigError(f"invalid parameters for {service.name.replace('_', ' ')}: {error}") from error


def check_seconds(timeout: Any) -> None:
    """Raise ConfigError unless `timeout` is None or a number of seconds, at least 0. A NaN would wait for ever."""
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
        raise ConfigError(f"a timeout is a number of seconds, 0 or more, or None for the default; not {timeout!r}")


async def serve_worker(root: Supervisor, id: str, request: RootCall) -> msgspec.Raw:
    """Serve the RootCall of the worker of agent `id` and return the result as msgpack.

    Raises ToolNotGrantedError when the agent may not call the service: the worker's own checks are not relied upon.
    """
    service = service_named(request.service)
    check_grant(root.tree.agents[id].spec, service)
    try:
        params = msgspec.msgpack.decode(request.payload, type=service.params)
    except DECODE_ERRORS as error:
        raise ProtocolError(f"parameters of {service.name!r}: {error}") from error
    return msgspec.Raw(encode_body(await call(root, AgentCaller(id), service, params)))


def check_command(root: Supervisor, id: str, name: str) -> None:
    """Raise ToolNotGrantedError unless a command that the agent `id` runs may call the service `name`.

    It may call the services of the agent's tools. It may not call those of users, nor those that workers call by
    themselves, such as settling the cost of a request.
    """
    spec = root.tree.agents[id].spec
    service = SERVICES.get(name)
    if service is None or not service.agents.tools:
        raise ToolNotGrantedError(
            f"{name!r} is for users, and this command was started by agent {spec.name!r} ({id}). {RUN_IT_YOURSELF}"
        )
    try:
        check_grant(spec, service)
    except ToolNotGrantedError as error:
        raise ToolNotGrantedError(f"{error}. {RUN_IT_YOURSELF}") from None


def check_grant(spec: AgentSpec, service: AnyService) -> None:
    """Raise ToolNotGrantedError when the agent `spec` may not call `service`."""
    match service.agents.workers:
        case "all":
            return
        case "archiving" if spec.archival is not None:
            return
        case "root tools" if spec.root_tools:
            return
    if service.agents.tools.isdisjoint(spec.active):
        tools = " or ".join(sorted(service.agents.tools)) or "any tool that asks for that"
        raise ToolNotGrantedError(f"agent {spec.name!r} may not call {service.name!r}: it was not granted {tools}")
