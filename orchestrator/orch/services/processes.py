"""What a service asks of an agent's process, and the process may not live to answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orch_protocol.errors import QueryTimeoutError

from ..nodes import Node

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["answered"]


async def answered(
    root: Supervisor, node: Node, kind: str, body: Struct, id: str, answer: str, seconds: float
) -> Any | None:
    """Send the agent's process a frame `kind` named `id`, and return the body of its `answer`; None when it is gone
    before it says anything. Raises QueryTimeoutError, and the error that the answer is."""
    said = root.waiters.watch(f"{answer}:{node.spec.id}:{id}")
    end = root.waiters.watch(f"gone:{node.spec.id}:{node.incarnation}")
    try:
        if (peer := root.workers.peer(node.spec.id)) is not None:
            peer.send(kind, body, id)
        await asyncio.wait([said, end], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if said.done():
            return said.result()
        if end.done():
            return None
        raise QueryTimeoutError(f"the process of agent {node.spec.name!r} did not answer within {seconds:g} s")
    finally:
        said.cancel()
        end.cancel()
