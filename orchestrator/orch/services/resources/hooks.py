"""Hooks of the root's program, called for agents; and what the hooks of all agents did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from orch_protocol.core.errors import OrchError
from orch_protocol.hooks.stages import HookReplies, ReportHooks, RunHooks
from orch_protocol.services.hooks import RECORD_HOOK_RUNS, RUN_HOOKS
from orch_protocol.services.resources import REFRESH_CATALOGS
from orch_protocol.services.service import Empty, Service
from orch_protocol.services.steering_queue import SteerAgent

from ...policy.caller import USER, AgentCaller, Caller
from ..agents.steering import steer
from ..dispatch.call import call, check_grant
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...resources.prompt_templates import TemplateCatalog
    from ...supervisor.supervisor import Supervisor

__all__ = ["connect_root_hooks", "record_hook_runs", "run_hooks"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


def connect_root_hooks(root: Supervisor, templates: TemplateCatalog) -> None:
    """Let hooks of the program say something to agents, from whatever thread, and ask for services as they do; and let
    its `templates` be commands."""
    loop = asyncio.get_running_loop()

    async def say(id: str, text: str, follow_up: bool) -> None:
        try:
            await steer(root, USER, SteerAgent(id, text, follow_up))
        except OrchError as error:
            print(f"what a hook said to {id}: {error}", flush=True)

    async def call_for_agent(id: str, service: Service[P, R], params: P) -> R:
        check_grant(root.tree.agents[id].spec, service)
        return await call(root, AgentCaller(id), service, params)

    async def look() -> None:
        await call(root, USER, REFRESH_CATALOGS, Empty())

    root.offers.follow(templates, look)
    root.hooks.say = lambda *said: asyncio.run_coroutine_threadsafe(say(*said), loop)
    root.hooks.call = call_for_agent


@handles(RUN_HOOKS)
async def run_hooks(root: Supervisor, caller: Caller, params: RunHooks) -> HookReplies:
    """Call hooks of this program for the calling agent."""
    return await root.hooks.run(params, caller.require_agent(root.tree.agents).spec, root.hooks.say, root.disk.do)


@handles(RECORD_HOOK_RUNS)
async def record_hook_runs(root: Supervisor, _: Caller, params: ReportHooks) -> Empty:
    """Count what hooks did, for `orch hooks list`."""
    root.hooks.ran(params.rows, root.disk.do)
    return Empty()
