"""Calls services for the user's program, for workers, and for commands that agents run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError, ProtocolError
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import AnyService, Service, StreamingService
from orch_protocol.wire.frames import DECODE_ERRORS, encode_body
from orch_protocol.wire.worker_messages import RootCall

from ...policy.caller import AgentCaller, Caller
from ...policy.permissions import CallService, check
from .handlers import HANDLERS

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher

__all__ = ["call", "check_params", "check_seconds", "serve_worker", "service_named"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


async def call(
    root: Supervisor, caller: Caller, service: Service[P, R], params: P, watcher: Watcher | None = None
) -> R:
    """Call `service` for `caller` and return its result. Raises the service's errors.

    A streaming service sends TurnEvents, Questions and CallEvents to `watcher`. Other services ignore `watcher`.
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

    Python does not check the values that a program passes. A worker would drop a message with wrong values. There would
    be no answer, and the program would wait forever.
    """
    check_seconds(getattr(params, "timeout", None))
    try:
        return msgspec.msgpack.decode(encode_body(params), type=type(params))
    except (*DECODE_ERRORS, ProtocolError, TypeError) as error:
        raise ConfigError(f"invalid parameters for {service.name.replace('_', ' ')}: {error}") from error


def check_seconds(timeout: Any) -> None:
    """Raise ConfigError if `timeout` is neither None nor a number of seconds, 0 or more. A NaN would never expire."""
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
        raise ConfigError(f"timeout must be a number of seconds, 0 or more, or None for the default; got {timeout!r}")


async def serve_worker(root: Supervisor, id: str, request: RootCall) -> msgspec.Raw:
    """Call a service for the worker of the agent `id` and return the result as msgpack.

    Raises ToolNotGrantedError if the agent may not call the service. The root checks the permission because a worker is
    not trusted.
    """
    service = service_named(request.service)
    caller = AgentCaller(id)
    check(root.tree.agents, caller, CallService(service))
    try:
        params = msgspec.msgpack.decode(request.payload, type=service.params)
    except DECODE_ERRORS as error:
        raise ProtocolError(f"parameters of {service.name!r}: {error}") from error
    return msgspec.Raw(encode_body(await call(root, caller, service, params)))
