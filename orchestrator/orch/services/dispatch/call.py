"""Calls services for the user's program, for workers, and for commands that agents run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError, OrchError, ProtocolError
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import AnyService, Service, StreamingService
from orch_protocol.wire.frames import DECODE_ERRORS, encode_body
from orch_protocol.wire.worker_messages import RootCall

from ...policy.caller import USER, AgentCaller, Caller
from ...policy.permissions import CallService, check
from ...supervisor.recorded_run import journal_of_run, recorded_run, refusal_of_run
from .handlers import HANDLERS

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher

__all__ = ["call", "call_in_run", "check_params", "check_seconds", "serve_worker", "service_named"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


async def call(
    root: Supervisor, caller: Caller, service: Service[P, R], params: P, watcher: Watcher | None = None
) -> R:
    """Call `service` for `caller` and return its result. Raises the service's errors.

    Workers, commands of agents, the CLI, slash commands and the Python API call services here. The caller may be an
    agent: this function then checks the service, the fields of `params`, and the agents and archives that they refer
    to. Raises ToolNotGrantedError or AgentNotFoundError.

    A streaming service sends TurnEvents, Questions and CallEvents to `watcher`. Other services ignore `watcher`.

    The traceback of an OrchError begins here: its message says what the caller did wrong, and the frames of the
    handler do not.
    """
    check(root.tree.agents, caller, CallService(service.name, params))
    check_seconds(getattr(params, "timeout", None))
    handler = HANDLERS[service.name]
    streams = watcher is not None and isinstance(service, StreamingService)
    try:
        result: R = await (handler(root, caller, params, watcher) if streams else handler(root, caller, params))
    except OrchError as error:
        raise error.with_traceback(None) from error.__cause__
    return result


async def call_in_run(root: Supervisor, run: str, service: Service[P, R], params: P) -> R:
    """Call `service` for the user, for the agents of another run of the same home. `root` is a root of this home.

    Only services that need nothing but the files of the run are possible. Raises ConfigError for other services,
    EntryNotFoundError for an unknown run, and the service's errors.
    """
    if not service.reads_files:
        folder = journal_of_run(root.run_events.path.parent.parent, run).parent
        raise refusal_of_run(folder, service.name)
    async with recorded_run(root, run) as recorded:
        return await call(recorded, USER, service, params)


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
    """Call a service for the worker of the agent `id` and return the result as msgpack. See `call`."""
    service, caller = service_named(request.service), AgentCaller(id)
    check(root.tree.agents, caller, CallService(service.name))  # before the parameters are decoded
    try:
        params = msgspec.msgpack.decode(request.payload, type=service.params)
    except DECODE_ERRORS as error:
        raise ProtocolError(f"parameters of {service.name!r}: {error}") from error
    return msgspec.Raw(encode_body(await call(root, caller, service, params)))
