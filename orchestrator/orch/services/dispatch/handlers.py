"""The handler of each service. `@handles(SERVICE)` binds a function to a definition; mypy compares their types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from msgspec import Struct

from orch_protocol.services.service import AnyService, Service, StreamingService

from ...policy.caller import Caller

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher

__all__ = ["HANDLERS", "Handler", "StreamingHandler", "handles", "handles_streaming"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")
P_contra = TypeVar("P_contra", bound=Struct, contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Handler(Protocol[P_contra, R_co]):
    """Serves one call of a service."""

    def __call__(self, root: Supervisor, caller: Caller, params: P_contra, /) -> Awaitable[R_co]: ...


class StreamingHandler(Protocol[P_contra, R_co]):
    """Serves one call of a service. If the caller passes a watcher, sends events to the watcher."""

    def __call__(
        self, root: Supervisor, caller: Caller, params: P_contra, watcher: Watcher | None = None, /
    ) -> Awaitable[R_co]: ...


HANDLERS: Final[dict[str, Callable[..., Awaitable[Any]]]] = {}
"""The handlers by service name. Importing a module with a handler adds the handler."""


def handles(service: Service[P, R]) -> Callable[[Handler[P, R]], Handler[P, R]]:
    """Bind the decorated function to `service`."""

    def bind(handler: Handler[P, R]) -> Handler[P, R]:
        _bind(service, handler)
        return handler

    return bind


def handles_streaming(service: StreamingService[P, R]) -> Callable[[StreamingHandler[P, R]], StreamingHandler[P, R]]:
    """Bind the decorated function to `service`. The function takes a watcher."""

    def bind(handler: StreamingHandler[P, R]) -> StreamingHandler[P, R]:
        _bind(service, handler)
        return handler

    return bind


def _bind(service: AnyService, handler: Callable[..., Awaitable[Any]]) -> None:
    if service.name in HANDLERS:
        raise TypeError(f"service {service.name!r} has two handlers: {HANDLERS[service.name]} and {handler}")
    HANDLERS[service.name] = handler
