"""What can be asked of a root, in one table: served to workers, to the CLI and to the Python API alike.

A service is `async (root, caller, params) -> result`; `caller` is the id of the agent that asks, None for the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.commands import RootCall
from orch_protocol.errors import ProtocolError
from orch_protocol.services import SERVICES
from orch_protocol.wire import DECODE_ERRORS, encode_body

from . import asking, ending, looking, spawning, tools

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["HANDLERS", "call", "serve_worker"]

HANDLERS: Final[dict[str, Callable[..., Awaitable[Any]]]] = {
    "spawn": spawning.spawn,
    "query": asking.query,
    "submit": asking.submit,
    "collect": asking.collect,
    "wait": asking.wait,
    "kill": ending.kill,
    "resume": ending.resume,
    "list": looking.list_agents,
    "show": looking.show,
    "state": looking.state,
    "run_tool": tools.run_tool,
}


async def call(root: Supervisor, caller: str | None, method: str, params: Struct) -> Any:
    """Serve `method` with its parameter struct. Raises ProtocolError for an unknown one, else the service's error."""
    handler = HANDLERS.get(method)
    if handler is None:
        raise ProtocolError(f"no service {method!r}; there are {', '.join(HANDLERS)}")
    return await handler(root, caller, params)


async def serve_worker(root: Supervisor, caller: str, request: RootCall) -> msgspec.Raw:
    """Serve a worker's RootCall and return the result as msgpack."""
    if request.service not in SERVICES:
        raise ProtocolError(f"no service {request.service!r}; there are {', '.join(HANDLERS)}")
    try:
        params = msgspec.msgpack.decode(request.payload, type=SERVICES[request.service][0])
    except DECODE_ERRORS as error:
        raise ProtocolError(f"parameters of {request.service!r}: {error}") from error
    return msgspec.Raw(encode_body(await call(root, caller, request.service, params)))
