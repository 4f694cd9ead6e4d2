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
    from ..root_hooks import Say
    from ..supervisor import Supervisor

__all__ = ["hooks_ran", "run_hooks", "saying"]


def saying(root: Supervisor) -> Say:
    """Return what lets an agent hear a text that a hook of the program says to it, from whatever thread."""
    loop = asyncio.get_running_loop()

    async def say(id: str, text: str, follow_up: bool) -> None:
        try:
            await steer(root, None, SteerAgent(id, text, follow_up))
        except OrchError as error:
            print(f"what a hook said to {id}: {error}", flush=True)

    return lambda *said: asyncio.run_coroutine_threadsafe(say(*said), loop)


async def run_hooks(root: Supervisor, caller: str | None, params: RunHooks) -> HooksSaid:
    """Call hooks of this program for the calling agent."""
    return await root.hooks.run(params, root.tree.nodes[caller or ""].spec, root.hooks.say, root.disk.do)


async def hooks_ran(root: Supervisor, caller: str | None, params: HooksRan) -> Empty:  # noqa: ARG001
    """Count what hooks did, for `orch hooks list`."""
    root.hooks.ran(params.rows, root.disk.do)
    return Empty()
