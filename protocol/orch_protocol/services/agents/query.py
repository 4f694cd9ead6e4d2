"""Services that query agents: query, submit, collect, wait and ask_all."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from ...core.messages import Image, Reply
from ..service import AgentFields, Reach, Service, StreamingService, agents_with

__all__ = [
    "ASK_ALL",
    "COLLECT",
    "QUERY",
    "SUBMIT",
    "WAIT",
    "AskAll",
    "AskAllResult",
    "Collect",
    "QueryAgent",
    "Submitted",
    "Wait",
    "Waited",
]


class QueryAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Send a query to `ref`.

    - `images`: the images of the prompt. In `prompt`, the text of an image marks its position; see `place_images`.
    - `wake`: when to notify the agent about its submitted queries: "any" (one query has ended), "all" (all queries have
      ended), or the number of queries that have ended.
    - `approve`: the caller answers approval questions during the query.
    - `progress`: the caller receives a CallEvent for each tool call of the agent and its subagents.
    - `item`: identifies a question about one item of a map, or "". The reply is kept in the agent's record. If the
      same question was already answered, the kept reply is returned. If the caller stops waiting, the turn is
      cancelled. After the reply, the agent's process is stopped.
    """

    ref: str
    prompt: str
    timeout: float | None = None
    wake: Literal["any", "all"] | int | None = None
    stream: bool = False
    approve: bool = False
    progress: bool = False
    request_id: str | None = None
    images: tuple[Image, ...] = ()
    item: str = ""


class Submitted(Struct, frozen=True):
    """The query has started.

    `uncollected` is the number of earlier replies that were not collected yet. These replies are collected before the
    reply to this query.
    """

    id: str
    query_id: str
    uncollected: int = 0


class Collect(Struct, frozen=True, forbid_unknown_fields=True):
    """Collect a reply of `ref`: the oldest uncollected reply to a query of the caller, otherwise the last reply.

    If `timeout` is 0, the service returns without waiting. If `again` is True, the last collected reply is returned
    again. `query` is the id of the query whose reply is wanted, or "" for any query. If `again` is True, this reply may
    have been collected already.
    """

    ref: str
    timeout: float | None = None
    again: bool = False
    query: str = ""


class Wait(Struct, frozen=True, forbid_unknown_fields=True):
    """Wait until some of the agents `refs` are no longer busy.

    `mode` is "any", "all" or the required number of agents.
    """

    refs: tuple[str, ...]
    mode: Literal["any", "all"] | int = "all"
    timeout: float | None = None


class Waited(Struct, frozen=True):
    """Ids of the agents that finished the query that ran at the call, and ids of the agents that still run it."""

    done: tuple[str, ...]
    pending: tuple[str, ...]


class AskAll(Struct, frozen=True, forbid_unknown_fields=True):
    """Send the same prompt to all agents in `refs`. `timeout` is the total time limit for all replies.

    `images` has the same meaning as in QueryAgent.
    """

    refs: tuple[str, ...]
    prompt: str
    timeout: float | None = None
    images: tuple[Image, ...] = ()


class AskAllResult(Struct, frozen=True):
    """The result of asking one agent. Exactly one of `reply` and `error` is set.

    `exit_code` is the exit status of the CLI for `error`, and 0 for a reply.
    """

    ref: str
    reply: Reply | None = None
    error: str | None = None
    exit_code: int = 0


QUERY_FIELDS: Final = AgentFields(
    free=("prompt", "timeout", "wake", "images"),
    users=("stream", "approve", "progress", "item"),
    own=("request_id",),
    refs={"ref": Reach("query", "ask")},
)
QUERY: Final = StreamingService(
    "query",
    QueryAgent,
    Reply,
    agents_with("query_subagent", "spawn_subagent"),
    "Ask an agent and wait for the reply.",
    QUERY_FIELDS,
)
SUBMIT: Final = Service(
    "submit",
    QueryAgent,
    Submitted,
    agents_with("query_subagent"),
    "Ask an agent without waiting for the reply.",
    QUERY_FIELDS,
)
COLLECT: Final = Service(
    "collect",
    Collect,
    Reply,
    agents_with("collect_subagent"),
    "Take the reply to a submitted query.",
    AgentFields(free=("timeout", "again", "query"), refs={"ref": Reach("collect from", "ask")}),
)
WAIT: Final = Service(
    "wait",
    Wait,
    Waited,
    agents_with("wait_subagents"),
    "Wait until agents have finished the query that they run.",
    AgentFields(free=("mode", "timeout"), refs={"refs": Reach("wait for", "ask")}),
)
ASK_ALL: Final = Service(
    "ask_all",
    AskAll,
    list[AskAllResult],
    agents_with("map_subagents"),
    "Ask several agents the same question.",
    # The handler checks each reference, because one wrong reference must not fail the others.
    AgentFields(free=("refs", "prompt", "timeout", "images")),
)
