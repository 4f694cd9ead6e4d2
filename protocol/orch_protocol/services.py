"""What can be asked of a root: the parameters and results of each service.

One table serves workers (RootCall), the CLI and every other door. `caller` is never a parameter: the root knows who
asks. A `ref` is a sequence number, an id, a unique prefix of an id, or a name.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from .messages import Message, Reply, Usage
from .models import ModelRow
from .spec import BackendSpec, Limits, QueueMode, Template, ToolSpec

__all__ = [
    "SERVICES",
    "AgentRow",
    "AgentSteered",
    "CancelTurn",
    "Collect",
    "Empty",
    "FindModel",
    "Kill",
    "Killed",
    "List",
    "ListModels",
    "QueryAgent",
    "Ref",
    "Resume",
    "RunTool",
    "Show",
    "Spawn",
    "Spawned",
    "Status",
    "SteerAgent",
    "Submitted",
    "ToolRan",
    "Wait",
    "Waited",
]

Status = Literal["starting", "idle", "busy", "cold", "died", "failed", "killed"]


class Empty(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or nothing to say."""


class Spawn(Struct, frozen=True, forbid_unknown_fields=True):
    """Start an agent. `tools` beats `preset`; neither means the configured default.

    `script` makes the backend the scripted one; else `model` ("provider:model") or the configured one. `request_id`
    makes a repeated spawn return the first one's agent. `template` is the process image to fork; None is the one that
    the backend needs.
    """

    task: str
    preset: str | None = None
    tools: tuple[str, ...] | None = None
    root_tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    script: tuple[Any, ...] | None = None
    name: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    history: tuple[Message, ...] = ()
    limits: Limits | None = None
    template: Template | None = None
    queue_mode: QueueMode = "one-at-a-time"
    request_id: str | None = None


class Spawned(Struct, frozen=True):
    """The agent is up."""

    id: str
    seq: int
    name: str
    preset: str
    depth: int
    pid: int | None


class Ref(Struct, frozen=True, forbid_unknown_fields=True):
    """One agent."""

    ref: str


class QueryAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask `ref`. `wake` (for `submit` by an agent): tell the asker when its submitted queries are done; `any`, `all`
    or how many."""

    ref: str
    prompt: str
    timeout: float | None = None
    wake: Literal["any", "all"] | int | None = None
    stream: bool = False
    request_id: str | None = None


class Submitted(Struct, frozen=True):
    """The query is under way."""

    id: str
    query_id: str


class Collect(Struct, frozen=True, forbid_unknown_fields=True):
    """Take the last answer of `ref`, once. `timeout` 0 asks without waiting; `again` reads a collected one anew."""

    ref: str
    timeout: float | None = None
    again: bool = False


class Wait(Struct, frozen=True, forbid_unknown_fields=True):
    """Wait until `any`, `all` or `mode` of the agents `refs` are not busy."""

    refs: tuple[str, ...]
    mode: Literal["any", "all"] | int = "all"
    timeout: float | None = None


class Waited(Struct, frozen=True):
    """Ids of the agents whose turn is over, and of those still busy."""

    done: tuple[str, ...]
    pending: tuple[str, ...]


class Kill(Struct, frozen=True, forbid_unknown_fields=True):
    """End agents and everything below them. `refs` empty with `all` means every one."""

    refs: tuple[str, ...] = ()
    all: bool = False
    dry_run: bool = False


class Killed(Struct, frozen=True):
    """Ids of the agents that are (or with `dry_run` would be) killed, children before parents."""

    ids: tuple[str, ...]


class SteerAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Say `text` to `ref` while it works: before its next model request, or (`follow_up`) when it would stop.

    An agent that does not work hears it with its next query; a follow-up to such an agent is a query.
    """

    ref: str
    text: str
    follow_up: bool = False


class AgentSteered(Struct, frozen=True):
    """It will be heard: `steer_id` names it, or `query_id` the query that it became."""

    id: str
    steer_id: str | None = None
    query_id: str | None = None


class CancelTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """End the turn of `ref` at its next safe point; `hard` kills its process, and the next query starts another."""

    ref: str
    hard: bool = False


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """Let a killed or failed agent answer again."""

    ref: str


class List(Struct, frozen=True, forbid_unknown_fields=True):
    """List agents by sequence number; `all` includes killed ones."""

    all: bool = False


class Show(Struct, frozen=True, forbid_unknown_fields=True):
    """One agent with the last `messages` messages of its transcript."""

    ref: str
    messages: int = 20


class AgentRow(Struct, frozen=True):
    """One agent as the root sees it. Times are ISO 8601 UTC; `pending` is the head of the prompt under way."""

    id: str
    seq: int
    name: str
    parent_id: str | None
    depth: int
    kind: str
    status: Status
    task: str
    model: str
    preset: str
    pid: int | None
    created_at: str
    last_activity: str
    pending: str | None
    context_tokens: int
    context_limit: int
    queries: int
    usage: Usage
    tree_usage: Usage = Usage()
    cwd: str = ""
    folder: str = ""
    tools: tuple[str, ...] = ()
    activity: str = ""
    error: str | None = None
    repaired: str = ""


class Shown(Struct, frozen=True):
    """An agent, the tail of its conversation, and its last reply."""

    agent: AgentRow
    messages: tuple[Message, ...]
    reply: Reply | None = None


class RunTool(Struct, frozen=True):
    """Run the root tool `name` of the calling agent with `input`."""

    name: str
    input: dict[str, Any]


class ToolRan(Struct, frozen=True):
    """What a root tool returned, as text."""

    text: str
    is_error: bool = False


class ListModels(Struct, frozen=True, forbid_unknown_fields=True):
    """The models that the calling agent may ask."""


class FindModel(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker needs to ask `model`, `provider:name` or `local`; None is the calling agent's own."""

    model: str | None = None


SERVICES: Final[dict[str, tuple[type[Struct], Any]]] = {
    "spawn": (Spawn, Spawned),
    "query": (QueryAgent, Reply),
    "submit": (QueryAgent, Submitted),
    "collect": (Collect, Reply),
    "wait": (Wait, Waited),
    "kill": (Kill, Killed),
    "steer": (SteerAgent, AgentSteered),
    "cancel": (CancelTurn, AgentRow),
    "resume": (Resume, AgentRow),
    "list": (List, list[AgentRow]),
    "show": (Show, Shown),
    "state": (Ref, AgentRow),
    "run_tool": (RunTool, ToolRan),
    "models": (ListModels, list[ModelRow]),
    "find_model": (FindModel, BackendSpec),
}


class Request(Struct, frozen=True, omit_defaults=True):
    """One line from a client of the control socket."""

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    version: int = 1


class Response(Struct, frozen=True, omit_defaults=True):
    """One line to a client: an `event` of a request under way, or its end with exactly one of `result` and `error`."""

    id: int
    result: Any = None
    event: Any = None
    error: dict[str, str] | None = None
