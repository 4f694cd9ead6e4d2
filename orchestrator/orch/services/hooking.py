"""Hooks of the root's program, called for agents; and what the hooks of all agents did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orch_protocol.errors import OrchError
from orch_protocol.hooks import HooksRan, HooksSaid, RunHooks
from orch_protocol.queue import SteerAgent
from orch_protocol.services import Empty

from .steering import steer

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["hooks_ran", "run_hooks"]


async def run_hooks(root: Supervisor, caller: str | None, params: RunHooks) -> HooksSaid:
    """Call hooks of this program for the calling agent."""
    loop = asyncio.get_running_loop()

    async def say(id: str, text: str, follow_up: bool) -> None:
        try:
            await steer(root, None, SteerAgent(id, text, follow_up))
        except OrchError as error:
            print(f"what a hook said to {id}: {error}", flush=True)

    def say_from_anywhere(id: str, text: str, follow_up: bool) -> None:
        asyncio.run_coroutine_threadsafe(say(id, text, follow_up), loop)

    return await root.hooks.run(params, root.tree.nodes[caller or ""].spec, say_from_anywhere, root.disk.do)


async def hooks_ran(root: Supervisor, caller: str | None, params: HooksRan) -> Empty:  # noqa: ARG001
    """Count what hooks did, for `orch hooks list`."""
    root.hooks.ran(params.rows, root.disk.do)
    return Empty()
