"""Services that call hooks of the root's program, and record statistics of all hooks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.hooks.events import CustomEvent
from orch_protocol.services.agents.steering import SteerAgent
from orch_protocol.services.resources.hooks import RECORD_HOOK_RUNS, RUN_HOOKS, HookReplies, ReportHooks, RunHooks
from orch_protocol.services.resources.slash_commands import REFRESH_CATALOGS
from orch_protocol.services.service import Empty, Service
from orch_protocol.wire.worker_messages import AgentEvent

from ...policy.caller import USER, AgentCaller, Caller
from ...tree.journal.entries import CustomEventEmitted
from ..agents.steering import steer
from ..dispatch.call import call
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...resources.program_extensions import ProgramExtensions
    from ...resources.prompt_templates import TemplateCatalog
    from ...supervisor.supervisor import Supervisor
    from ...tree.agents.state import AgentRecord

__all__ = ["connect_program", "emit_event", "record_hook_runs", "run_hooks"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


def connect_program(root: Supervisor, templates: TemplateCatalog, program: ProgramExtensions) -> None:
    """Let hooks of the program send messages to agents and call services from any thread.

    Also make the `templates`, and the parts that the program registered, available to agents.
    """
    loop = asyncio.get_running_loop()

    async def send_message(id: str, text: str, follow_up: bool) -> None:
        try:
            await steer(root, USER, SteerAgent(id, text, follow_up))
        except OrchError as error:
            print(f"message of a hook to agent {id}: {error}", flush=True)

    async def call_for_agent(id: str, service: Service[P, R], params: P) -> R:
        return await call(root, AgentCaller(id), service, params)

    async def refresh() -> None:
        await call(root, USER, REFRESH_CATALOGS, Empty())

    root.session_sources.use_program(templates, program, refresh)
    root.hooks.send_message = lambda *message: asyncio.run_coroutine_threadsafe(send_message(*message), loop)
    root.hooks.call = call_for_agent


async def emit_event(root: Supervisor, node: AgentRecord, name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Call the hooks of this program for an event about the agent. Return the event's data as changed by the hooks.

    The event is then recorded in the journal. If the agent has a process, the process notifies its own hooks. Raises
    ConfigError, StoreError.
    """
    spec, turn = node.spec, node.pending.query_id if node.pending is not None else ""
    event = CustomEvent(agent_id=spec.id, depth=spec.depth, turn=turn, name=name, data=data)
    changed = await root.hooks.emit(event, spec, root.disk.do)
    assert isinstance(changed, CustomEvent)
    try:
        encoded = msgspec.msgpack.encode(changed)
    except OverflowError as error:
        raise ConfigError(f"event {name!r}: a number in its data has more than 64 bits: {error}") from error
    root.record(CustomEventEmitted(at=root.clock(), id=spec.id, name=name, data=changed.data, query_id=turn))
    if spec.hooks.load or spec.extensions:
        with suppress(OrchError, KeyError):  # the agent has no process
            body = AgentEvent(changed.stage, msgspec.Raw(encoded))
            root.workers.send(spec.id, "happened", body)
    return changed.data


@handles(RUN_HOOKS)
async def run_hooks(root: Supervisor, caller: Caller, params: RunHooks) -> HookReplies:
    """Call hooks of this program for the calling agent."""
    return await root.hooks.call_hooks(params, caller.require_agent(root.tree.agents).spec, root.disk.do)


@handles(RECORD_HOOK_RUNS)
async def record_hook_runs(root: Supervisor, caller: Caller, params: ReportHooks) -> Empty:
    """Record statistics of the calling agent's hooks, for `orch hooks list`."""
    caller.require_agent(root.tree.agents)
    root.hooks.add_tallies(params.rows, root.disk.do)
    return Empty()
