"""Hooks of the root's program, called for agents; and what the hooks of all agents did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orch_protocol.core.errors import OrchError
from orch_protocol.hooks.stages import HooksRan, HooksSaid, RunHooks
from orch_protocol.services.requests import Empty
from orch_protocol.services.steering_queue import SteerAgent

from ..agents.steering import steer

if TYPE_CHECKING:
    from ...resources.prompt_templates import Templates
    from ...supervisor.supervisor import Supervisor

__all__ = ["attend", "hooks_ran", "run_hooks"]


def attend(root: Supervisor, templates: Templates) -> None:
    """Let hooks of the program say something to agents, from whatever thread, and ask for services as they do; and let
    its `templates` be commands."""
    loop = asyncio.get_running_loop()

    async def say(id: str, text: str, follow_up: bool) -> None:
        try:
            await steer(root, None, SteerAgent(id, text, follow_up))
        except OrchError as error:
            print(f"what a hook said to {id}: {error}", flush=True)

    async def call(id: str, service: str, params: Struct) -> Any:
        from .. import call, check_grant  # the table of services has this one in it

        check_grant(root.tree.agents[id].spec, service)
        return await call(root, id, service, params)

    async def look() -> None:
        from .. import call

        await call(root, None, "catalogs", Empty())

    root.offers.follow(templates, look)
    root.hooks.say = lambda *said: asyncio.run_coroutine_threadsafe(say(*said), loop)
    root.hooks.call = call


async def run_hooks(root: Supervisor, caller: str | None, params: RunHooks) -> HooksSaid:
    """Call hooks of this program for the calling agent."""
    return await root.hooks.run(params, root.tree.agents[caller or ""].spec, root.hooks.say, root.disk.do)


async def hooks_ran(root: Supervisor, caller: str | None, params: HooksRan) -> Empty:  # noqa: ARG001
    """Count what hooks did, for `orch hooks list`."""
    root.hooks.ran(params.rows, root.disk.do)
    return Empty()
