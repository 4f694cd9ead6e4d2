"""The topics that callers in the root can wait for. The tree, the supervisor and services announce them."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

__all__ = [
    "BudgetTopic",
    "ExitTopic",
    "QueryTopic",
    "RateLimitTopic",
    "ReadyTopic",
    "RunEventTopic",
    "Topic",
    "WorkerReplyTopic",
]


class QueryTopic(Struct, frozen=True, gc=False):
    """The end of a query. The value is the Reply."""

    query_id: str


class ReadyTopic(Struct, frozen=True, gc=False):
    """The agent's process is ready, or could not be started."""

    agent_id: str


class ExitTopic(Struct, frozen=True, gc=False):
    """The process of the agent with the number `incarnation` has ended."""

    agent_id: str
    incarnation: int


class WorkerReplyTopic(Struct, frozen=True, gc=False):
    """The agent's process replied to a request with a frame of the type `frame_type`. The value is its body."""

    frame_type: str
    agent_id: str
    request_id: str


class BudgetTopic(Struct, frozen=True, gc=False):
    """Reserved budget was released, or a limit was raised."""


class RateLimitTopic(Struct, frozen=True, gc=False):
    """A model request has ended. Requests with the same `key` share a rate limit."""

    key: str


class RunEventTopic(Struct, frozen=True, gc=False):
    """The journal has new entries."""


Topic: TypeAlias = QueryTopic | ReadyTopic | ExitTopic | WorkerReplyTopic | BudgetTopic | RateLimitTopic | RunEventTopic
