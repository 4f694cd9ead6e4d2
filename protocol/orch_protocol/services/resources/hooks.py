"""Services that call hooks of the user's program, and record statistics of all hooks."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...hooks.patches import Abort, Approve, Block
from ...hooks.stages import HookTally
from ..service import EVERY_AGENT, AgentFields, Empty, Service

__all__ = ["RECORD_HOOK_RUNS", "RUN_HOOKS", "HookReplies", "HookReply", "ReportHooks", "RunHook", "RunHooks"]


class RunHook(Struct, frozen=True, forbid_unknown_fields=True):
    """Call the root's hooks `names`, in order, with an event of `stage`."""

    names: tuple[str, ...]
    stage: str
    event: msgspec.Raw


class RunHooks(Struct, frozen=True, forbid_unknown_fields=True):
    """A request of an agent to the root to call hooks, in order."""

    asked: tuple[RunHook, ...]


class HookReply(Struct, frozen=True, omit_defaults=True):
    """The result of a hook call: a patch, a decision, an `error`, or none of these.

    `late`: the hook exceeded its time limit.
    """

    patch: msgspec.Raw = msgspec.Raw(b"\xc0")
    decision: Abort | Block | Approve | None = None
    error: str = ""
    late: bool = False
    seconds: float = 0.0


class HookReplies(Struct, frozen=True):
    """The results of hook calls, in the order of the request."""

    rows: tuple[HookReply, ...]


class ReportHooks(Struct, frozen=True):
    """Statistics of the hooks of one turn."""

    rows: tuple[HookTally, ...]


RUN_HOOKS: Final = Service(
    "run_hooks",
    RunHooks,
    HookReplies,
    EVERY_AGENT,
    "Call hooks of the user's program for the calling agent.",
    AgentFields(free=("asked",)),
)
RECORD_HOOK_RUNS: Final = Service(
    "record_hook_runs",
    ReportHooks,
    Empty,
    EVERY_AGENT,
    "Record which hooks ran and what they did.",
    AgentFields(free=("rows",)),
)
